"""Steps in which no event was recorded, as one sum: most are, and so an edge between two of them costs little."""

from collections import deque
from typing import NamedTuple

import numpy as np

from umadvise import _native
from umadvise._native.abi import UNKNOWN
from umadvise._native.edges import EdgeReadings, Numbers, memory_of, peaks_of_memory
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
    counted: Numbers
    resident_peak_bytes: int


class QuietSteps:
    """Reads an emulated device at the edges of steps, and adds up what the steps cost, for a profile to take.

    Attributes:
        readings: what the device said last.
        start_ns: begin of the last step, by the device's clock.
    """

    def __init__(self, device: _native.Device, builder: ProfileBuilder) -> None:
        """No step has begun."""
        self.readings = EdgeReadings(device)
        self._builder = builder
        self._are_peaks = peaks_of_memory()
        self.start_ns = 0
        self._begun = self.readings.totals.copy()
        self._forget()

    def _forget(self) -> None:
        self._count = self._duration_ns = 0
        self._sum = np.zeros_like(self._begun)
        self._first: list[_Quiet] = []
        self._latest: deque[_Quiet] = deque(maxlen=LATEST_STEPS)
        self._peaks = np.full_like(self.readings.memory, UNKNOWN)
        self._subjects = b""

    # ---- edges ----------------------------------------------------------------------------------------------------

    def approach(self) -> None:
        """The next step's time begins."""
        self.readings.approach()
        self.start_ns = self.readings.at_ns

    def begin(self, number: int) -> bool:
        """Begins the step; what the times were when its time began is still in the readings.

        Args:
            number: number of the step.

        Returns:
            Whether it has begun: not while events wait to be drained.
        """
        begun = self.readings.begin(number)
        self._begun[:] = self.readings.totals
        return begun

    def begun(self) -> tuple[Counters, Swaps, SpentTime | None]:
        """What the device had counted when the step began."""
        return self.readings.records(self._begun)

    def end(self, index: int) -> tuple[int, Numbers]:
        """No event came in the step that was read; returns its length in nanoseconds, and what was counted in it.

        Args:
            index: number of the step.
        """
        readings = self.readings
        self._add_residency(readings.residency())
        counted, duration_ns = readings.totals - self._begun, readings.at_ns - self.start_ns
        self._count += 1
        self._duration_ns += duration_ns
        self._sum += counted
        np.maximum(self._peaks, readings.memory, out=self._peaks)
        step = _Quiet(index, self.start_ns, duration_ns, counted, readings.memory.item(readings.resident_peak))
        (self._first if len(self._first) < FIRST_STEPS else self._latest).append(step)
        return duration_ns, counted

    def _add_residency(self, rows: Numbers) -> None:
        subjects = rows[:, 1:-1].tobytes()
        if subjects != self._subjects:
            self.flush()
            self._subjects, self._residency = subjects, rows.copy()
        else:
            np.maximum(self._residency[:, 0], rows[:, 0], out=self._residency[:, 0])
            self._residency[:, -1] += rows[:, -1]

    # ---- what it came to ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Gives the profile the steps that it has not had."""
        if self._count:
            self._builder.add_steps(self._batch())
        self._forget()

    def _batch(self) -> StepBatch:
        counters, swaps, times = self._records(self._sum)
        memory = np.where(self._are_peaks, self._peaks, self.readings.memory)
        steps = *self._first, *self._latest
        return StepBatch(
            steps=[self._measured(each) for each in steps],
            count=self._count,
            start_ns=steps[-1].start_ns,
            duration_ns=self._duration_ns,
            counters=counters,
            swaps=swaps,
            times=times,
            memory=memory_of(memory),
            residency=list(residency_from(self._residency.tobytes())),
        )

    def _measured(self, step: _Quiet) -> MeasuredStep:
        counters, swaps, times = self._records(step.counted)
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
        unknown = (self.readings.totals == UNKNOWN) | (self._begun == UNKNOWN)
        return self.readings.records(np.where(unknown, UNKNOWN, counted))
