"""What a device says at the edge of a step, as numbers side by side: edges are many, and few are ever looked at.

Each reading goes into the same memory. `EdgeReadings.records` makes records of this package from it.
"""

import ctypes
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from umadvise._native.device import Device
from umadvise._native.library import core_library
from umadvise._native.structures import layout, read, read_known, structure
from umadvise.records.counters import Counters, MemoryStats, SpentTime, Swaps

Numbers: TypeAlias = NDArray[np.int64]

_NUMBER_BYTES = 8
_ROWS = 64


def _count(name: str, fields: tuple[str, ...] | None = None) -> int:
    """How many numbers a structure begins with: all of it, or as far as some of its fields reach."""
    kind = structure(name)
    if fields is None:
        return ctypes.sizeof(kind) // _NUMBER_BYTES
    return max(_place(name, field) for field in fields) + 1


def _filled(name: str, numbers: Numbers) -> ctypes.Structure:
    kind = structure(name)
    return kind.from_buffer_copy(numbers.tobytes().ljust(ctypes.sizeof(kind), b"\0"))


def _place(name: str, field: str) -> int:
    return int(getattr(structure(name), field).offset) // _NUMBER_BYTES


def swap_numbers(device: Device) -> Any:
    """The structure of `Device.swap_counters`, with fields of the same names."""
    native = structure("um_swap_counters")()
    core_library().um_swap_read(device.handle, ctypes.byref(native))
    return native


def memory_of(numbers: Numbers) -> MemoryStats:
    """The record of `EdgeReadings.memory`."""
    return read(MemoryStats, _filled("um_memory_stats", numbers))


def peaks_of_memory() -> NDArray[np.bool_]:
    """Which of `EdgeReadings.memory` are peaks."""
    kind, found = structure("um_memory_stats"), np.zeros(_count("um_memory_stats"), np.bool_)
    for field in MemoryStats.__struct_fields__:
        begin = _place("um_memory_stats", field)
        found[begin : begin + getattr(kind, field).size // _NUMBER_BYTES] = "_peak_" in field
    return found


class EdgeReadings:
    """Reads one open device.

    Attributes:
        totals: what it had counted at the last reading, what time had gone into by the last one of that, and what had
            been swapped; UM_UNKNOWN where that is not known.
        memory: its memory at the last reading, in the order of um_memory_stats.
        op_count, fault_groups, fault_service_ns, oversized_ops: places in `totals`.
        requested_peak, resident_peak: places in `memory`.
    """

    def __init__(self, device: Device) -> None:
        """Reads nothing yet."""
        self._core, self._handle = core_library(), device.handle
        self._edge = structure("um_edge")()
        self._to_edge = ctypes.byref(self._edge)
        numbers = np.frombuffer(memoryview(self._edge), np.int64)
        self._counters, self._times, self._swaps = (
            slice(begin := _place("um_edge", part), begin + _count(name, fields))
            for part, name, fields in (
                ("counters", "um_counters", None),
                ("times", "um_spent_time", None),
                ("swaps", "um_swap_counters", Swaps.__struct_fields__),
            )
        )
        self.totals = numbers[: self._swaps.stop]
        memory = _place("um_edge", "memory")
        self.memory = numbers[memory : memory + _count("um_memory_stats")]
        self._make_rows(_ROWS)
        self.op_count, self.fault_groups, self.fault_service_ns, self.oversized_ops = (
            _place("um_counters", field) for field in ("op_count", "fault_groups", "fault_service_ns", "oversized_ops")
        )
        self.requested_peak, self.resident_peak = (
            _place("um_memory_stats", field) for field in ("requested_peak_bytes", "resident_peak_bytes")
        )

    def _make_rows(self, count: int) -> None:
        self._rows = np.empty((count, layout("um_residency").itemsize // _NUMBER_BYTES), np.int64)
        self._to_rows = self._rows.ctypes.data

    @property
    def at_ns(self) -> int:
        """When the times were read last, by the device's clock."""
        return int(self._edge.at_ns)

    @property
    def events(self) -> int:
        """How many events waited to be drained at the last edge."""
        return int(self._edge.events)

    @property
    def exports_ended(self) -> int:
        """The exports that had ended by the last reading of everything: `Device.memory_history`."""
        return int(self._edge.exports_ended)

    def approach(self) -> None:
        """The time of the next step begins, and is spent on planning from now on: reads the times."""
        self._core.um_edge_approach(self._handle, self._to_edge)

    def begin(self, step: int) -> bool:
        """Begins a step, and reads what the device has counted, but for the times.

        Args:
            step: number of the step.

        Returns:
            Whether it has begun: not while events wait to be drained.
        """
        self._core.um_edge_begin(self._handle, step, self._to_edge)
        return not self._edge.events

    def end(self) -> None:
        """Ends the step, and reads everything.

        Raises:
            NativeError: the step was refused. It has ended, and nothing was read.
        """
        self._core.um_edge_end(self._handle, self._to_edge)

    def read(self) -> None:
        """Reads everything."""
        self._core.um_edge_read(self._handle, self._to_edge)

    def residency(self) -> Numbers:
        """The rows of um_residency: the peak comes first in each, and the time of an op last. Until the next call."""
        count = int(self._core.um_residency_read(self._handle, self._to_rows, len(self._rows)))
        if count > len(self._rows):
            self._make_rows(2 * count)
            count = int(self._core.um_residency_read(self._handle, self._to_rows, len(self._rows)))
        return self._rows[:count]

    def records(self, totals: Numbers) -> tuple[Counters, Swaps, SpentTime | None]:
        """The records of `totals`, or of the difference of two: None for what is UM_UNKNOWN there."""
        return (
            read(Counters, _filled("um_counters", totals[self._counters])),
            read(Swaps, _filled("um_swap_counters", totals[self._swaps])),
            read_known(SpentTime, _filled("um_spent_time", totals[self._times])),
        )
