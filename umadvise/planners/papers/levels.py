"""Topological levels of the ops of a step, from what they read and write."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from umadvise.records.trace import Access, Trace


class Levels:
    """The categorised topological sort: an op's level is the length of the longest chain of ops that it depends on.

    An op depends on the last writer of all that it touches, and one that writes on the readers since. Storages are
    taken whole: two ops that write different ranges of one are ordered too.

    Attributes:
        level: level of each op; 0 where it depends on no other op.
        count: number of levels of the step.
    """

    def __init__(self, trace: Trace) -> None:
        levels, parents = _levels(trace)
        self.level: NDArray[np.int64] = np.array(levels, np.int64)
        self.count = int(self.level.max(initial=-1)) + 1
        # By powers of two, so that any ancestor is a few lookups away; the last entry stands for "none" and stays so.
        self._above: list[NDArray[np.int64]] = [np.array([*parents, -1], np.int64)]
        while 1 << len(self._above) < self.count:
            self._above.append(self._above[-1][self._above[-1]])

    def ancestors(self, ops: NDArray[np.int64], generations: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each op one that it depends on, so many levels above (at least 0); -1 where there is no such level.

        Every op above level 0 depends on one of the level before its own; of several the latest is taken.
        """
        result: NDArray[np.int64] = np.where(generations > self.level[ops], -1, ops)
        for power, above in enumerate(self._above):
            result = np.where(generations >> power & 1, above[result], result)
        return result


def _levels(trace: Trace) -> tuple[list[int], list[int]]:
    """Of each op its level, and the op of the level before that it depends on (-1: none)."""
    writes = ((trace.accesses.flags & Access.WRITE) != 0).tolist()
    rows = list(zip(trace.accesses.storage.tolist(), writes, strict=True))
    nothing = (0, -1)  # the level that comes after an op, and the op
    written = [nothing] * len(trace.storages)
    touched = [nothing] * len(trace.storages)  # written or read since
    found = []
    for op, (begin, end) in enumerate(pairwise(trace.first_access.tolist())):
        here = rows[begin:end]
        found.append(max(((touched if writes else written)[storage] for storage, writes in here), default=nothing))
        after = (found[-1][0] + 1, op)
        for storage, writes in here:
            touched[storage] = max(touched[storage], after)
            if writes:
                written[storage] = after
    return [level for level, _ in found], [parent for _, parent in found]
