"""Which tensors hold the bytes of a tensor and of an optimizer."""

from collections.abc import Iterator

import torch
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree


def tensors_of_state(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """An optimizer's state: (name of the entry, parameter it belongs to, tensor)."""
    for parameter, entries in optimizer.state.items():
        for name, value in entries.items():
            for leaf in pytree.tree_leaves(value):  # L-BFGS keeps lists
                if isinstance(leaf, torch.Tensor):
                    yield name, parameter, leaf


def strided_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that hold a tensor's bytes: itself, or what a sparse gradient consists of; none for other layouts.

    A lazy module's parameters have none before its first forward.
    """
    if is_lazy(tensor):
        return []
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    return [tensor] if tensor.layout is torch.strided else []


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor's elements fill one run of memory, without gaps or overlaps, in any order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)) if tensor.numel() > 0 else ():
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
