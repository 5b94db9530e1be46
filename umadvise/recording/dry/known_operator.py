"""What those who follow a step op by op know of an operator, looked up once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from umadvise.recording.dry.flops import Formula, formula_of
from umadvise.recording.operators import OpKind, derive
from umadvise.records.trace import Access

_READ = int(Access.READ)


class KnownOperator:
    """An overload.

    Attributes:
        info: what it does to memory.
        untouching: whether it touches none.
        creates: whether it only makes memory.
        formula: formula of its FLOPs; None where none is known.
    """

    __slots__ = ("_arguments", "_training_index", "creates", "formula", "info", "untouching")

    def __init__(self, func: torch._ops.OpOverload, key: str) -> None:
        """Looks an overload up.

        Args:
            func: the operator, with its overload.
            key: dispatch key of the kernels that will run, "CPU" or "CUDA".
        """
        self.info = derive(func, key)
        self.untouching = self.info.kind is OpKind.UNTOUCHING
        self.creates = self.info.kind is OpKind.CREATION
        self.formula: Formula | None = formula_of(func, self.info.op_class)
        self._arguments = [
            (each.index, each.name, int(each.flags), each.only_in_training) for each in self.info.arguments
        ]
        self._training_index = self.info.training_index

    def operands(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[tuple[torch.Tensor, int]]:
        """The tensors among the arguments, each with what the op does to it."""
        given = len(args)
        for index, name, flags, only_in_training in self._arguments:
            value = args[index] if index < given else kwargs.get(name)
            if value is None:
                continue
            if only_in_training and not args[self._training_index]:
                flags = _READ
            for tensor in value if isinstance(value, list | tuple) else (value,):
                if isinstance(tensor, torch.Tensor):
                    yield tensor, flags


def span_of(tensor: torch.Tensor) -> tuple[int, bool]:
    """Bytes from the first element of a tensor to the end of its last one, and whether no gaps are among them."""
    count, item = tensor.numel(), tensor.itemsize
    if not count or tensor.is_contiguous():
        return count * item, True
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * item, last + 1 == count
