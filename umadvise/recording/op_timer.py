"""Tells a device in virtual time how long each op takes: what the roofline of the device that it stands for says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from umadvise import _native
from umadvise.recording.dry.known_operator import KnownOperator, span_of
from umadvise.recording.dry.roofline import arithmetic_of, times_ns
from umadvise.records.device import DeviceProfile
from umadvise.records.trace import ARITHMETIC, UNKNOWN, Access


class OpTimer(TorchDispatchMode):
    """While it is on, ops of this thread and of autograd on its behalf take virtual time.

    As under any mode in Python, autograd sums gradients into new tensors.
    """

    def __init__(self, device: DeviceProfile) -> None:
        """Prepares.

        Args:
            device: profile of the device whose times ops take.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._operators: dict[torch._ops.OpOverload, KnownOperator] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nobody compiles here, and torch's guard against it costs more than the op

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs one op and tells its time."""
        kwargs = kwargs or {}
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = KnownOperator(func, "CPU")
        if operator.untouching:
            return func(*args, **kwargs)
        if operator.info.composite:  # in inference mode nothing above has taken it apart
            with self:
                return func.decompose(*args, **kwargs)
        operands = [] if operator.creates else [each for each in operator.operands(args, kwargs) if _counts(each[0])]
        touched = sum(_bytes_of(*each) for each in operands)
        result = func(*args, **kwargs)
        if not operator.creates:
            touched += _made_bytes(result, {tensor.untyped_storage()._cdata for tensor, _ in operands})
        flops = operator.formula(args, kwargs, result) if operator.formula else None
        arithmetic = ARITHMETIC.index(arithmetic_of(operands[0][0].dtype if operands else None))
        _native.op_took(self._time_ns(flops, touched, arithmetic, int(operator.info.op_class)))
        return result

    def _time_ns(self, flops: int | None, *columns: int) -> int:
        row = (np.array([column]) for column in (UNKNOWN if flops is None else flops, *columns))
        return max(int(times_ns(self._device, *row)[0]), 0)


def _counts(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.numel() > 0


def _bytes_of(tensor: torch.Tensor, flags: int) -> int:
    """What is read and written; twice what is changed in place."""
    return span_of(tensor)[0] * (bool(flags & Access.READ) + bool(flags & Access.WRITE))


def _made_bytes(result: Any, given: set[int]) -> int:
    """Bytes of the storages among an op's results that it was not given."""
    made = {each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in _tensors(result)}
    return sum(size for storage, size in made.items() if storage not in given)


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    several: Sequence[Any] = result if isinstance(result, tuple | list) else (result,)
    for each in several:
        if isinstance(each, list):
            yield from _tensors(each)
        elif isinstance(each, torch.Tensor) and _counts(each):
            yield each
