"""Which tensors hold the bytes of a tensor and of an optimizer."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def tensors_of_state(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """An optimizer's state: (name of the entry, parameter it belongs to, tensor)."""
    for parameter, entries in optimizer.state.items():
        for name, value in entries.items():
            for leaf in pytree.tree_leaves(value):  # L-BFGS keeps lists
                if isinstance(leaf, torch.Tensor):
                    yield name, parameter, leaf


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this process has of a DTensor; any other tensor is its own."""
    return getattr(tensor, "_local_tensor", tensor) if type(tensor) is not torch.Tensor else tensor


def is_distributed(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a DTensor, of which this process has a part."""
    return local_part(tensor) is not tensor


def with_local(tensor: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The DTensor whose part in this process is what a function makes of the present one's.

    An op on the DTensor itself, such as a copy, may reduce what is still to be summed over processes.
    """
    local = function(tensor.to_local())
    placed: torch.Tensor = type(tensor).from_local(
        local, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
    return placed


def addresses_of_parts(tensor: torch.Tensor) -> list[int]:
    """Addresses of the C++ tensors that a tensor is made of which is a Python object around others."""
    local = local_part(tensor)
    if local is not tensor:
        return [local._cdata]
    if not is_traceable_wrapper_subclass(tensor):
        return []
    return [getattr(tensor, name)._cdata for name in tensor.__tensor_flatten__()[0]]


def strided_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that hold a tensor's bytes: itself, or what a sparse gradient consists of; none for other layouts.

    Of a DTensor it is what this process has. A lazy module's parameters have none before its first forward.
    """
    if is_lazy(tensor):
        return []
    tensor = local_part(tensor)
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    return [tensor] if tensor.layout is torch.strided else []


_PINNED = "_umadvise_pinned"
"""Attribute of storages in pinned memory: torch keeps it with the storage."""


def mark_pinned(tensor: torch.Tensor) -> None:
    """Says of a tensor's memory that somebody has asked for pinned memory of the host: no session takes it away."""
    for part in strided_parts(tensor):
        setattr(part.untyped_storage(), _PINNED, True)


def is_marked_pinned(storage: torch.UntypedStorage) -> bool:
    """Whether somebody has asked for it in pinned memory of the host."""
    return hasattr(storage, _PINNED)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor's elements fill one run of memory, without gaps or overlaps, in any order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)) if tensor.numel() > 0 else ():
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
