"""The cycle of record, plan, drive, at the edges of steps. Within a step everything is native.

A step is recorded while nothing but the ops themselves decides what is on the device; from its trace a plan is made,
and the steps that follow are driven by it for as long as they are like it. A step that makes state which stays, as the
first one of a training does, is not like those that follow: the next one is recorded in its place.

When a step leaves its plan the next one is driven by the same plan again, and recorded beside that. If it follows, the
odd one was odd (an evaluation, the last batch of an epoch) and the plan stays in force; if it does not, its recording
is planned, or has been planned before. So an odd step costs its own plan and nothing else, and a step that has changed
for good costs two. After several steps in a row that left their plans, steps are recorded ever more rarely.
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
from umadvise.training.loop.rhythm import PATIENCE, Rhythm
from umadvise.training.loop.step_program import StepProgram
from umadvise.training.watch.trace_recorder import TraceRecorder

log = logging.getLogger("umadvise")


class RecordAgain:
    """A planner's answer that it has changed the step itself: the next step has to be recorded and planned."""


Planning = Callable[[RecordedStep], Plan | RecordAgain | None]


class PlanCycle:
    """Records, has planned and drives the steps of one session.

    Attributes:
        program: program that the device follows; None while there is none.
        step: steady step that was recorded last.
        followed: whether the last step was driven to its end.
        waited_ns: nanoseconds that the last step stood still for copies and for room.
        why_undriven: words that say why no plan drove the last step to its end; None: one did.
    """

    def __init__(self, device: _native.Device, recorder: TraceRecorder, make_plan: Planning | None) -> None:
        """Begins with nothing known.

        Args:
            device: device that runs the steps.
            recorder: recorder of its steps.
            make_plan: function that plans a recorded step; None records steps until one is steady, and drives none.
        """
        self._device = device
        self._recorder = recorder
        self._make_plan = make_plan
        self._rhythm = Rhythm()
        self._recording = 0  # number of the step that is recorded
        self._next: RecordedStep | None = None  # that is to be planned
        self._told_of_pause = False
        self.program: StepProgram | None = None
        self.step: RecordedStep | None = None
        self.followed = False
        self.waited_ns = 0
        self.why_undriven: str | None = None
        self._why_nothing = ""
        self.counters: SwapCounters = device.swap_counters()

    @property
    def recording(self) -> bool:
        """Whether the running step is recorded."""
        return self._recording > 0

    def change(self, make_plan: Planning | None, *, afresh: bool = False) -> None:
        """Sets what plans the steps, from the next one on.

        Args:
            make_plan: function that plans a recorded step; None drives none.
            afresh: whether to plan for a step that is still to be recorded, not for the steady one that is known.
        """
        self._make_plan = make_plan
        self._clear()
        self._rhythm.again()
        self._next = None if afresh else self._next or self.step
        if self._next is not None:
            self._rhythm.planned()

    def close(self) -> None:
        """Stops driving and recording steps."""
        if self._recording:
            self._recorder.stop_step()
        self._recording = 0
        self._clear()

    def _clear(self) -> None:
        if self.program is not None:
            self._device.clear_program()
        self.program = None
        self.followed = False

    # ---- edges ----------------------------------------------------------------------------------------------------

    def take_recording(self, *, typical: bool = True) -> RecordedStep | None:
        """Returns the step that has just ended if it was recorded and is one to plan for; call it before the next.

        Args:
            typical: whether, for all that the caller knows, the steps that follow are like it.
        """
        recorded = self._recorded()
        if recorded is None:
            return None
        if not (typical and recorded.is_steady) and self._rhythm.unsteady():
            self._clear()
            return None
        self._rhythm.planned()
        self.step = self._next = recorded
        return recorded

    def before_step(self, number: int) -> None:
        """Gives the device the plan for the step that begins, and has the step recorded if that is due."""
        chosen, self._next = self._next, None
        if chosen is not None:
            self._plan(chosen)
        elif self.program is not None and self.counters.program == ProgramStatus.DIVERGED:
            if self._rhythm.due:
                self._set(self.program.again(self._device.allocations()))
            else:
                self._clear()
        if self._rhythm.due:
            self._recorder.start_step()
            self._recording = number

    def _plan(self, step: RecordedStep) -> None:
        if self._make_plan is None:
            return
        plan = self._make_plan(step)
        if isinstance(plan, RecordAgain):
            self._clear()
            self._rhythm.again()
            return
        self._set(StepProgram(step.trace, plan, step.first_serials()).again(self._device.allocations()))

    def after_step(self, number: int, *, whole: bool = True) -> None:
        """Sees whether a step followed its plan; not `whole`: an exception ended it, and it says nothing of others."""
        recorded = self._recording == number
        if recorded:
            self._recorder.stop_step()
        waited_ns = self.counters.wait_copy_ns + self.counters.wait_room_ns
        self.counters = self._device.swap_counters()
        self.waited_ns = self.counters.wait_copy_ns + self.counters.wait_room_ns - waited_ns
        self.followed = whole and self.program is not None and self.counters.program == ProgramStatus.WAITING
        self.why_undriven = self._reason(whole=whole, recorded=recorded)
        if not whole:  # it is recorded again if it was, and driven again if it was
            self._rhythm.due = self._rhythm.due or recorded
            self._recording = 0
            self._rhythm.due = self._rhythm.due or self.counters.program == ProgramStatus.DIVERGED
        elif self.followed:
            self._rhythm.followed()
        elif self.program is not None:
            self._left(number)
        elif not recorded and self._make_plan is not None:
            self._rhythm.passed()

    def _reason(self, *, whole: bool, recorded: bool) -> str | None:
        if not whole:
            return "ended by an exception"
        if self.followed:
            assert self.program is not None
            if self.program.plan is not None:
                return None
            return "its planner had no plan: what is used furthest ahead left first"
        if self.program is not None:
            return f"left its plan at {self._difference()}"
        if recorded:
            return "recorded, to be planned for: no step like it was known"
        return self._why_nothing or "no step like it was known"

    def _difference(self) -> str:
        counters = self.counters
        expected = counters.diverged_expected or "the end of the step"
        found = counters.diverged_found or "the end of the step"
        same = " with other tensors" if expected == found else ""
        return f"op {counters.diverged_op}: expected {expected}, found {found}{same}"

    def _left(self, number: int) -> None:
        pause = self._rhythm.left()
        log.info("step %d left its plan at %s", number, self._difference())
        if pause is not None:
            self._why_nothing = f"{PATIENCE} steps in a row or more left their plans: recorded and planned now and then"
        if pause is not None and not self._told_of_pause:
            self._told_of_pause = True
            log.warning(
                "%d steps in a row left their plans: steps are recorded and planned only now and then from here on",
                PATIENCE,
            )

    # ---- recordings -----------------------------------------------------------------------------------------------

    def _recorded(self) -> RecordedStep | None:
        number, self._recording = self._recording, 0
        if not number or self.followed:
            return None
        try:
            return self._recorder.step(number)
        except (StateError, UsageError) as error:
            log.info("step %d is not planned for: %s", number, error)
            return None

    def _set(self, program: StepProgram) -> None:
        trace, plan = program.trace, program.plan
        names = np.array([_native.intern(text) for text in trace.strings], np.uint32)[trace.ops.name]
        try:
            self._device.set_program(trace, None if plan is None else plan.actions, names, program.serials)
        except NativeError as error:
            log.warning("the device does not take the plan: %s. Steps go on without one", error)
            self._why_nothing = f"the device does not take the plan: {error}"
            self._clear()
            return
        self.program = program
