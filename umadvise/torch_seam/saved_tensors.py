"""Hooks through which autograd saves tensors: what they make within an op may leave before another op uses it."""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu
from torch.utils import _pytree

from umadvise import _native
from umadvise.torch_seam.runtime import HOST, Runtime, routed

_Pack = Callable[[torch.Tensor], Any]


def _push_hooks(original: Callable[..., None], pack: _Pack, unpack: Callable[[Any], torch.Tensor]) -> None:
    """The op that saves gives back nothing that they make, so nobody else would say whose it is."""

    def pack_and_show(tensor: torch.Tensor) -> Any:
        packed = pack(tensor)
        for each in _pytree.tree_leaves(packed):
            if isinstance(each, torch.Tensor):
                _native.show(each._cdata)
        return packed

    original(pack_and_show, unpack)


def _save_on_cpu(original: Callable[..., None], self: save_on_cpu, *arguments: Any, **named: Any) -> None:
    """Its pinned copies are made within the op that saves, where new memory is the device's."""
    original(self, *arguments, **named)
    pack = self.pack_hook

    def pack_to_host(tensor: torch.Tensor) -> Any:
        with routed(HOST):
            return pack(tensor)

    self.pack_hook = pack_to_host


def install(runtime: Runtime) -> None:
    """Replaces torch's setting of such hooks, and on the emulated device those that save in pinned memory."""
    runtime.replaced.around(torch._C._autograd, "_push_saved_tensors_default_hooks", _push_hooks)
    if runtime.emulated:
        runtime.replaced.around(save_on_cpu, "__init__", _save_on_cpu)
