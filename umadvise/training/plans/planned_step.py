"""Steps with their plans, as the device follows them op by op, and which of them the next step may be."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from umadvise._native.abi import Allocation
from umadvise.recording.heirs import heirs
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records.enums import Role
from umadvise.records.plan import Plan

_PERSISTENT = (Role.PARAMETER, Role.OPTIMIZER_STATE)
_STATE = (Role.PARAMETER, Role.GRADIENT, Role.OPTIMIZER_STATE)
"""Roles of what a training keeps from step to step, under names that the next run gives it too."""


@dataclass(frozen=True, eq=False)
class PlannedStep:
    """A step of a training, and a plan for it.

    Attributes:
        step: the step, recorded when it ran or before it runs.
        plan: plan of its trace; None where none was made yet, and only the order of uses is known.
        bound: array with the serial number of the allocation that each storage is when the next step begins, 0 for
            those that are still to be made. None: those that the recording says.
    """

    step: RecordedStep
    plan: Plan | None = None
    bound: NDArray[np.uint64] | None = None

    @property
    def serials(self) -> NDArray[np.uint64]:
        """Serial number of the allocation that each storage is when the next step begins; 0: it is still to be made."""
        return self.step.first_serials() if self.bound is None else self.bound

    @property
    def persistent(self) -> NDArray[np.uint8]:
        """1 for each storage that is the same allocation in every step: parameters and the optimizer's state."""
        trace = self.step.trace
        same = (trace.continued_from == np.arange(len(trace.storages))) & (self.serials > 0)
        found: NDArray[np.uint8] = (np.isin(trace.storages.role, _PERSISTENT) & same).astype(np.uint8)
        return found

    def again(self, alive: Sequence[Allocation]) -> "PlannedStep":
        """The same plan for a step that begins now, after one that did not follow it.

        A storage is the allocation that it was, where that lives, else the oldest one that is like it: of its role,
        name and size, or else of its role and size. A wrong guess shows in the op that is given another one.

        Args:
            alive: allocations of the device between two steps.
        """
        trace, serials = self.step.trace, self.serials
        living = {each.serial for each in alive}
        kept = np.isin(serials, np.array(sorted(living), np.uint64))
        serials = np.where(kept, serials, 0).astype(np.uint64)
        wanted = np.flatnonzero((trace.births < 0) & (serials == 0)).tolist()
        taken, storages, strings = set(serials.tolist()), trace.storages, trace.strings
        free = sorted((each for each in alive if each.serial not in taken), key=lambda each: each.serial)
        gone = [(int(storages.role[each]), int(storages.bytes[each]), strings[storages.name[each]]) for each in wanted]
        for place, heir in heirs(gone, [(each.role, each.bytes, each.name) for each in free]).items():
            serials[wanted[place]] = free[heir].serial
        return replace(self, bound=serials)

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
