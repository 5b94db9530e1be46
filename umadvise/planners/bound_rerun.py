"""What making dropped contents again takes at least, for bounds of plans with recomputation."""

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.bound_points import Points


def rerun_ns(points: Points, storages: NDArray[np.int64], coming: NDArray[np.int64]) -> NDArray[np.float64]:
    """The time of the ops that run again, for each storage (row) at each point (column); infinite where none can.

    A recomputation runs every op from the plan's first one to the last that wrote the storage in this step, and the
    first of them that touches it must not read it: so it takes at least the ops from the last such use to the last
    write. What these ops read besides is taken to be there, and memory for it is not counted.

    Args:
        points: of the step.
        storages: the rows.
        coming: for each cell the storage's first use at or after the point.
    """
    uses = np.arange(len(points.storage))
    first = points.first[points.storage] if len(uses) else uses
    written = np.maximum.accumulate(np.where(points.writes, uses, -1))
    begun = np.maximum.accumulate(np.where(points.begins, uses, -1))
    passed = np.concatenate([[0], np.cumsum(points.op_ns)])
    last = np.where(written >= first, written, -1)
    start = np.where(last >= 0, begun[last], -1)
    can = (last >= 0) & (start >= first)
    cost = np.where(can, passed[points.point[last] + 1] - passed[points.point[start]], np.inf)
    before = coming - 1
    known = before >= points.first[storages][:, None]
    result: NDArray[np.float64] = np.where(known, cost[np.maximum(before, 0)], np.inf)
    return result
