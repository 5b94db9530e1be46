"""How long ops take on a device of the catalogue, by the roofline (Williams, Waterman and Patterson, 2009)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from umadvise.records.device import DeviceProfile, DType, Fact
from umadvise.records.trace import ARITHMETIC, UNKNOWN, Access, OpClass, Trace

if TYPE_CHECKING:
    import torch

_HALF: dict[str, DType] = {"torch.float16": "fp16", "torch.bfloat16": "bf16"}


def arithmetic_of(dtype: torch.dtype | None) -> DType:
    """The units that work on a torch dtype. float32 means fp32 and not tf32: torch's own default for matmuls."""
    return _HALF.get(str(dtype), "fp32")


def touched_bytes(trace: Trace) -> NDArray[np.int64]:
    """Bytes that each op reads and writes; what it changes in place counts twice."""
    accesses = trace.accesses
    reads, writes = (accesses.flags & Access.READ) != 0, (accesses.flags & Access.WRITE) != 0
    weights = accesses.bytes * (reads.astype(np.int64) + writes)
    return np.bincount(accesses.op, weights=weights, minlength=len(trace.ops)).astype(np.int64)


def durations_ns(trace: Trace, device: DeviceProfile) -> NDArray[np.int64]:
    """Nanoseconds of each op; UNKNOWN where the device file lacks what it takes.

    An op without a known number of FLOPs is limited by memory alone. One that only makes memory, or touches none, takes
    its launch.
    """
    ops = trace.ops
    return times_ns(device, ops.flops, touched_bytes(trace), ops.arithmetic, ops.op_class)


def times_ns(
    device: DeviceProfile,
    flops: NDArray[np.int64],
    touched: NDArray[np.int64],
    arithmetic: NDArray[np.integer[Any]],
    op_class: NDArray[np.integer[Any]],
) -> NDArray[np.int64]:
    """`durations_ns` of ops that are in no trace.

    Args:
        device: profile of the device that they run on.
        flops: number of each op's FLOPs; UNKNOWN is none.
        touched: bytes that each reads and writes.
        arithmetic: index into ARITHMETIC of each.
        op_class: `OpClass` of each.
    """
    bandwidth = device.achievable_memory_bytes_per_s
    peaks = np.array([device.peak(dtype) or device.peak("fp32") or np.nan for dtype in ARITHMETIC])
    efficiencies: list[Fact[float]] = [getattr(device.efficiency, each.name.lower()) for each in OpClass]
    if bandwidth is None:
        return np.full(len(flops), UNKNOWN)
    seconds = np.maximum(np.maximum(flops, 0) / peaks[arithmetic], touched / bandwidth)
    seconds /= np.array([fact.value for fact in efficiencies])[op_class]
    known = ~np.isnan(seconds)
    return np.where(known, device.launch_ns.value + np.rint(np.where(known, seconds, 0) * 1e9), UNKNOWN).astype(
        np.int64
    )


def retimed(trace: Trace, device: DeviceProfile) -> Trace:
    """Gives a step the durations that a device's roofline yields."""
    return replace(trace, device=device.name, ops=replace(trace.ops, duration_ns=durations_ns(trace, device)))
