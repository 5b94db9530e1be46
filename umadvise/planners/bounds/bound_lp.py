"""The time-indexed linear programme behind `umadvise.planners.bounds.bound`, where its soundness is proved."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.bounds.bound_cells import Cells
from umadvise.planners.bounds.bound_gaps import CellGap, Chain, chains, merged
from umadvise.planners.points import TO_DEVICE, TO_HOST, Points
from umadvise.planners.step_graph import NONE
from umadvise.records.device import DeviceProfile

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MS = 1e6
"""Nanoseconds in a unit of the programme's times: milliseconds suit the solver's tolerances."""
UNIT_BYTES = float(1 << 26)
"""Bytes in a unit of the programme's amounts, for the same reason: a link copies about a unit in some milliseconds."""
_Index: TypeAlias = NDArray[np.int64]
_Move: TypeAlias = tuple[_Index, _Index, float]
"""Slots, a column for each of them (or one), and whether that is what leaves (1.0) or what comes back (-1.0) there."""
_NOTHING: _Index = np.zeros(0, np.int64)
_LOOKS = 8


@dataclass
class _Rows:
    """Rows `low <= coefficients @ columns`, collected piece by piece."""

    low: list[NDArray[np.float64]] = field(default_factory=list)
    row: list[_Index] = field(default_factory=list)
    column: list[_Index] = field(default_factory=list)
    value: list[NDArray[np.float64]] = field(default_factory=list)
    count: int = 0

    def begin(self, low: NDArray[np.float64]) -> _Index:
        """New rows; returns their indexes."""
        rows = np.arange(self.count, self.count + len(low))
        self.low.append(np.asarray(low, np.float64))
        self.count += len(low)
        return rows

    def put(self, rows: _Index, columns: _Index, value: NDArray[np.float64] | float) -> None:
        """Adds coefficients; of one row or column there may be one for all of the other."""
        rows, columns = np.broadcast_arrays(rows, columns)
        self.row.append(rows)
        self.column.append(columns)
        self.value.append(np.broadcast_to(np.asarray(value, np.float64), columns.shape))

    def at_most(self, these: _Index, those: _Index) -> None:
        """A new row: the sum of these columns is no more than the sum of those."""
        new = self.begin(np.zeros(1))
        self.put(new, these, -1.0)
        self.put(new, those, 1.0)

    def matrix(self, columns: int) -> "csr_array":
        """All of them; entries of one place add up."""
        from scipy.sparse import coo_array

        entries = (np.concatenate(self.value), (np.concatenate(self.row), np.concatenate(self.column)))
        return coo_array(entries, shape=(self.count, columns)).tocsr()


class Programme:
    """The linear programme of a bound: variables (columns) and inequalities (rows) whose minimum is a step's length.

    `umadvise.planners.bounds.bound` says what they mean, and why that is a bound.
    """

    def __init__(self, points: Points, device: DeviceProfile, budget_bytes: int, cells: Cells, *, whole: bool) -> None:
        self.rows = _Rows()
        self.columns = 0
        self.chosen = cells.chosen
        self._low: list[NDArray[np.float64]] = []
        self._high: list[NDArray[np.float64]] = []
        slots = len(cells.chosen)
        starts = np.concatenate([[0], np.cumsum(points.duration_ns)])
        self._slot_ns = np.diff(np.append(starts[cells.chosen], starts[-1] + starts[cells.chosen[0]]))
        self._slot = self._begin(slots, low=self._slot_ns / MS)
        self._copied = (self._begin(slots), self._begin(slots))
        needed = points.working_set_bytes()[cells.chosen] + cells.bytes @ cells.waits
        # Whole storages are counted in the smallest of them, which the solver would else take for nothing.
        self._unit_bytes = UNIT_BYTES
        if whole and len(cells.bytes):
            self._unit_bytes = min(UNIT_BYTES, float(cells.bytes.min()))
        self._excess = (needed - budget_bytes) / self._unit_bytes
        self._link(points, device)
        self._computing = self.rows.begin(self._slot_ns / MS)  # a slot lasts as long as all that runs in it
        self.rows.put(self._computing, self._slot, 1.0)
        self._memory(whole)
        found = chains(cells, self._excess > 0)
        for chain in found if whole else merged(found):
            self._chain(chain)

    def matrices(self) -> "tuple[NDArray[np.float64], csr_array, NDArray[np.float64]]":
        """Cost of each column, and the rows with their least values."""
        cost = np.zeros(self.columns)
        cost[self._slot] = 1.0
        return cost, self.rows.matrix(self.columns), np.concatenate(self.rows.low)

    def limits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The least and the greatest value of each column."""
        return np.concatenate(self._low), np.concatenate(self._high)

    def link_ns(self, row_prices: NDArray[np.float64]) -> NDArray[np.float64]:
        """What copying a byte costs in each slot, to the device and to the host, by a solution's prices."""
        return np.stack([row_prices[rows] for rows in self._sums]) * (MS / self._unit_bytes)

    def memory_ns(self, column_prices: NDArray[np.float64]) -> NDArray[np.float64]:
        """What a byte of memory is worth at each chosen point, by a solution's prices."""
        return column_prices[self._missing] * (MS / self._unit_bytes)

    def _begin(self, count: int, *, low: NDArray[np.float64] | float = 0.0, high: float = np.inf) -> _Index:
        columns = np.arange(self.columns, self.columns + count)
        self.columns += count
        self._low.append(np.broadcast_to(np.asarray(low, np.float64), (count,)))
        self._high.append(np.full(count, high))
        return columns

    def _link(self, points: Points, device: DeviceProfile) -> None:
        """What is copied in a slot takes its time, and so does what is copied in all of them."""
        rows, slots = self.rows, len(self.chosen)
        starts = np.append(self.chosen, len(points))
        before = np.concatenate([np.zeros((2, 1)), np.cumsum(points.host_bytes, axis=1)], axis=1)
        host = np.diff(before[:, starts], axis=1)
        host[:, -1] += before[:, starts[0]]
        for facet in facets(device):
            new = rows.begin(sum(host[way] * facet[way] for way in (TO_DEVICE, TO_HOST)) / MS)
            rows.put(new, self._slot, 1.0)
            for way in (TO_DEVICE, TO_HOST):
                rows.put(new, self._copied[way], -facet[way] * self._unit_bytes / MS)
        self._sums = (rows.begin(np.zeros(slots)), rows.begin(np.zeros(slots)))
        self._engines: list[_Index] = []
        self._fixed_ms: list[float] = []
        for way, link in ((TO_DEVICE, device.link.h2d), (TO_HOST, device.link.d2h)):
            rows.put(self._sums[way], self._copied[way], 1.0)
            ns_per_byte, engines = 1e9 / link.bytes_per_s.value, link.engines.value
            busy_ns = float(points.host_copies[way].sum()) * link.fixed_ns.value
            busy_ns += float(points.host_bytes[way].sum()) * ns_per_byte
            new = rows.begin(np.array([busy_ns / engines / MS]))
            rows.put(new, self._slot, 1.0)
            rows.put(new, self._copied[way], -ns_per_byte * self._unit_bytes / engines / MS)
            self._engines.append(new)
            self._fixed_ms.append(link.fixed_ns.value / engines / MS)

    def _memory(self, whole: bool) -> None:
        """At each cell at least what exceeds the budget is missing.

        How much is counted from cell to cell; at the first, it is what has left since the step before.
        """
        rows, slots = self.rows, len(self.chosen)
        self.gone: list[int] | None = [] if whole else None
        self._cells = rows.begin(self._excess if whole else np.zeros(slots))
        self._missing = _NOTHING if whole else self._begin(slots, low=np.maximum(self._excess, 0.0))
        if not whole:
            rows.put(self._cells, self._missing, -1.0)
            rows.put(self._cells[1:], self._missing[:-1], 1.0)

    def _chain(self, chain: Chain) -> None:
        """What leaves has been copied to the host since the last write, or is made again; what left comes back."""
        rows = self.rows
        until, host = chain.written, _NOTHING
        for gap in chain.gaps:
            begin = np.array([gap.first - 1])
            elsewhere = self._begin(1, high=chain.bytes / self._unit_bytes)
            leaving: list[tuple[_Index, _Index]] = []
            if chain.written == NONE:
                leaving.append((begin, self._begin(1)))
            else:
                host = np.append(host, self._copy(chain, TO_HOST, np.arange(until, gap.first - 1)))
                until = max(until, gap.first - 1)
                if len(host):
                    at_once, valid = self._begin(1), self._begin(1)
                    rows.at_most(valid, host)
                    rows.at_most(at_once, valid)
                    leaving.append((begin, at_once))
                    host = valid
                slots = np.arange(gap.first - 1, gap.last)
                copied = self._copy(chain, TO_HOST, slots)
                leaving.append((slots, copied))
                host = np.append(host, copied)
            rows.at_most(np.concatenate([columns for _, columns in leaving]), elsewhere)
            slots = np.arange(gap.first, gap.last + 1)
            coming = [(slots[-1:], elsewhere)]
            if gap.fetched:
                brought = self._copy(chain, TO_DEVICE, slots)
                rows.at_most(elsewhere, brought)
                coming = [(slots, brought)]
            moves = [(*each, 1.0) for each in leaving] + [(*each, -1.0) for each in coming]
            if gap.fetched and np.isfinite(gap.rerun_ns).any():
                moves += self._lose(gap, chain.bytes / self._unit_bytes, moves)
            self._miss(gap, chain.bytes / self._unit_bytes, moves)

    def _copy(self, chain: Chain, way: int, slots: _Index) -> _Index:
        """New columns: what is copied in each of these slots."""
        columns = self._begin(len(slots))
        self.rows.put(self._sums[way][slots % len(self.chosen)], columns, -1.0)
        self.rows.put(self._engines[way], columns, -self._fixed_ms[way] * self._unit_bytes / chain.largest_bytes)
        return columns

    def _lose(self, gap: CellGap, amount: float, moves: list[_Move]) -> list[_Move]:
        """What is dropped when a gap begins, and made again in the same step: besides what else leaves it."""
        rows, count = self.rows, len(self.chosen)
        can = np.flatnonzero(np.isfinite(gap.rerun_ns))
        slots = gap.first + can
        lost, made = self._begin(1), self._begin(len(slots))
        rows.at_most(lost, made)
        rows.put(self._computing[slots % count], made, -gap.rerun_ns[can] * self._unit_bytes / MS)
        again: list[_Move] = [(np.array([gap.first - 1]), lost, 1.0), (slots, made, -1.0)]
        # At some cells at least, no more is missing than there is.
        cells = np.unique(np.linspace(gap.first, gap.last, _LOOKS).astype(np.int64))
        missing, new = self._begin(len(cells), high=amount), rows.begin(np.zeros(len(cells)))
        rows.put(new, missing, 1.0)
        rows.put(new[1:], missing[:-1], -1.0)
        for slots, columns, sign in moves + again:
            upon = np.searchsorted(cells, slots, "right")
            rows.put(new[upon[upon < len(cells)]], columns[upon < len(cells)], -sign)
        return again

    def _miss(self, gap: CellGap, amount: float, moves: list[_Move]) -> None:
        """Counts in each of a gap's cells what has left before and not come back."""
        rows, count = self.rows, len(self.chosen)
        if self.gone is None:
            first = -(-gap.first // count) * count  # of a step
            for slots, columns, sign in moves:
                there = (slots < first) & (first <= gap.last)
                rows.put(self._cells[:1], columns[there], sign)
                ends = (slots + 1) % count
                rows.put(self._cells[ends[ends > 0]], columns[ends > 0], sign)
            return
        for cell in range(gap.first, gap.last + 1):
            gone = self._begin(1, high=1.0)
            rows.put(self._cells[cell % count], gone, amount)
            missing = rows.begin(np.zeros(1))
            rows.put(missing, gone, -amount)
            for slots, columns, sign in moves:
                rows.put(missing, columns[slots < cell], sign)
            self.gone.append(int(gone[0]))


def facets(device: DeviceProfile) -> list[tuple[float, float]]:
    """Pairs (a, b), in nanoseconds a byte: a * bytes to the device + b * bytes to the host take at most the time.

    In a unit of time a link moves the bytes of (in, 0), (0, out) or, with both busy, (slow in, slow out), or a mixture:
    these are the sides of the convex hull of the three points and nothing.
    """
    h2d, d2h = device.link.h2d, device.link.d2h
    ins, outs = h2d.bytes_per_s.value / 1e9, d2h.bytes_per_s.value / 1e9
    slow_in = (h2d.both_bytes_per_s.value or h2d.bytes_per_s.value) / 1e9
    slow_out = (d2h.both_bytes_per_s.value or d2h.bytes_per_s.value) / 1e9
    if slow_in / ins + slow_out / outs <= 1:  # both at once are no faster than one after the other
        return [(1 / ins, 1 / outs)]
    return [
        (1 / ins, (ins - slow_in) / (ins * slow_out)),
        ((outs - slow_out) / (outs * slow_in), 1 / outs),
    ]
