"""The cycle of record, plan, drive, at the edges of steps. Within a step everything is native.

A step that no program knows is recorded and planned, and becomes one more program that the device follows. The first
step of a training makes state that stays, and so is not like those that follow: the next one is recorded in its place.
A device finds by itself which of its programs a step is like, and where in them it is, whatever its sizes
(csrc/engine/follower.h). So a step is recorded only if its ops come in an order that no program has, or if it is larger
or much smaller than those that have it. Programs are limited in number and size: those that no step was like for the
longest time go.
"""

import logging
from collections.abc import Callable

import numpy as np

from umadvise import _native
from umadvise._native.abi import ProgramStatus
from umadvise.errors import NativeError, StateError, UsageError
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records.counters import SwapCounters
from umadvise.records.plan import Plan
from umadvise.training.loop.rhythm import Rhythm
from umadvise.training.loop.step_program import StepProgram
from umadvise.training.watch.trace_recorder import TraceRecorder

log = logging.getLogger("umadvise")

MOST_PROGRAMS = 32
MOST_OPS = 1 << 19
"""Of all programs together; an op of a program takes about 300 bytes."""
_LARGER, _SMALLER = 1.02, 0.93
"""What a step's ops may make, beside what those of its program do, and be the same step."""
_SMALL_BYTES = 1 << 20


class RecordAgain:
    """A planner's answer that it has changed the step itself: the next step has to be recorded and planned."""


Planning = Callable[[RecordedStep], Plan | RecordAgain | None]


class PlanCycle:
    """Records, has planned and drives the steps of one session.

    Attributes:
        followed: whether plans drove all of the last step.
        known: whether the last step was one that had been recorded, in its ops and about in its sizes.
        waited_ns: nanoseconds that the last step stood still for copies and for room.
        why_undriven: words that say why no plan drove the last step to its end; None: one did.
        counters: what the device had counted when the last step ended.
    """

    def __init__(
        self,
        device: _native.Device,
        recorder: TraceRecorder,
        make_plan: Planning | None,
        h2d_bytes_per_s: int = 0,
    ) -> None:
        """Begins with nothing known.

        Args:
            device: device that runs the steps.
            recorder: recorder of its steps.
            make_plan: function that plans a recorded step; None records steps until one is steady, and drives none.
            h2d_bytes_per_s: speed of the link to the device in bytes a second; 0 where it is not known.
        """
        self._device = device
        self._recorder = recorder
        self._make_plan = make_plan
        self._h2d_bytes_per_s = h2d_bytes_per_s
        self._rhythm = Rhythm()
        self._recording = 0  # number of the step that is recorded
        self._next: RecordedStep | None = None  # that is to be planned
        self._known: dict[int, tuple[StepProgram, RecordedStep]] = {}  # by number; the last is what came last
        self._last_step: RecordedStep | None = None
        self._told_of_pause = False
        self.followed = self.known = False
        self.waited_ns = 0
        self.why_undriven: str | None = None
        self._why_nothing = ""
        self.counters: SwapCounters = device.swap_counters()

    @property
    def recording(self) -> bool:
        """Whether the running step is recorded."""
        return self._recording > 0

    @property
    def program(self) -> StepProgram | None:
        """The program that the last step was like, or that was made since; None while there is none."""
        return next(reversed(self._known.values()))[0] if self._known else None

    @property
    def step(self) -> RecordedStep | None:
        """The recorded step that `program` is of, or else the steady one that was recorded last."""
        return next(reversed(self._known.values()))[1] if self._known else self._last_step

    def change(self, make_plan: Planning | None, *, afresh: bool = False) -> None:
        """Sets what plans the steps, from the next one on.

        Args:
            make_plan: function that plans a recorded step; None drives none.
            afresh: whether to plan for a step that is still to be recorded, not for the steady one that is known.
        """
        step = self.step
        self._make_plan = make_plan
        self._clear()
        self._rhythm.again()
        self._next = None if afresh else self._next or step
        if self._next is not None:
            self._rhythm.planned()

    def close(self) -> None:
        """Stops driving and recording steps."""
        if self._recording:
            self._recorder.stop_step()
        self._recording = 0
        self._clear()

    def _clear(self) -> None:
        if self._known:
            self._device.drop_program(0)
        self._known.clear()
        self.followed = self.known = False

    # ---- edges ----------------------------------------------------------------------------------------------------

    def take_recording(self, *, typical: bool = True) -> RecordedStep | None:
        """Returns the step that has just ended if it was recorded and is one to plan for; call it before the next.

        Args:
            typical: whether, for all that the caller knows, the steps that follow are like it.
        """
        recorded = self._recorded()
        if recorded is None:
            return None
        first = not self._known and not recorded.is_steady
        if (first or not typical) and self._rhythm.unsteady():
            return None
        self._note_pause(self._rhythm.planned())
        self._last_step = self._next = recorded
        return recorded

    def before_step(self, number: int) -> None:
        """Gives the device the plan for a step that was recorded, and has the one that begins recorded if due."""
        chosen, self._next = self._next, None
        if chosen is not None and self._make_plan is not None:
            self._plan(chosen, self._make_plan)
        if self._rhythm.due:
            self._recorder.start_step()
            self._recording = number

    def _plan(self, step: RecordedStep, make_plan: Planning) -> None:
        plan = make_plan(step)
        if isinstance(plan, RecordAgain):
            self._clear()
            self._rhythm.again()
            return
        self._add(StepProgram(step.trace, plan, step.first_serials()).again(self._device.allocations()), step)

    def after_step(self, number: int, *, whole: bool = True) -> None:
        """Sees whether plans drove a step; not `whole`: an exception ended it, and it says nothing of others."""
        recorded = self._recording == number
        if recorded:
            self._recorder.stop_step()
        waited_ns = self.counters.wait_copy_ns + self.counters.wait_room_ns
        self.counters = counters = self._device.swap_counters()
        self.waited_ns = counters.wait_copy_ns + counters.wait_room_ns - waited_ns
        if counters.program_number in self._known:
            self._known[counters.program_number] = self._known.pop(counters.program_number)
        self.followed = whole and bool(self._known) and counters.unknown_ops == 0
        self.known = self.followed and counters.program == ProgramStatus.WAITING and _of_its_size(counters)
        self.why_undriven = self._reason(whole=whole, recorded=recorded)
        if not whole:
            self._recording = 0  # it is recorded again if it was
        elif self.known:
            self._rhythm.known()
        elif not recorded and (self._make_plan is not None or not self._last_step):
            self._rhythm.unknown()
        if whole and self._known and not self.followed:
            log.info("step %d: %s", number, self.why_undriven)

    def _reason(self, *, whole: bool, recorded: bool) -> str | None:
        if not whole:
            return "ended by an exception"
        if self.program is None:
            if recorded:
                return "recorded, to be planned for: no step like it was known"
            return self._why_nothing or "no step like it was known"
        counters = self.counters
        if not self.followed:
            left = f"left its plan at {self._difference()}"
            return f"{left}: {counters.unknown_ops} of {counters.step_ops} ops were in none"
        if self.program.plan is None:
            return "its planner had no plan: what is used furthest ahead left first"
        return None

    def _difference(self) -> str:
        counters = self.counters
        expected = counters.diverged_expected or "the end of the step"
        found = counters.diverged_found or "the end of the step"
        same = " with other tensors" if expected == found else ""
        return f"op {counters.diverged_op}: expected {expected}, found {found}{same}"

    def _note_pause(self, pause: int | None) -> None:
        if pause is None or self._told_of_pause:
            return
        self._told_of_pause = True
        log.warning("steps are never alike: they are recorded and planned only now and then from here on")

    # ---- recordings and programs ----------------------------------------------------------------------------------

    def _recorded(self) -> RecordedStep | None:
        number, self._recording = self._recording, 0
        if not number or self.known:
            return None
        try:
            return self._recorder.step(number)
        except (StateError, UsageError) as error:
            log.info("step %d is not planned for: %s", number, error)
            return None

    def _add(self, program: StepProgram, step: RecordedStep) -> None:
        trace, plan = program.trace, program.plan
        names = np.array([_native.intern(text) for text in trace.strings], np.uint32)[trace.ops.name]
        try:
            number = self._device.add_program(
                trace,
                None if plan is None else plan.actions,
                names,
                program.serials,
                program.states,
                h2d_bytes_per_s=self._h2d_bytes_per_s,
                is_last=True,
            )
        except NativeError as error:
            log.warning("the device does not take the plan: %s. Steps go on without one", error)
            self._why_nothing = f"the device does not take the plan: {error}"
            return
        self._known[number] = program, step
        while len(self._known) > 1 and self._are_too_many:
            oldest = next(iter(self._known))
            self._device.drop_program(oldest)
            del self._known[oldest]

    @property
    def _are_too_many(self) -> bool:
        ops = sum(len(step.trace.ops) for _, step in self._known.values())
        return len(self._known) > MOST_PROGRAMS or ops > MOST_OPS


def _of_its_size(counters: SwapCounters) -> bool:
    """Whether a step made about as much as the program that it was like."""
    made, programs = counters.made_bytes, counters.program_made_bytes
    return abs(made - programs) <= _SMALL_BYTES or _SMALLER * programs <= made <= _LARGER * programs
