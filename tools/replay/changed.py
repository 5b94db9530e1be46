"""Traces with other times and devices with other costs, as the papers' machines had them."""

import dataclasses
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from umadvise.records.device import DeviceProfile
from umadvise.records.trace import Trace


def with_durations(trace: Trace, duration_ns: NDArray[Any]) -> Trace:
    """The trace with other durations of its ops, rounded to nanoseconds."""
    ops = dataclasses.replace(trace.ops, duration_ns=np.rint(duration_ns).astype(np.int64))
    return dataclasses.replace(trace, ops=ops)


def faster(trace: Trace, efficiency: float) -> Trace:
    """The trace with all its ops' durations divided by a number, but for those that are not known."""
    durations = trace.ops.duration_ns
    return with_durations(trace, np.where(durations > 0, durations / efficiency, durations))


def with_costs(device: DeviceProfile, **facts: object) -> DeviceProfile:
    """The device with other costs of unified memory."""
    memory = device.unified_memory
    costs = msgspec.structs.replace(memory.costs, **facts)
    return msgspec.structs.replace(device, unified_memory=msgspec.structs.replace(memory, costs=costs))


def with_link(device: DeviceProfile, bytes_per_s: float, **facts: Any) -> DeviceProfile:
    """The device behind a link of another speed, and with other values of other facts, each way."""
    ways = {}
    for name in ("h2d", "d2h"):
        way = getattr(device.link, name)
        values = {"bytes_per_s": bytes_per_s, **facts}
        changed = {fact: msgspec.structs.replace(getattr(way, fact), value=value) for fact, value in values.items()}
        ways[name] = msgspec.structs.replace(way, **changed)
    return msgspec.structs.replace(device, link=msgspec.structs.replace(device.link, **ways))
