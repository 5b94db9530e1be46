"""The gaps between uses in which storages may leave the device: what a bound's linear programme decides about."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.bounds.bound_cells import Cells
from umadvise.planners.step_graph import NONE


@dataclass(frozen=True, slots=True, eq=False)
class CellGap:
    """Cells in a row in which a storage waits and nothing uses it, so that its bytes may be elsewhere.

    Cells and slots count on through the step that follows: after the last one comes the first again. A byte that is
    missing in some of the cells leaves in one of the slots from `first` - 1 to `last` - 1, and comes back in one from
    `first` to `last`.

    Attributes:
        first: first cell of the gap.
        last: last cell of the gap.
        fetched: whether what has left comes back, as the use at the end needs it.
        rerun_ns: least nanoseconds a byte to make the contents again, in each slot from `first` to the end of the gap
            or of the step; infinite where that cannot be.
    """

    first: int
    last: int
    fetched: bool
    rerun_ns: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Gaps between two writes of a storage, or of several to which the same happens: one copy on the host serves all.

    Attributes:
        written: slot in which contents changed before; NONE where the host has them from the beginning.
        gaps: gaps of the chain, in the order of time.
        bytes: total size of its storages.
        largest_bytes: size of the largest of its storages.
    """

    written: int
    gaps: tuple[CellGap, ...]
    bytes: int
    largest_bytes: int


def chains(cells: Cells, short: NDArray[np.bool_]) -> list[Chain]:
    """All chains of a step, without gaps in which there is room for everything.

    Args:
        cells: cells of the step.
        short: whether there is no room for everything, for each column of the cells.
    """
    row, first, last, fetched = _gaps(cells)
    owner, written, turn = _last_writes(cells, row, first)
    before = np.concatenate([[0], np.cumsum(np.tile(short, 2))])
    order = np.lexsort((first + turn, owner))
    found: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
    for each in order[(before[last + 1] > before[first])[order]].tolist():
        alone = each if written[each] == NONE else NONE  # nothing connects gaps that need no copy to the host
        found[int(owner[each]), int(written[each]), alone].append(each)
    result = []
    for (_, slot, _), members in found.items():
        size = int(cells.bytes[row[members[0]]])
        gaps = []
        for each in members:
            again = cells.rerun_ns[row[each], first[each] : last[each] + 1] / size  # up to the row's last cell
            begin, end = int(first[each] + turn[each]), int(last[each] + turn[each])
            gaps.append(CellGap(begin, end, bool(fetched[each]), again))
        result.append(Chain(slot, tuple(gaps), size, size))
    return result


def merged(each: Iterable[Chain]) -> list[Chain]:
    """Chains with one for all those in which the same happens at the same cells.

    The programme's minimum is the same: what is done to bytes of one can be done to those of all, in parts. Only fixed
    costs of copies are lower, as of copies of the largest one's size, and a byte is made again as the cheapest one's.
    """
    alike: defaultdict[tuple[object, ...], list[Chain]] = defaultdict(list)
    for chain in each:
        shape = tuple((gap.first, gap.last, gap.fetched, np.isfinite(gap.rerun_ns).tobytes()) for gap in chain.gaps)
        alike[chain.written, shape].append(chain)
    return [_joined(chains) for chains in alike.values()]


def _joined(alike: list[Chain]) -> Chain:
    gaps = []
    for each in zip(*(chain.gaps for chain in alike), strict=True):
        gaps.append(replace(each[0], rerun_ns=np.min([gap.rerun_ns for gap in each], axis=0)))
    largest_bytes = max(chain.largest_bytes for chain in alike)
    return Chain(alike[0].written, tuple(gaps), sum(chain.bytes for chain in alike), largest_bytes)


def _gaps(cells: Cells) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
    """Of each gap: the row and the cell in which it begins, the cell in which it ends, and whether it is `fetched`."""
    count = len(cells.chosen)
    heir = np.maximum(cells.following, 0)
    inherited = (cells.following >= 0) & cells.waits[heir, 0]
    later = np.concatenate([cells.waits[:, 1:], inherited[:, None]], axis=1)
    goes_on = cells.waits & ~cells.touched & later
    continued = np.zeros_like(goes_on)
    continued[:, 1:] = goes_on[:, :-1]
    linked = cells.following >= 0
    continued[heir[linked], 0] = goes_on[linked, -1]
    row, first = np.nonzero(cells.waits & ~continued)
    stops = np.where(goes_on, count, np.arange(count))
    stop = np.minimum.accumulate(stops[:, ::-1], axis=1)[:, ::-1]
    wraps = stop[row, first] == count
    end_row = np.where(wraps, heir[row], row)
    end = np.where(wraps, stop[end_row, 0], stop[row, first])
    return row, first, end + np.where(wraps, count, 0), cells.fetched[end_row, end]


def _last_writes(cells: Cells, row: NDArray[np.intp], first: NDArray[np.intp]) -> tuple[NDArray[np.intp], ...]:
    """Of the last write before each gap: row and slot; and by how many cells later the gap is if they count from there.

    The slot is NONE where the host has the contents at no cost: no step writes them, or none leaves them behind.
    """
    count = len(cells.chosen)
    latest = np.maximum.accumulate(np.where(cells.written, np.arange(count), NONE), axis=1)
    before = np.full(len(cells.bytes), NONE)
    linked = np.flatnonzero(cells.following >= 0)
    before[cells.following[linked]] = linked
    slot = np.where(first > 0, latest[row, first - 1], NONE)
    past = np.where(before[row] >= 0, latest[before[row], -1], NONE)
    earlier = (slot == NONE) & (past != NONE)  # in the step before
    return np.where(earlier, before[row], row), np.where(earlier, past, slot), np.where(earlier, count, 0)
