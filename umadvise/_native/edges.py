"""Readings of a device at both edges of a step, and sums of steps, in memory that the core writes.

Steps are many, and few are looked at: a reading becomes records of this package only if `records` is asked for them.
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
        core, handle: library and device that are read.
        to_begun, to_ended: places of the readings, for the core.
        begun: totals (counters, times, swaps) when the last step began; UM_UNKNOWN where a number is not known.
        ended: the same numbers when the last step had ended, or at the last reading since.
        memory: memory at the last reading of everything, in the order of um_memory_stats.
        op_count, fault_groups, fault_service_ns, oversized_ops: places in `begun` and `ended`.
        requested_peak, resident_peak: places in `memory`.
    """

    def __init__(self, device: Device) -> None:
        """Reads nothing yet."""
        self.core, self.handle = core_library(), device.handle
        self._begun, self._ended = structure("um_edge")(), structure("um_edge")()
        self.to_begun, self.to_ended = ctypes.byref(self._begun), ctypes.byref(self._ended)
        self.begun, self.ended = totals_in(self._begun), totals_in(self._ended)
        self.memory = memory_in(self._ended)
        self.op_count, self.fault_groups, self.fault_service_ns, self.oversized_ops = (
            _place("um_counters", field) for field in ("op_count", "fault_groups", "fault_service_ns", "oversized_ops")
        )
        self.requested_peak, self.resident_peak = (
            _place("um_memory_stats", field) for field in ("requested_peak_bytes", "resident_peak_bytes")
        )

    @property
    def start_ns(self) -> int:
        """When the time of the last step began, by the device's clock."""
        return int(self._begun.at_ns)

    @property
    def events(self) -> int:
        """How many events waited to be drained when the last step ended."""
        return int(self._ended.events)

    @property
    def exports_ended(self) -> int:
        """The exports that had ended by the last reading of everything: `Device.memory_history`."""
        return int(self._ended.exports_ended)

    def approach(self) -> None:
        """Begins the time of the next step, which is spent on planning from now on."""
        self.core.um_edge_approach(self.handle, self.to_begun)

    def begin(self, step: int) -> bool:
        """Begins a step.

        Args:
            step: number of the step.

        Returns:
            Whether it has begun: not while events wait to be drained.
        """
        self.core.um_edge_begin(self.handle, step, self.to_begun)
        return not self._begun.events

    def end(self) -> None:
        """Ends the step, and reads everything.

        Raises:
            NativeError: the step was refused. It has ended, and nothing was read.
        """
        self.core.um_edge_end(self.handle, self.to_ended)

    def read(self) -> None:
        """Reads everything."""
        self.core.um_edge_read(self.handle, self.to_ended)


class StepSums:
    """Sums of steps in a row, which the core adds up (um_step_sums).

    Attributes:
        last: what the step that was added last counted, in the order of `EdgeReadings.ended`.
        all: the sums of `last`.
        memory: the largest numbers of `EdgeReadings.memory`.
    """

    def __init__(self, readings: EdgeReadings) -> None:
        """Sums up nothing yet.

        Args:
            readings: reader whose steps are added.
        """
        self._readings = readings
        self._sums = structure("um_step_sums")()
        self._to_sums = ctypes.byref(self._sums)
        self.last, self.all = totals_in(self._sums.last), totals_in(self._sums.all)
        self.memory = memory_in(self._sums.all)
        self._make_rows(_ROWS)

    def _make_rows(self, count: int) -> None:
        self._rows = np.empty(2 * count, layout("um_residency"))
        self._sums.rows = self._rows.ctypes.data
        self._sums.row_capacity = count

    @property
    def count(self) -> int:
        """Number of the steps."""
        return int(self._sums.count)

    @property
    def last_ns(self) -> int:
        """Length of the step that was added last."""
        return int(self._sums.last.at_ns)

    @property
    def all_ns(self) -> int:
        """Length of all steps."""
        return int(self._sums.all.at_ns)

    @property
    def residency(self) -> bytes:
        """The rows of um_residency: the largest peaks, and the sums of the times of ops."""
        return self._rows[: self._sums.summed_rows].tobytes()

    def add(self) -> bool:
        """Adds the step whose end was read last.

        Returns:
            Whether it was added: not if its rows of um_residency have other subjects than those of the steps before.
        """
        readings = self._readings
        while not readings.core.um_step_sums_add(readings.handle, readings.to_begun, readings.to_ended, self._to_sums):
            if self._sums.row_count <= self._sums.row_capacity or self._sums.count:
                return False
            self._make_rows(2 * self._sums.row_count)
        return True

    def clear(self) -> None:
        """Forgets all steps."""
        self._sums.count = 0


def totals_in(edge: ctypes.Structure) -> Numbers:
    """The counters, times and swap totals of a um_edge, side by side, in its memory."""
    end = _place("um_edge", "swaps") + _count("um_swap_counters", Swaps.__struct_fields__)
    return np.frombuffer(memoryview(edge), np.int64)[:end]


def memory_in(edge: ctypes.Structure) -> Numbers:
    """The memory of a um_edge, in its memory."""
    begin = _place("um_edge", "memory")
    return np.frombuffer(memoryview(edge), np.int64)[begin : begin + _count("um_memory_stats")]


def records(totals: Numbers) -> tuple[Counters, Swaps, SpentTime | None]:
    """The records of totals, or of the difference of two: None for what is UM_UNKNOWN there."""

    def of(part: str, name: str) -> ctypes.Structure:
        begin = _place("um_edge", part)
        return _filled(name, totals[begin : begin + _count(name)])

    return (
        read(Counters, of("counters", "um_counters")),
        read(Swaps, of("swaps", "um_swap_counters")),
        read_known(SpentTime, of("times", "um_spent_time")),
    )
