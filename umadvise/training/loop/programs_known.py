"""The programs that a device knows: recorded steps, and plans for them."""

import logging
from dataclasses import replace

import numpy as np

from umadvise import _native
from umadvise.errors import NativeError
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records.plan import Plan
from umadvise.training.plans.planned_step import PlannedStep

log = logging.getLogger("umadvise")

MOST_PROGRAMS = 32
MOST_OPS = 1 << 19
"""Of all programs together; an op of a program takes about 300 bytes."""


class KnownPrograms:
    """Gives a device programs; those that no step was like for the longest time go where they are too many.

    Attributes:
        refusal: why the device did not take the last program; None: it did.
    """

    def __init__(self, device: _native.Device, h2d_bytes_per_s: int) -> None:
        """Begins with none.

        Args:
            device: device that follows them.
            h2d_bytes_per_s: speed of the link to the device in bytes a second; 0 where it is not known.
        """
        self._device = device
        self._h2d_bytes_per_s = h2d_bytes_per_s
        self._all: dict[int, PlannedStep] = {}  # by number; the last is what came last
        self._ran: set[int] = set()  # numbers of those whose steps ran here
        self.refusal: str | None = None

    def __len__(self) -> int:
        """How many there are."""
        return len(self._all)

    @property
    def that_ran(self) -> list[PlannedStep]:
        """Steps that ran, or that a step was like, with their plans: the last one is last."""
        return [each for number, each in self._all.items() if number in self._ran]

    @property
    def last(self) -> PlannedStep | None:
        """The one that the last step was like, or that was made since; None while there is none."""
        return next(reversed(self._all.values())) if self._all else None

    def number_of(self, step: RecordedStep) -> int:
        """Number of the program of a step, or of one of equal structure; 0: none."""
        same = (number for number, each in self._all.items() if each.step is step or each.step.digest == step.digest)
        return next(same, 0)

    def clear(self) -> None:
        """Has the device follow none."""
        if self._all:
            self._device.drop_program(0)
        self._all.clear()
        self._ran.clear()

    def came(self, number: int, *, whole: bool = True) -> None:
        """Takes note of the program that a step was like.

        Args:
            number: number of the program; 0: none.
            whole: whether every op of the step was in a program.
        """
        if number in self._all:
            self._all[number] = self._all.pop(number)
            self._ran |= {number} if whole else set()

    # ---- giving them to the device --------------------------------------------------------------------------------

    def add_recorded(
        self, step: RecordedStep, plan: Plan | None, *, ran: bool = True, instead_of: RecordedStep | None = None
    ) -> None:
        """Adds the program of the step that ended last, in the place of one of the same structure.

        Args:
            step: what was recorded of it.
            plan: plan of its trace; None: it has none.
            ran: whether it has run as it was recorded.
            instead_of: step whose program it replaces where no other is of its structure; None: that of no other.
        """
        replaces = self.number_of(step) or (0 if instead_of is None else self.number_of(instead_of))
        number = self._give(PlannedStep(step, plan).again(self._device.allocations()), replaces=replaces, is_last=True)
        self.came(number, whole=ran)

    def add_known(self, known: PlannedStep) -> None:
        """Adds the program of a step that has not run here; one of the same structure is kept instead."""
        if not self.number_of(known.step):
            self._give(known.again(self._device.allocations()))

    def expect(self, step: RecordedStep) -> None:
        """Has the next step begin with the program of a step, where the device does not know better."""
        if number := self.number_of(step):
            self._device.expect_program(number)

    def renew(self, step: RecordedStep) -> None:
        """Looks for what the program of a step finds at its beginning again: more of it may be there by now."""
        number = self.number_of(step)
        if not number:
            return
        program = self._all[number]
        renewed = program.again(self._device.allocations())
        if not np.array_equal(renewed.serials, program.serials):
            self._give(renewed, replaces=number)

    def improve(self, step: RecordedStep, plan: Plan) -> None:
        """Puts another plan in the place of the one that the program of this very step has."""
        for number, each in list(self._all.items()):
            if each.step is step:
                self._give(replace(each, plan=plan).again(self._device.allocations()), replaces=number)

    def has(self, step: RecordedStep) -> bool:
        """Whether one of them is of this very recorded step."""
        return any(each.step is step for each in self._all.values())

    def _give(self, program: PlannedStep, *, replaces: int = 0, is_last: bool = False) -> int:
        trace, plan = program.step.trace, program.plan
        names = np.array([_native.intern(text) for text in trace.strings], np.uint32)[trace.ops.name]
        try:
            number = self._device.add_program(
                trace,
                None if plan is None else plan.actions,
                names,
                program.serials,
                program.persistent,
                h2d_bytes_per_s=self._h2d_bytes_per_s,
                is_last=is_last,
                replaces=replaces,
            )
        except NativeError as error:
            log.warning("the device does not take the plan: %s. Steps go on without one", error)
            self.refusal = f"the device does not take the plan: {error}"
            return 0
        self.refusal = None
        self._all[number] = program
        while len(self._all) > 1 and self._are_too_many:
            oldest = next(iter(self._all))
            self._device.drop_program(oldest)
            self._ran.discard(oldest)
            del self._all[oldest]
        return number

    @property
    def _are_too_many(self) -> bool:
        ops = sum(len(each.step.trace.ops) for each in self._all.values())
        return len(self._all) > MOST_PROGRAMS or ops > MOST_OPS
