"""Where autograd's engine works in place, but not under a Python mode.

The engine sums the gradients that reach a node in the first one's memory if nobody else holds it, and derivatives of
indexing write into the zeros that they have just made. It asks whether a Python mode is on and then does neither
(torch/csrc/autograd/input_buffer.cpp, InputBuffer::accumulate; FunctionsManual.cpp, index_backward). What a run without
recorder does is found here.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import _engine_run_backward
from torch.utils._python_dispatch import TorchDispatchMode

from umadvise.torch_seam.tensors import is_dense

aten = torch.ops.aten
ADD, INDEX_PUT = aten.add.Tensor, aten.index_put.default
_ENGINE = _engine_run_backward.__code__
_OWN_FRAMES = 2  # this function's and the recorder's


def twin(func: torch._ops.OpOverload, args: Sequence[Any]) -> torch._ops.OpOverload | None:
    """The in-place operator that would run instead with the same arguments, None where `func` itself would."""
    if torch.is_grad_enabled() or sys._getframe(_OWN_FRAMES).f_code is not _ENGINE:
        return None  # not called by the engine itself
    if func is INDEX_PUT:
        return aten._index_put_impl_.default
    old = args[0]
    if isinstance(args[1], torch.Tensor) and _counts(old) == counts_of_sole_owner() and is_dense(old):
        return aten.add_.Tensor
    return None


def _counts(tensor: torch.Tensor) -> tuple[int, int]:
    """References to a tensor and to its storage."""
    storage: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return tensor._use_count(), storage  # type: ignore[attr-defined]


@functools.cache
def counts_of_sole_owner() -> tuple[int, int]:
    """Reference counts of a gradient that only the engine holds; they depend on torch's version.

    To be called first outside of any op: a small backward finds them.
    """
    seen: list[tuple[int, int]] = []

    class Probe(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is ADD:
                seen.append(_counts(args[0]))
            return func(*args, **(kwargs or {}))

    with torch.enable_grad():
        hidden = torch.empty(2, 2, device="meta", requires_grad=True).exp()
        loss = (hidden.exp() * hidden.sin()).sum()
        with Probe():  # type: ignore[no-untyped-call]
            loss.backward()
    return seen[0]
