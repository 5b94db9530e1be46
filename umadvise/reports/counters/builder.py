"""From a device's readings and events, step by step, to a fault profile."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from umadvise.records.counters import (
    NO_SWAPS,
    WAITS,
    Chunks,
    Counters,
    Event,
    MemoryStats,
    Placed,
    ResidencyPeak,
    Sampling,
    SpentTime,
    Swaps,
    add,
    subtract,
    with_sample,
)
from umadvise.records.fault_profile import (
    MOST_RUNGS,
    MOST_UNDRIVEN,
    Exported,
    FaultProfile,
    MeasuredStep,
    PlannedSteps,
    RunEnvironment,
    RungChange,
    RungPrediction,
    Undriven,
)
from umadvise.records.names import clean_name
from umadvise.records.peaks import later
from umadvise.records.sampled_step import SampledStep
from umadvise.reports.counters.step_batch import FIRST_STEPS, LATEST_STEPS, StepBatch
from umadvise.reports.counters.step_picture import KnownStep, SeenStep, pictured
from umadvise.reports.counters.tables import StepAccumulator, TableSums
from umadvise.reports.counters.timeline import Service, pattern_of
from umadvise.reports.findings import examine


def _clean(environment: RunEnvironment) -> RunEnvironment:
    texts = {field: getattr(environment, field) for field in RunEnvironment.__struct_fields__}
    return msgspec.structs.replace(
        environment, **{field: clean_name(text) for field, text in texts.items() if isinstance(text, str)}
    )


def _waits_of(events: Sequence[Event]) -> Swaps:
    """How long ops waited, as counters of nothing else."""
    copy_ns = sum(event.duration_ns for event in events if event.kind == "wait_copy")
    room_ns = sum(event.duration_ns for event in events if event.kind == "wait_room")
    return msgspec.structs.replace(NO_SWAPS, wait_copy_ns=copy_ns, wait_room_ns=room_ns)


class ProfileBuilder:
    """Builds the fault profile of a run, in memory that does not grow with its length.

    For each step: `begin_step`, `add_events` as often as events are drained, `end_step`. A step that is begun and never
    ended (an exception, Ctrl-C) counts as outside of the steps. `build` may be called at any time, as often as wanted.
    """

    def __init__(
        self, environment: RunEnvironment, counters: Counters, swaps: Swaps = NO_SWAPS, *, sampled: bool = False
    ) -> None:
        """Starts a profile.

        Args:
            environment: what the run is made with.
            counters: the device's reading now; what it counted before is not part of the profile.
            swaps: what explicit swapping did until now.
            sampled: the device is not counted in every step: `end_step` is given the samples.
        """
        self._swaps_at_start = self._swaps_at_step = swaps
        self._times_at_step: SpentTime | None = None
        self._samples = sampled
        self._late: list[Event] = []  # of waits of a step that had ended by then
        self._environment = _clean(environment)
        self._at_start = counters
        self._at_step = counters
        self._step: StepAccumulator | None = None
        self._step_start_ns = 0
        self._last_index = -1
        self.forget_steps()

    def set_environment(self, environment: RunEnvironment) -> None:
        """Changes what the run is made with, as where a session of a script has rules of its own."""
        self._environment = _clean(environment)

    def forget_steps(self) -> None:
        """The steps that have ended were none: what they cost counts as outside of the steps."""
        self._swaps_in_steps = NO_SWAPS
        self._times: SpentTime | None = None
        self._driven = 0
        self._undriven: list[Undriven] = []
        self._sample: Counters | None = None
        self._sampled_steps = self._sampled_ns = 0
        self._in_steps: Counters | None = None
        self._step_count = 0
        self._duration_ns = 0
        self._first_steps: list[MeasuredStep] = []
        self._latest_steps: deque[MeasuredStep] = deque(maxlen=LATEST_STEPS)
        self._tables: TableSums | None = None
        self._faulting_step: tuple[int, int, int, list[Service]] | None = None
        self._memory: MemoryStats | None = None
        self._seen: SeenStep | None = None
        self._seen_timed = False

    def begin_step(
        self,
        index: int,
        start_ns: int,
        counters: Counters,
        swaps: Swaps = NO_SWAPS,
        times: SpentTime | None = None,
    ) -> None:
        """Begins step `index`, at `start_ns` of the events' clock, when time had gone into `times`.

        Raises:
            ValueError: the index is not above the last step's.
        """
        if index <= self._last_index:
            raise ValueError(f"step {index} follows step {self._last_index}: expected a larger index")
        self._step = StepAccumulator(index, waits_end_later=self._samples)
        self._step_start_ns = start_ns
        self._at_step = counters
        self._swaps_at_step = swaps.minus(_waits_of(self._late)) if self._late else swaps
        self._times_at_step = times
        self._step.add(self._late)
        self._late = []

    def add_events(self, events: Iterable[Event]) -> None:
        """Takes drained events; those of the open step count. Without any call the tables stay unknown.

        Of a device that runs ops later than they are called, waits of a step that has ended count for the next one.
        Of a device that is sampled they are known once a step was, or something was swapped.
        """
        if not self._samples:
            self._tables = self._tables or TableSums()
        if self._step is not None:
            self._step.add(events)
        elif self._samples:  # a GPU may come to them when the step is over: they count for the next one
            self._late += (event for event in events if event.kind in WAITS and event.step > 0)

    def end_step(
        self,
        end_ns: int,
        counters: Counters,
        memory: MemoryStats | None,
        residency: Iterable[ResidencyPeak] = (),
        sampled: SampledStep | None = None,
        swaps: Swaps = NO_SWAPS,
        times: SpentTime | None = None,
    ) -> MeasuredStep:
        """Ends the open step, and returns what it cost.

        Args:
            end_ns: now, by the events' clock.
            counters: the device's reading now.
            memory: its memory; with peaks of this step if they were reset when it began.
            residency: the peaks by role, tensor and op in this step; none where they are unknown.
            sampled: what a device that is sampled counted in this step; None where it was not sampled.
            swaps: what explicit swapping has done until now.
            times: what time has gone into until then; None where nobody can tell but, perhaps, the sample.

        Raises:
            ValueError: no step is open, or time or a counter ran backwards.
        """
        step = self._step
        if step is None or end_ns < self._step_start_ns:
            raise ValueError("no step is open, or it ends before it began")
        duration_ns = end_ns - self._step_start_ns
        counted = subtract(counters, self._at_step)
        if self._samples:
            counted = self._take_sample(counted, None if sampled is None else sampled.counters, duration_ns)
        self._step = None
        paging = sampled is not None or not self._samples
        swapped = NO_SWAPS if swaps == self._swaps_at_step else swaps.minus(self._swaps_at_step)
        if self._samples and (paging or swapped != NO_SWAPS):
            self._tables = self._tables or TableSums(sampled=True)
        if self._tables is not None:
            self._tables.add(step, paging=paging)
            self._tables.add_residency(residency)
        if step.services and paging:
            self._faulting_step = (step.index, self._step_start_ns, duration_ns, step.services)
        took = None if sampled is None else sampled.times
        if times is not None and self._times_at_step is not None:
            took = times.minus(self._times_at_step)
        self._sum_up(1, duration_ns, counted, swapped, took, memory)
        self._show(step, self._step_start_ns, duration_ns, timed=took is not None)
        cost = MeasuredStep(
            index=step.index,
            duration_ns=duration_ns,
            counters=counted,
            resident_peak_bytes=memory.resident_peak_bytes if memory else None,
            swaps=swapped,
            times=took,
        )
        self._keep(cost)
        return cost

    def add_steps(self, batch: StepBatch) -> None:
        """Takes steps in a row that have ended, and in which no event was recorded, of a device that is not sampled.

        Raises:
            ValueError: these came before the last one.
        """
        last = batch.steps[-1]
        if batch.steps[0].index <= self._last_index:
            raise ValueError(f"step {batch.steps[0].index} follows step {self._last_index}: expected a larger index")
        self._step = None
        self._tables = self._tables or TableSums()
        self._tables.add_residency(batch.residency)
        self._sum_up(batch.count, batch.duration_ns, batch.counters, batch.swaps, batch.times, batch.memory)
        self._show(StepAccumulator(last.index), batch.start_ns, last.duration_ns, timed=batch.times is not None)
        for step in batch.steps:
            self._keep(step)

    def _sum_up(
        self,
        count: int,
        duration_ns: int,
        counted: Counters,
        swapped: Swaps,
        took: SpentTime | None,
        memory: MemoryStats | None,
    ) -> None:
        self._step_count += count
        self._duration_ns += duration_ns
        self._in_steps = counted if self._in_steps is None else self._add(self._in_steps, counted)
        if swapped != NO_SWAPS:
            self._swaps_in_steps = self._swaps_in_steps.plus(swapped)
        if took is not None:
            self._times = took if self._times is None else self._times.plus(took)
        self._memory = memory if self._memory is None or memory is None else later(self._memory, memory)

    def _show(self, step: StepAccumulator, start_ns: int, duration_ns: int, *, timed: bool) -> None:
        if self._shows_more(step.seen, timed=timed):
            self._seen = replace(step.seen, start_ns=start_ns, duration_ns=duration_ns, tensor_of=step.tensor_of)
            self._seen_timed = timed

    def _shows_more(self, seen: SeenStep, *, timed: bool) -> bool:
        """Whether the step that ended last is a better picture: one in which something moved, and it is known when."""
        if self._seen is None or not self._seen.moves:
            return True
        return bool(seen.moves) and (timed or not self._seen_timed)

    def _take_sample(self, counted: Counters, sample: Counters | None, duration_ns: int) -> Counters:
        if sample is not None:
            self._sample = sample if self._sample is None else add(self._sample, sample)
            self._sampled_steps += 1
            self._sampled_ns += duration_ns
        return with_sample(counted, sample)

    def _add(self, before: Counters, counted: Counters) -> Counters:
        """All steps together; of a device that is sampled the sampled ones."""
        both = add(before, counted)
        return with_sample(both, self._sample) if self._samples else both

    def _keep(self, step: MeasuredStep) -> None:
        self._last_index = step.index
        if len(self._first_steps) < FIRST_STEPS:
            self._first_steps.append(step)
        else:
            self._latest_steps.append(step)

    def _kept_steps(self, *, swaps: bool) -> tuple[MeasuredStep, ...]:
        kept = (*self._first_steps, *self._latest_steps)
        return kept if swaps else tuple(msgspec.structs.replace(step, swaps=None) for step in kept)

    def note_plan(self, step: int, reason: str | None) -> None:
        """A step ended whose rung has plans: `reason` says why none drove it to its end; None: one did."""
        if reason is None:
            self._driven += 1
            return
        last = self._undriven[-1] if self._undriven else None
        if last is not None and last.last == step - 1 and last.reason == reason:
            self._undriven[-1] = Undriven(first=last.first, last=step, reason=reason)
            return
        self._undriven.append(Undriven(first=step, last=step, reason=clean_name(reason)))
        if len(self._undriven) > MOST_UNDRIVEN:  # the first and the latest
            del self._undriven[MOST_UNDRIVEN // 2]

    def build(
        self,
        counters: Counters,
        events_dropped: int,
        rungs: Sequence[RungChange] = (),
        sampling: Sampling | None = None,
        *,
        swaps: Swaps = NO_SWAPS,
        chunks: Chunks | None = None,
        placed: Sequence[Placed] = (),
        exported: Sequence[Exported] = (),
        predictions: Sequence[RungPrediction] = (),
        steps_are_found: bool = False,
        known: KnownStep | None = None,
    ) -> FaultProfile:
        """The profile so far, with its findings.

        Args:
            counters: the device's reading now.
            events_dropped: events lost because nobody drained in time (um_events_dropped).
            rungs: rungs of the ladder that the run has been on, each with its first step.
            sampling: steps that were sampled, and why others were not; None for a device that counts every step.
            swaps: what explicit swapping has done until now.
            chunks: size and use of the device memory that is for chunks; None where there are no chunks.
            placed: bytes by role, kind of memory and advice: where tensors lay.
            exported: tensors whose addresses somebody outside of torch holds.
            predictions: predicted time of a step on other rungs.
            steps_are_found: whether steps begin where ops come again, as nobody marks them.
            known: a recorded step, for the picture of the one that was seen last.
        """
        total = subtract(counters, self._at_start)
        if self._samples:  # nothing is sampled outside of steps
            total = with_sample(total, None)
        in_steps = self._in_steps or subtract(total, total)
        if sampling is not None:
            sampling = msgspec.structs.replace(sampling, steps=self._sampled_steps, duration_ns=self._sampled_ns)
        outside_swaps = swaps.minus(self._swaps_at_start).minus(self._swaps_in_steps)
        planned = PlannedSteps(driven=self._driven, undriven=tuple(self._undriven))
        profile = FaultProfile(
            environment=self._environment,
            step_count=self._step_count,
            duration_ns=self._duration_ns,
            counters=in_steps,
            outside=subtract(total, in_steps),
            events_dropped=events_dropped,
            memory=self._memory,
            steps=self._kept_steps(swaps=chunks is not None),
            tables=self._tables.tables() if self._tables else None,
            pattern=pattern_of(*self._faulting_step) if self._faulting_step else None,
            oversized_ops=self._tables.oversized_ops() if self._tables else (),
            findings=(),
            rungs=(*rungs[:1], *rungs[1:][-(MOST_RUNGS - 1) :]),
            sampling=sampling,
            swaps=self._swaps_in_steps if chunks else None,
            outside_swaps=outside_swaps if chunks else None,
            chunks=chunks,
            placed=tuple(placed),
            exported=tuple(exported),
            planned=planned if planned.driven or planned.undriven else None,
            predictions=tuple(predictions),
            steps_are_found=steps_are_found,
            times=self._times,
            picture=pictured(self._seen, known) if self._seen is not None else None,
        )
        return msgspec.structs.replace(profile, findings=examine(profile))
