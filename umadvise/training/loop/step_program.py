"""A step and its plan, as the device follows them op by op."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from umadvise._native.abi import Allocation
from umadvise.recording.heirs import heirs
from umadvise.records.enums import Role
from umadvise.records.plan import Plan
from umadvise.records.trace import Trace

_STATE = (Role.PARAMETER, Role.OPTIMIZER_STATE)


@dataclass(frozen=True, eq=False)
class StepProgram:
    """A step and its plan, as the device follows them.

    Attributes:
        trace: trace of the step.
        plan: plan of the step; None where only the order of uses is known.
        serials: allocation that each storage is when the next step begins; 0 for those that are still to be made.
    """

    trace: Trace
    plan: Plan | None
    serials: NDArray[np.uint64]

    @property
    def states(self) -> NDArray[np.uint8]:
        """1 for each storage that is the same allocation in every step: parameters and the optimizer's state."""
        same = self.trace.continued_from == np.arange(len(self.trace.storages))
        state: NDArray[np.uint8] = (np.isin(self.trace.storages.role, _STATE) & same & (self.serials > 0)).astype(
            np.uint8
        )
        return state

    def again(self, alive: Sequence[Allocation]) -> "StepProgram":
        """The same program for a step that begins now, after one that did not follow it.

        A storage is the allocation that it was, where that lives, else the oldest one that is like it: of its role,
        name and size, or else of its role and size. A wrong guess shows in the op that is given another one.
        """
        living = {each.serial for each in alive}
        kept = np.isin(self.serials, np.array(sorted(living), np.uint64))
        serials = np.where(kept, self.serials, 0).astype(np.uint64)
        wanted = np.flatnonzero((self.trace.births < 0) & (serials == 0)).tolist()
        taken, storages, strings = set(serials.tolist()), self.trace.storages, self.trace.strings
        free = sorted((each for each in alive if each.serial not in taken), key=lambda each: each.serial)
        gone = [(int(storages.role[each]), int(storages.bytes[each]), strings[storages.name[each]]) for each in wanted]
        for place, heir in heirs(gone, [(each.role, each.bytes, each.name) for each in free]).items():
            serials[wanted[place]] = free[heir].serial
        return replace(self, serials=serials)
