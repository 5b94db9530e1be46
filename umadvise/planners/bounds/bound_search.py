"""Solves the linear programme of a bound with few points of the step, then with more where its prices change.

Where a byte costs the same on the link and in memory from slot to slot, it does not matter in which of them it is
copied, and looking more closely says nothing new. So the minimum comes within 1 % of that with all points
(tools/benchmark_bound.py).
"""

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.bounds.bound_cells import cells
from umadvise.planners.bounds.bound_lp import Programme
from umadvise.planners.bounds.bound_solver import Solution, linear
from umadvise.planners.points import Points
from umadvise.records.device import DeviceProfile

COARSE = 50
"""Slices of the step in which the search looks at memory at first."""
SMALL_BYTES, SMALL_SHARE = 1 << 20, 1e-4
"""Storages below 1 MiB and below this part of the budget move freely: the programme has no columns for them."""
_PIECES = 4
"""Pieces in which a slot is cut for a closer look."""
_GROWTH = 2e-3
"""Part by which a closer look has to raise the minimum for yet another one to be worth it."""
_ALIKE = 1e-3
"""Difference below which two prices count as one, as a part of the highest."""


def search(
    points: Points, device: DeviceProfile, budget_bytes: int, *, coarse: int | None, recompute: bool
) -> tuple[Programme, Solution]:
    """The programme whose minimum is highest of those that the search has looked at, and its solution.

    Args:
        points: points of the step, with their uses.
        device: profile of the device whose link makes the copies.
        budget_bytes: bytes that tensors may take on the device, less than the largest load.
        coarse: number of slices in which the programme looks at memory at first; None for all points and storages.
        recompute: whether plans may make contents again.

    Raises:
        UmadviseError: the solver gives up, or scipy is not installed.
    """
    slices = _Slices(points, device)
    chosen = np.arange(len(points)) if coarse is None else slices.coarse(coarse)
    least_bytes = 0 if coarse is None else min(SMALL_BYTES, int(budget_bytes * SMALL_SHARE))
    best: tuple[Programme, Solution] | None = None
    while True:
        seen = cells(points, chosen, least_bytes, recompute=recompute)
        programme = Programme(points, device, budget_bytes, seen, whole=False)
        solution = linear(programme)
        enough = best is not None and solution.least_ms < best[1].least_ms * (1 + _GROWTH)
        if best is None or solution.least_ms > best[1].least_ms:
            best = programme, solution
        finer = slices.finer(chosen, _uneven(programme, solution))
        if enough or len(finer) == len(chosen):
            return best
        chosen = finer


def _uneven(programme: Programme, solution: Solution) -> NDArray[np.bool_]:
    """Slots beside which the price of a copy changes, or that of memory is not 0."""
    link = programme.link_ns(solution.row_prices)
    changes = (np.abs(link - np.roll(link, -1, axis=1)) > _ALIKE * link.max(initial=0.0)).any(axis=0)
    memory = programme.memory_ns(solution.column_prices)
    dear = memory > _ALIKE * memory.max(initial=0.0)
    uneven: NDArray[np.bool_] = changes | np.roll(changes, 1) | dear | np.roll(dear, -1)
    return uneven


class _Slices:
    """Points of a step, in slices.

    Slices are equal in the time of ops, or of copies where all that is used more than once were copied and that takes
    longer: where the link decides, slices of equal compute would be as coarse as the step is fast.
    """

    def __init__(self, points: Points, device: DeviceProfile) -> None:
        again = points.first[points.storage + 1] - points.first[points.storage] > 1
        moving = np.bincount(points.at, weights=points.bytes[points.storage] * again, minlength=len(points))
        spans_ns = np.maximum(points.duration_ns, moving * 1e9 / device.bandwidth_h2d)
        self._begin_ns = np.concatenate([[0.0], np.cumsum(spans_ns)])
        self._load_bytes = points.load_bytes()

    def coarse(self, most: int) -> NDArray[np.int64]:
        """The first point, the last, and that of largest load in each of so many slices of the step; all of a few."""
        every = np.arange(len(self._load_bytes))
        if len(every) <= 2 * most:
            return every
        ends = every[[0, -1]]
        return np.union1d(ends, self._peaks(every, np.zeros_like(every), np.array([0, len(every)]), most))

    def finer(self, chosen: NDArray[np.int64], slots: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Likewise of the slices of some slots; a slot is what lies between a chosen point and the next one."""
        ends = np.append(chosen, len(self._load_bytes))
        within = np.setdiff1d(np.arange(chosen[0], ends[-1]), chosen)
        slot = np.searchsorted(chosen, within, "right") - 1
        cut = slots[slot]
        return np.union1d(chosen, self._peaks(within[cut], slot[cut], ends, _PIECES))

    def _peaks(
        self, points: NDArray[np.int64], slot: NDArray[np.int64], ends: NDArray[np.int64], pieces: int
    ) -> NDArray[np.int64]:
        """The point of largest load in each piece of the slots that points lie in."""
        begin_ns, end_ns = self._begin_ns[ends[slot]], self._begin_ns[ends[slot + 1]]
        share = (self._begin_ns[points] - begin_ns) / np.maximum(end_ns - begin_ns, 1.0)
        piece = slot * pieces + np.minimum(share * pieces, pieces - 1).astype(np.int64)
        order = np.lexsort((-self._load_bytes[points], piece))
        _, first = np.unique(piece[order], return_index=True)
        return points[order[first]]
