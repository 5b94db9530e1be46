"""What a call left, as bits in ordinary memory, and whether two runs left the same."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

_BY_VALUE = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)
_PARTS: dict[torch.layout, Callable[[torch.Tensor], list[torch.Tensor]]] = {
    torch.sparse_coo: lambda tensor: [tensor._indices(), tensor._values()],
    torch.sparse_csr: lambda tensor: [tensor.crow_indices(), tensor.col_indices(), tensor.values()],
    torch.sparse_bsr: lambda tensor: [tensor.crow_indices(), tensor.col_indices(), tensor.values()],
    torch.sparse_csc: lambda tensor: [tensor.ccol_indices(), tensor.row_indices(), tensor.values()],
    torch.sparse_bsc: lambda tensor: [tensor.ccol_indices(), tensor.row_indices(), tensor.values()],
    torch.jagged: lambda tensor: [tensor.values(), tensor.offsets()],  # type: ignore[attr-defined]
}


@dataclass(frozen=True)
class Frozen:
    """One value.

    Attributes:
        words: all that is known of it but the bits.
        copy: a copy of a tensor's part that has bytes.
        note: words for whoever reads, which are not compared.
    """

    words: str
    copy: torch.Tensor | None = None
    note: str = ""

    def same(self, other: "Frozen") -> bool:
        """Whether both are equal, bit by bit."""
        if self.copy is None or other.copy is None:
            return self.words == other.words and self.copy is other.copy
        return self.words == other.words and torch.equal(_bits(self.copy), _bits(other.copy))


def strided_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with bytes of their own that make up a tensor."""
    if is_lazy(tensor) or tensor.device.type == "meta":
        return []
    tensor = tensor.detach()
    if tensor.is_nested and tensor.layout is torch.strided:
        return list(tensor.unbind())
    return _PARTS[tensor.layout](tensor) if tensor.layout in _PARTS else [tensor]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor of a nested value."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def frozen(value: Any, copy: Callable[[torch.Tensor], torch.Tensor]) -> list[Frozen]:
    """All that is in a nested value.

    Args:
        value: a nested value of tensors, numbers and whatever an operator returns.
        copy: brings a strided tensor into ordinary memory.
    """
    found = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            found.append(Frozen(f"{_words(leaf)}, requires_grad={leaf.requires_grad}"))
            found += [Frozen(_words(part), copy(part.resolve_conj().resolve_neg())) for part in strided_parts(leaf)]
        else:
            found.append(Frozen(repr(leaf) if isinstance(leaf, _BY_VALUE) else type(leaf).__name__))
    return found


def _words(tensor: torch.Tensor) -> str:
    words = f"{tensor.layout} {tensor.dtype}"
    if tensor.is_nested:
        return words
    strides = tensor.stride() if tensor.layout is torch.strided else ""
    return f"{words} {tuple(tensor.shape)} {strides}{' conj' * tensor.is_conj()}{' neg' * tensor.is_neg()}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
