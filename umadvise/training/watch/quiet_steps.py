"""Sums up steps in which no event was recorded. Most steps are such, and an edge between two of them costs little."""

from collections import deque
from typing import NamedTuple

import numpy as np

from umadvise import _native
from umadvise._native.abi import UNKNOWN
from umadvise._native.edges import EdgeReadings, Numbers, StepSums, memory_of, peaks_of_memory, records
from umadvise._native.readings import residency_from
from umadvise.records.counters import Counters, SpentTime, Swaps
from umadvise.records.fault_profile import MeasuredStep
from umadvise.reports.counters.builder import ProfileBuilder
from umadvise.reports.counters.step_batch import FIRST_STEPS, LATEST_STEPS, StepBatch


class _Quiet(NamedTuple):
    """A step that a profile may keep."""

    number: int
    start_ns: int
    duration_ns: int
    counted: bytes
    resident_peak_bytes: int


class QuietSteps:
    """Reads a device at the edges of steps, and has the core add up the steps until a profile takes the sums.

    Attributes:
        readings: the readings at both edges of the last step.
        sums: the sums of the steps that the profile has not had.
    """

    def __init__(self, device: _native.Device, builder: ProfileBuilder) -> None:
        """No step has begun."""
        self.readings = EdgeReadings(device)
        self.sums = StepSums(self.readings)
        self._builder = builder
        self._are_peaks = peaks_of_memory()
        self._forget()

    def _forget(self) -> None:
        self.sums.clear()
        self._first: list[_Quiet] = []
        self._latest: deque[_Quiet] = deque(maxlen=LATEST_STEPS)

    def begun(self) -> tuple[Counters, Swaps, SpentTime | None]:
        """The device's totals when the step began."""
        return records(self.readings.begun)

    def end(self, index: int) -> int:
        """Adds the step whose end was read last, and in which no event came. Returns its length in nanoseconds.

        Args:
            index: number of the step.
        """
        readings, sums = self.readings, self.sums
        if not sums.add():
            self.flush()
            sums.add()
        duration_ns = sums.last_ns
        peak_bytes = readings.memory.item(readings.resident_peak)
        step = _Quiet(index, readings.start_ns, duration_ns, sums.last.tobytes(), peak_bytes)
        (self._first if len(self._first) < FIRST_STEPS else self._latest).append(step)
        return duration_ns

    # ---- what it came to ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Gives the profile the steps that it has not had."""
        if self.sums.count:
            self._builder.add_steps(self._batch())
        self._forget()

    def _batch(self) -> StepBatch:
        sums = self.sums
        counters, swaps, times = self._records(sums.all)
        memory = np.where(self._are_peaks, sums.memory, self.readings.memory)
        steps = *self._first, *self._latest
        return StepBatch(
            steps=[self._measured(each) for each in steps],
            count=sums.count,
            start_ns=steps[-1].start_ns,
            duration_ns=sums.all_ns,
            counters=counters,
            swaps=swaps,
            times=times,
            memory=memory_of(memory),
            residency=list(residency_from(sums.residency)),
        )

    def _measured(self, step: _Quiet) -> MeasuredStep:
        counters, swaps, times = self._records(np.frombuffer(step.counted, np.int64))
        peak_bytes = None if step.resident_peak_bytes == UNKNOWN else step.resident_peak_bytes
        return MeasuredStep(
            index=step.number,
            duration_ns=step.duration_ns,
            counters=counters,
            resident_peak_bytes=peak_bytes,
            swaps=swaps,
            times=times,
        )

    def _records(self, counted: Numbers) -> tuple[Counters, Swaps, SpentTime | None]:
        """The records of a difference of two readings: what is unknown in either is unknown.

        Raises:
            ValueError: a counter ran backwards.
        """
        if counted.min() < 0:
            raise ValueError("a counter ran backwards: expected two readings of one device in order")
        unknown = (self.readings.ended == UNKNOWN) | (self.readings.begun == UNKNOWN)
        return records(np.where(unknown, UNKNOWN, counted))
