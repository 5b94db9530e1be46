"""Traces with other times and devices with other costs, as the papers' machines had them."""

import dataclasses
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from umadvise.records.device import DIRECTIONS, DeviceProfile, Fact, FactOrNone
from umadvise.records.trace import Trace

Part = TypeVar("Part", bound=msgspec.Struct)


def with_durations(trace: Trace, duration_ns: NDArray[Any]) -> Trace:
    """The trace with other durations of its ops, rounded to nanoseconds."""
    ops = dataclasses.replace(trace.ops, duration_ns=np.rint(duration_ns).astype(np.int64))
    return dataclasses.replace(trace, ops=ops)


def faster(trace: Trace, efficiency: float) -> Trace:
    """The trace with all its ops' durations divided by a number, but for those that are not known."""
    durations = trace.ops.duration_ns
    return with_durations(trace, np.where(durations > 0, durations / efficiency, durations))


def with_values(record: Part, values: Any) -> Part:
    """A device, or a part of it, with other values of facts: they lie as in `{"link": {"h2d": {"fixed_ns": 9}}}`."""
    if isinstance(record, Fact | FactOrNone):
        return msgspec.structs.replace(record, value=values)
    changed = {name: with_values(getattr(record, name), inner) for name, inner in values.items()}
    return msgspec.structs.replace(record, **changed)


def with_link(device: DeviceProfile, bytes_per_s: float, **facts: object) -> DeviceProfile:
    """The device behind a link of another speed, and with other values of other facts, each way."""
    return with_values(device, {"link": {way: {"bytes_per_s": bytes_per_s, **facts} for way in DIRECTIONS}})
