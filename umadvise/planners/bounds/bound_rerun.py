"""What making dropped contents again takes at least, for bounds of plans with recomputation."""

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.points import Points
from umadvise.planners.step_graph import NONE

_STEPS = 16
"""How often a range of ops is extended: stopping early only makes it shorter."""
_Index = NDArray[np.int64]


def rerun_ns(points: Points, storages: _Index, chosen: _Index, coming: _Index) -> NDArray[np.float64]:
    """Least nanoseconds of the ops that make each storage (row) again from each point on (column); infinite where none.

    A recomputation runs every op from the plan's first one to the last that wrote the storage in this step, and the
    first of them that touches it must not read it. What they read besides and the program has freed by then, an
    earlier one of them must have made in the same way. All else that they read is taken to be there, and memory for it
    is not counted.

    Args:
        points: points of the step, with their uses.
        storages: index of the storage of each row.
        chosen: index of the point of each column.
        coming: row in `points` of the storage's first use at or after the point, for each row and column.
    """
    uses = np.arange(len(points.storage))
    first = points.first[points.storage] if len(uses) else uses
    written = np.maximum.accumulate(np.where(points.writes, uses, NONE))
    begun = np.maximum.accumulate(np.where(points.begins, uses, NONE))
    cost = np.full(coming.shape, np.inf)
    if not len(uses):
        return cost
    last = np.where(coming > points.first[storages][:, None], written[np.maximum(coming - 1, 0)], NONE)
    last = np.where(last >= points.first[storages][:, None], last, NONE)
    start = np.where(last >= 0, begun[last], NONE)
    can = (last >= 0) & (start >= points.first[storages][:, None])
    passed = np.concatenate([[0], np.cumsum(points.op_ns)])
    made = np.where(begun >= first, points.at[begun], NONE)  # by the last op before each use that does not read it
    for column, point in enumerate(chosen):
        rows = np.flatnonzero(can[:, column])
        begin, end = points.at[start[rows, column]], points.at[last[rows, column]]
        gone = ~points.begins & (points.death[points.storage] < point)
        begin = _extended(_lowest(points.at[gone], made[gone], len(points)), begin, end)
        cost[rows, column] = np.where(begin >= 0, passed[end + 1] - passed[begin], np.inf)
    return cost


def _lowest(point: _Index, made: _Index, count: int) -> list[_Index]:
    """For each power of two, the least of what the uses at so many points from each one on go back to."""
    lowest = np.arange(count)
    np.minimum.at(lowest, point, made)
    tables = [lowest]
    while 2 ** len(tables) <= count:
        half = 2 ** (len(tables) - 1)
        tables.append(np.minimum(tables[-1][:-half], tables[-1][half:]))
    return tables


def _extended(lowest: list[_Index], begin: _Index, end: _Index) -> _Index:
    """The begins of ranges, early enough for all that goes back; NONE where something was never made."""
    for _ in range(_STEPS):
        sure = np.maximum(begin, 0)
        level = np.frexp(end - sure + 1)[1] - 1
        earlier = begin.copy()
        for each in np.unique(level):
            there = level == each
            table = lowest[each]
            earlier[there] = np.minimum(table[sure[there]], table[end[there] - 2**each + 1])
        earlier = np.minimum(begin, earlier)
        if (earlier == begin).all():
            break
        begin = earlier
    return begin
