"""Where steps begin and end, in which phase ops run, and what each step cost."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from umadvise import _native
from umadvise._native.abi import Status, TimeKind
from umadvise._native.readings import events_from, residency_from, tells_more_than_labels
from umadvise.errors import NativeError
from umadvise.records.counters import MemoryStats
from umadvise.records.enums import Phase
from umadvise.records.fault_profile import MeasuredStep
from umadvise.records.units import format_bytes, format_duration_ns
from umadvise.reports.counters.builder import ProfileBuilder
from umadvise.torch_seam import signals
from umadvise.torch_seam.closures import Arguments, closure_between
from umadvise.torch_seam.out_of_memory import out_of_memory
from umadvise.torch_seam.runtime import Runtime
from umadvise.torch_seam.traced import unless_traced
from umadvise.training.watch.device_readings import DeviceReader
from umadvise.training.watch.quiet_steps import QuietSteps
from umadvise.training.watch.refused_steps import RefusedSteps
from umadvise.training.watch.room_warnings import RoomWarnings

log = logging.getLogger("umadvise")


class LastStep(NamedTuple):
    """What is asked of each step: see `MeasuredStep`, and `MemoryStats` for the peak."""

    duration_ns: int
    op_count: int
    fault_groups: int | None
    fault_service_ns: int | None
    requested_peak_bytes: int


class StepClock:
    """Tells the core and the profile where steps begin and end.

    Attributes:
        step_count: number of steps that have begun.
        update_count: how often an optimizer has begun to step.
        in_step: whether a step has begun and not ended.
        steps_are_found: whether steps begin where ops come again, as nobody marks them.
        last_step: what the last whole step came to; None before its end.
        watcher: function that is told of each step when it has ended, with what memory there was; None: nobody.
        refusal: why the memory that there is cannot hold the step that ended last; None where it could, or was raised.
    """

    def __init__(self, runtime: Runtime, reader: DeviceReader, builder: ProfileBuilder, refused: RefusedSteps) -> None:
        """Starts: what happens from now on goes into a profile.

        Args:
            runtime: what is patched.
            reader: reader of its device.
            builder: builder of the profile.
            refused: what keeps refused steps from training.
        """
        self._runtime = runtime
        self._reader = reader
        self._builder = builder
        self._refused = refused
        self._warnings = RoomWarnings(runtime)
        self.in_step = False
        self.step_count = self.update_count = 0
        self.steps_are_found = False
        self.last_step: LastStep | None = None
        self.refusal: str | None = None
        self.watcher: Callable[[MeasuredStep, MemoryStats], None] | None = None
        self._quiet = QuietSteps(runtime.device, builder)
        self._approached = False
        self._is_open = False  # in the profile, too: until something tells that, a step is quiet
        self._handles = [
            register_optimizer_step_pre_hook(unless_traced(self._enter_optimizer)),
            register_optimizer_step_post_hook(unless_traced(self._leave_optimizer)),
        ]

    def stop(self) -> None:
        """Stops marking steps; what has happened until now is in the profile."""
        for handle in self._handles:
            handle.remove()
        _native.set_phase(Phase.NONE)
        if self.in_step:
            self.drop_step()
        device = self._runtime.device
        self._warnings.look(device.counters().oversized_ops or 0, device.memory_history().exports_ended)
        self._drain()
        self.flush()

    def flush(self) -> None:
        """Gives the profile all that is known of the steps that have ended."""
        self._quiet.flush()

    def _enter_optimizer(self, optimizer: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Arguments | None:
        self._refused.before_update(optimizer)
        self._drain(of_step=self.in_step)
        self.update_count += 1
        _native.set_phase(Phase.OPTIMIZER)
        return closure_between(
            arguments,
            named,
            leave=self._leave_optimizer,
            enter=lambda: _native.set_phase(Phase.OPTIMIZER),
            check=lambda: self._refused.before_update(optimizer),
        )

    def _leave_optimizer(self, *_: Any) -> None:
        _native.set_phase(Phase.FORWARD if self.in_step else Phase.NONE)

    def approach_step(self) -> None:
        """The next step's time begins: until `begin_step` it is spent on planning."""
        self._quiet.readings.approach()
        self._approached = True

    def begin_step(self) -> None:
        """A step begins now."""
        if not self._approached:
            self.approach_step()
        self._approached = self._is_open = False
        device = self._runtime.device
        if self._reader.sampler is not None:
            device.time_outside(TimeKind.OBSERVING)
            self._reader.sampler.before_step()
        self.step_count += 1
        self.in_step = True
        while not self._quiet.readings.begin(self.step_count):
            self._drain()
        device.reset_memory_peaks()
        _native.set_phase(Phase.FORWARD)
        if self._reader.sampler is not None:
            self._drain()  # of waits that this reading counts, and that were of ops before
        if self._reader.sampler is not None or self.watcher is not None or log.isEnabledFor(logging.DEBUG):
            self._open()
        device.time_outside(TimeKind.SCRIPT)

    def end_step(self) -> None:
        """The step ends now: when all is read that tells what it cost."""
        device, readings = self._runtime.device, self._quiet.readings
        if self._is_open:
            device.time_outside(TimeKind.OBSERVING)
        end_ns = device.now_ns() if self._is_open else 0
        self._leave_step()
        if readings.events or self._is_open or self._reader.sampler is not None:
            self._drain(of_step=True)
        elif self._runtime.emulated:
            signals.keep()
        if device.peaks_began_within() and not self._is_open:
            self._open()
        self._end_open(end_ns) if self._is_open else self._end_quiet()
        device.time_outside(TimeKind.SCRIPT)

    def _end_quiet(self) -> None:
        readings, counted = self._quiet.readings, self._quiet.sums.last
        duration_ns = self._quiet.end(self.step_count)
        self._warnings.look(readings.ended.item(readings.oversized_ops), readings.exports_ended)
        self.last_step = LastStep(
            duration_ns,
            counted.item(readings.op_count),
            counted.item(readings.fault_groups),
            counted.item(readings.fault_service_ns),
            readings.memory.item(readings.requested_peak),
        )

    def _end_open(self, end_ns: int) -> None:
        device = self._runtime.device
        sampled, sampler = None, self._reader.sampler
        if sampler is not None and (sampled := sampler.after_step()) is not None:
            end_ns = sampled.end_ns
        residency = residency_from(device.residency())
        counters, swaps = self._reader.at_edge()
        self._warnings.look(counters.oversized_ops or 0, device.memory_history().exports_ended)
        memory = device.memory()
        if sampler is not None:  # of waits that this reading counts, and of what the sample tells
            self._drain(of_step=True)
        read_ns, times = device.times()
        step = self._builder.end_step(
            end_ns if times is None else read_ns,
            counters,
            memory,
            residency,
            sampled,
            swaps,
            times,
        )
        counted = step.counters
        self.last_step = LastStep(
            step.duration_ns,
            counted.op_count or 0,
            counted.fault_groups,
            counted.fault_service_ns,
            memory.requested_peak_bytes,
        )
        if self.watcher is not None:
            self.watcher(step, memory)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s", in_words(step))

    def drop_step(self) -> None:
        """What has begun was no step, or is none any more: what follows counts as outside of the steps."""
        self._leave_step()
        self._runtime.device.time_outside(TimeKind.SCRIPT)

    def _leave_step(self) -> None:
        self.in_step = False
        _native.set_phase(Phase.NONE)
        self.refusal = None
        try:
            self._quiet.readings.end()
        except NativeError as error:
            if error.code != Status.OUT_OF_DEVICE_MEMORY:
                raise
            self.refusal = error.message
            self._quiet.readings.read()

    def forget_found(self) -> None:
        """Those who train mark steps from now on: what was found before, in an evaluation or a loader, was none."""
        if self.steps_are_found:
            self.flush()
            self._builder.forget_steps()
        self.steps_are_found = False

    def check(self) -> None:
        """Raises what the step that has ended was refused for; to be called when everybody knows that it has.

        Raises:
            torch.OutOfMemoryError: ops of it found no room on the device.
        """
        refusal, self.refusal = self.refusal, None
        if refusal is not None:
            raise out_of_memory(refusal)

    def note_plan(self, step: int, reason: str | None) -> None:
        """Takes note of a step that a plan was to drive, and whether it did.

        Args:
            step: number of the step.
            reason: why no plan drove it to its end; None where one did.
        """
        self._builder.note_plan(step, reason)

    def _open(self) -> None:
        """The step that runs is none of the quiet ones."""
        self.flush()
        counters, swaps, times = self._quiet.begun()
        self._builder.begin_step(self.step_count, self._quiet.readings.start_ns, counters, swaps, times)
        self._is_open = True

    def _drain(self, *, of_step: bool = False) -> None:
        if of_step and self._runtime.emulated:
            signals.keep()
        packed = self._runtime.device.drain_events()
        tells = self._is_open or self._reader.sampler is not None or tells_more_than_labels(packed)
        if of_step and tells and not self._is_open:
            self._open()
        self._builder.add_events(events_from(packed) if packed and tells else ())

    @property
    def faults_are_known(self) -> bool:
        """Whether the last step says what faults cost, or no step does: where some are sampled, the others do not."""
        known = self.last_step is not None and self.last_step.fault_service_ns is not None
        return known or self._reader.sampler is None or not self._reader.sampler.works()


def in_words(step: MeasuredStep) -> str:
    """What a step cost, in a line."""
    counted = step.counters
    service, groups = format_duration_ns(counted.fault_service_ns), counted.fault_groups
    parts = [f"step {step.index} took {format_duration_ns(step.duration_ns)}"]
    parts.append(f"{'-' if groups is None else groups} fault groups ({service})")
    if step.swaps is not None and (moved := step.swaps.swap_in_bytes + step.swaps.swap_out_bytes):
        waits = format_duration_ns(step.swaps.wait_copy_ns + step.swaps.wait_room_ns)
        parts.append(f"{format_bytes(moved)} swapped ({waits} of waits)")
    return ", ".join(parts)
