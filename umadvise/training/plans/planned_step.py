"""Steps with their plans that are known before they run, and which of them the next step may be."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from umadvise._native.abi import Allocation
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records.enums import Role
from umadvise.records.plan import Plan

_STATE = (Role.PARAMETER, Role.GRADIENT, Role.OPTIMIZER_STATE)
"""Roles of what a training keeps from step to step, under names that the next run gives it too."""


@dataclass(frozen=True, eq=False)
class PlannedStep:
    """A step of a training, and a plan for it.

    Attributes:
        step: the step, recorded when it ran in an earlier run or before it runs.
        plan: plan of its trace; None where none was made yet.
    """

    step: RecordedStep
    plan: Plan | None = None

    def state(self) -> Counter[tuple[int, str, int]]:
        """What the step finds at its beginning and uses of the training's state: role, name and bytes of each."""
        trace = self.step.trace
        storages, strings = trace.storages, trace.strings
        used = set(trace.accesses.storage.tolist())
        there = [each for each in (trace.births < 0).nonzero()[0].tolist() if each in used]
        rows = ((int(storages.role[each]), strings[storages.name[each]], int(storages.bytes[each])) for each in there)
        return Counter(row for row in rows if row[0] in _STATE)


def best_fit(steps: Iterable[PlannedStep], alive: Sequence[Allocation]) -> PlannedStep | None:
    """The step that comes next for all that its beginning tells; None where none fits.

    It uses no state that is not there. Of several such steps it is the one that uses the most: a training's first step,
    which makes the optimizer's state, would fit later on too. Of equal ones it is the last.

    Args:
        steps: steps to choose from, those that ran last at the end.
        alive: allocations of the device between two steps.
    """
    there = Counter((each.role, each.name, each.bytes) for each in alive)
    found: tuple[int, PlannedStep] | None = None
    for each in steps:
        state = each.state()
        fits = all(there[row] >= count for row, count in state.items())
        if fits and (found is None or state.total() >= found[0]):
            found = state.total(), each
    return None if found is None else found[1]
