"""A step and its plan, as the device follows them op by op."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from umadvise._native.abi import Allocation
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records.plan import Plan
from umadvise.records.trace import Trace


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

    @classmethod
    def of(cls, step: RecordedStep, plan: Plan | None) -> "StepProgram":
        """The program of a step, from the one on that follows the recorded one."""
        return cls(step.trace, plan, step.first_serials())

    def again(self, alive: Sequence[Allocation]) -> "StepProgram":
        """The same program for a step that begins now, after one that did not follow it.

        A storage is the allocation that it was, where that lives, else the oldest one that is like it: of its role,
        name and size, or else of its role and size. A wrong guess shows in the op that is given another one.
        """
        living = {each.serial for each in alive}
        kept = np.isin(self.serials, np.array(sorted(living), np.uint64))
        serials = np.where(kept, self.serials, 0).astype(np.uint64)
        wanted = np.flatnonzero((self.trace.births < 0) & (serials == 0)).tolist()
        free = [each for each in alive if each.serial not in set(serials.tolist())]
        free.sort(key=lambda each: each.serial)
        for by_name in (True, False):
            wanted = self._match(wanted, free, serials, by_name=by_name)
        return replace(self, serials=serials)

    def _match(
        self, wanted: list[int], free: list[Allocation], serials: NDArray[np.uint64], *, by_name: bool
    ) -> list[int]:
        """Gives storages that have none an allocation; returns those that still have none."""
        heirs: dict[tuple[int, int, str], list[Allocation]] = {}
        for each in reversed(free):
            heirs.setdefault((each.role, each.bytes, each.name if by_name else ""), []).append(each)
        storages, left = self.trace.storages, []
        for storage in wanted:
            name = self.trace.strings[storages.name[storage]] if by_name else ""
            alike = heirs.get((int(storages.role[storage]), int(storages.bytes[storage]), name))
            if alike:
                serials[storage] = alike.pop().serial
            else:
                left.append(storage)
        taken = set(serials.tolist())
        free[:] = [each for each in free if each.serial not in taken]
        return left
