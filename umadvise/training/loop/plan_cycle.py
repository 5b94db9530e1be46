"""The cycle of record, plan, drive, at the edges of steps. Within a step everything is native.

A step that no program knows is recorded and planned, and becomes one more program that the device follows. The first
step of a training makes state that stays, and so is not like those that follow: what follows it is told from it, less
what happens only once, and drives the second step, which is recorded in its place.
A device finds by itself which of its programs a step is like, and where in them it is, whatever its sizes
(csrc/engine/matching/plan_executor.h). So a step is recorded only if its ops come in an order that no program has, or
if it is larger or much smaller than those that have it.

Steps of an earlier run, or that were recorded before they run, are programs from the beginning. Until a step of theirs
has come twice in a row, the one whose state is there is expected next; from then on the device knows what follows what.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from umadvise import _native
from umadvise._native.abi import ProgramStatus
from umadvise._native.edges import swap_numbers
from umadvise._native.structures import read
from umadvise.errors import StateError, UsageError
from umadvise.recording.recorded_step import RecordedStep
from umadvise.recording.second_step import less_what_happens_once
from umadvise.records.counters import SwapCounters
from umadvise.records.plan import Plan
from umadvise.training.loop.expected_steps import ExpectedSteps
from umadvise.training.loop.programs_known import KnownPrograms
from umadvise.training.loop.rhythm import Rhythm
from umadvise.training.plans.planned_step import PlannedStep
from umadvise.training.watch.trace_recorder import TraceRecorder

log = logging.getLogger("umadvise")

_LARGER, _SMALLER = 1.02, 0.93
"""What a step's ops may make, beside what those of its program do, and be the same step."""
_LARGER_SHARE = 0.02
"""Likewise, in parts of the device memory for chunks: a generated token makes little beside the weights it reads."""
_SMALL_BYTES = 1 << 19
_OTHER_OPS = 1 / 8
"""Part of a told step's ops that may be missing, or be added, where it comes."""


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
        self._rhythm = Rhythm()
        self._recording = 0  # number of the step that is recorded
        self._next: RecordedStep | None = None  # that is to be planned
        self._programs = KnownPrograms(device, h2d_bytes_per_s)
        self._expected = ExpectedSteps(device, self._programs)
        self._first_steps: list[PlannedStep] = []  # that made state, and were not planned
        self._told: list[RecordedStep] = []  # that did not run, or not so, each until one like it was recorded
        self._last_step: RecordedStep | None = None
        self._told_of_pause = False
        self._last_was_whole = True
        self.followed = self.known = False
        self.waited_ns = 0
        self.why_undriven: str | None = None
        self._numbers = swap_numbers(device)

    @property
    def counters(self) -> SwapCounters:
        """What the device had counted when the last step ended."""
        return read(SwapCounters, self._numbers)

    @property
    def laid_out(self) -> bool:
        """Whether chunks are laid out for the steps. Until then they are mapped anew, which takes a GPU longer."""
        return bool(self._numbers.laid_out)

    @property
    def recording(self) -> bool:
        """Whether the running step is recorded."""
        return self._recording > 0

    @property
    def program(self) -> PlannedStep | None:
        """The program that the last step was like, or that was made since; None while there is none."""
        return self._programs.last

    @property
    def step(self) -> RecordedStep | None:
        """The recorded step that `program` is of, or else the steady one that was recorded last."""
        return self._last_step if self._programs.last is None else self._programs.last.step

    @property
    def kept(self) -> list[PlannedStep]:
        """Steps that are worth knowing in the next run: the last ones come last."""
        return list({each.step.digest: each for each in (*self._first_steps, *self._programs.that_ran)}.values())

    def change(self, make_plan: Planning | None, *, afresh: bool = False) -> None:
        """Sets what plans the steps, from the next one on.

        Args:
            make_plan: function that plans a recorded step; None drives none.
            afresh: whether to plan for a step that is still to be recorded, not for the steady one that is known.
        """
        step = self.step
        self._make_plan = make_plan
        self._begin_again()
        self._next = None if afresh else self._next or step
        if self._next is not None:
            self._rhythm.planned()
        if self._next is not None and make_plan is not None:
            self._told.append(self._next)  # what small tensors take is another thing where it will run

    def close(self) -> None:
        """Stops driving and recording steps."""
        if self._recording:
            self._recorder.stop_step()
        self._recording = 0
        self._last_step = self.step  # reports are made of it later, too
        self._clear()

    def _begin_again(self) -> None:
        self._clear()
        self._told.clear()
        self._rhythm.again()

    def _clear(self) -> None:
        self._programs.clear()
        self._expected.clear()
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
        first = not self._programs.that_ran and not recorded.is_steady
        if first and typical:
            self._first_steps.append(PlannedStep(recorded))
            self._tell(recorded)
        if (first or not typical) and self._rhythm.unsteady():
            return None
        if self._rhythm.planned() is not None and not self._told_of_pause:
            self._told_of_pause = True
            log.info("steps are never alike: they are recorded and planned only now and then from here on")
        self._rhythm.due = self._rhythm.due and self._make_plan is not None
        if first and typical and self._next is not None:
            return None  # what follows it is told better than by itself
        self._last_step = self._next = recorded
        return recorded

    def before_step(self, number: int) -> None:
        """Has the step that was recorded planned and followed, and the one that begins recorded if that is due."""
        chosen, self._next = self._next, None
        if chosen is not None and self._make_plan is not None:
            self._plan(chosen, self._make_plan)
        else:
            self._expected.before_step(last_came=self.known or not self._last_was_whole)
        if self._rhythm.due:
            self._recorder.start_step()
            self._recording = number

    def _plan(self, step: RecordedStep, make_plan: Planning) -> None:
        plan = make_plan(step)
        if isinstance(plan, RecordAgain):
            self._begin_again()
        else:
            told, ran = self._told_that_came, step not in self._told
            self._programs.add_recorded(step, plan, ran=ran, instead_of=told)
            if ran and told is not None:
                self._told.remove(told)
            if self._programs.refusal is not None:
                self._make_plan = None

    def _tell(self, first: RecordedStep) -> None:
        """Has the step planned that follows one which makes state, where no earlier run has told it."""
        self._next = less_what_happens_once(first) if self._make_plan is not None and not self._expected.any else None
        if self._next is not None:
            self._told.append(self._next)

    @property
    def _told_that_came(self) -> RecordedStep | None:
        """The told step that the last one was for the most part."""
        counters = self._numbers
        if 2 * counters.unknown_ops >= counters.step_ops:
            return None
        for told in self._told:
            of_its_length = abs(counters.step_ops - len(told.trace.ops)) <= _OTHER_OPS * len(told.trace.ops)
            if of_its_length and 0 < self._programs.number_of(told) == counters.program_number:
                return told
        return None

    def expect(self, steps: Iterable[PlannedStep]) -> None:
        """Takes steps that are known before any has run; call it between two steps.

        Args:
            steps: planned steps, recorded in an earlier run, or before they run.
        """
        if self._make_plan is not None:
            self._expected.add(steps)
        if len(self._programs):
            self._rhythm.expected()

    def improve(self, step: RecordedStep, plan: Plan | RecordAgain) -> None:
        """Takes a better plan of a step that was planned before; call it between two steps.

        Args:
            step: recorded step, as it was given to what plans the steps.
            plan: plan of its trace that takes over from the next step on.
        """
        if not isinstance(plan, RecordAgain):
            self._programs.improve(step, plan)
        elif self._programs.has(step):
            self._recording = 0  # of a step as it was until now
            self._begin_again()

    def after_step(self, number: int, *, whole: bool = True) -> None:
        """Sees whether plans drove a step; not `whole`: an exception ended it, and it says nothing of others."""
        self._last_was_whole = whole
        recorded = self._recording == number
        if recorded:
            self._recorder.stop_step()
        waited_ns = self._numbers.wait_copy_ns + self._numbers.wait_room_ns
        self._numbers = counters = swap_numbers(self._device)
        self.waited_ns = counters.wait_copy_ns + counters.wait_room_ns - waited_ns
        self._programs.came(counters.program_number, whole=counters.unknown_ops == 0)
        self.followed = whole and len(self._programs) > 0 and counters.unknown_ops == 0
        self.known = self.followed and counters.program == ProgramStatus.WAITING and _of_its_size(counters)
        self.why_undriven = self._reason(whole=whole, recorded=recorded)
        if not whole:
            self._recording = 0  # it is recorded again if it was
        elif self.known:
            self._rhythm.known()
        elif not recorded and (self._make_plan is not None or not self._last_step):
            self._rhythm.unknown()
        if whole and len(self._programs) and not self.followed:
            log.info("step %d %s", number, self.why_undriven)

    def _reason(self, *, whole: bool, recorded: bool) -> str | None:
        if not whole:
            return "ended by an exception"
        program = self.program
        if program is None:
            if recorded:
                return "recorded, to be planned for: no step like it was known"
            return self._programs.refusal or "no step like it was known"
        counters = self._numbers
        if not self.followed:
            left = f"left its plan at {self._difference()}"
            return f"{left}: {counters.unknown_ops} of {counters.step_ops} ops were in none"
        if program.plan is None:
            return "its planner had no plan: what is used furthest ahead left first"
        return None

    def _difference(self) -> str:
        counters = self.counters
        expected = counters.diverged_expected or "the end of the step"
        found = counters.diverged_found or "the end of the step"
        same = " with other tensors" if expected == found else ""
        return f"op {counters.diverged_op}: expected {expected}, found {found}{same}"

    # ---- recordings -----------------------------------------------------------------------------------------------

    def _recorded(self) -> RecordedStep | None:
        number, self._recording = self._recording, 0
        if not number or (self.known and self._told_that_came is None):
            return None
        try:
            return self._recorder.step(number)
        except (StateError, UsageError) as error:
            log.info("step %d is not planned for: %s", number, error)
            return None


def _of_its_size(counters: Any) -> bool:
    """Whether a step made about as much as the program that it was like."""
    made, programs = counters.made_bytes, counters.program_made_bytes
    small = max(_SMALL_BYTES, int(_LARGER_SHARE * counters.budget_bytes))
    return bool(abs(made - programs) <= small or _SMALLER * programs <= made <= _LARGER * programs)
