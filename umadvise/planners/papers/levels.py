"""Topological levels of the ops of a step, from what they read and write."""

import numpy as np
from numpy.typing import NDArray

from umadvise.records.trace import Access, Trace


class Levels:
    """The categorised topological sort: an op's level is the length of the longest chain of ops that it depends on.

    An op depends on the last writer of all that it touches, and one that writes on the readers since. Storages are
    taken whole: two ops that write different ranges of one are ordered too.

    Attributes:
        level: of each op; 0 where it depends on no other.
        count: of levels.
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
    first = trace.first_access.tolist()
    storages = trace.accesses.storage.tolist()
    writes = ((trace.accesses.flags & Access.WRITE) != 0).tolist()
    nothing = (0, -1)  # the level that comes after an op, and the op
    written = [nothing] * len(trace.storages)
    touched = [nothing] * len(trace.storages)  # written or read since
    levels, parents = [], []
    for op in range(len(trace.ops)):
        rows = range(first[op], first[op + 1])
        level, parent = max((touched if writes[row] else written)[storages[row]] for row in rows) if rows else nothing
        levels.append(level)
        parents.append(parent)
        after = (level + 1, op)
        for row in rows:
            storage = storages[row]
            touched[storage] = max(touched[storage], after)
            if writes[row]:
                written[storage] = after
    return levels, parents
