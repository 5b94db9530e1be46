"""The time-indexed linear programme behind `umadvise.planners.bound`, where its soundness is proved."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from umadvise.device_profile import DeviceProfile
from umadvise.planners.bound_points import NONE, TO_DEVICE, TO_HOST, Points
from umadvise.planners.bound_rerun import rerun_ns

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MS = 1e6
"""Nanoseconds in a unit of the programme's times: milliseconds and shares suit the solver's tolerances."""
_AT_LEAST_0, _ANY = 0.0, np.inf
_Index = NDArray[np.int64]
_FLAGS = ("used", "waits", "fetched", "touched", "written", "written_now")


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

    def put(self, rows: _Index, columns: _Index, values: NDArray[np.floating[Any]] | float) -> None:
        """Adds coefficients; columns below 0 are not there."""
        there = columns >= 0
        self.row.append(rows[there])
        self.column.append(columns[there])
        self.value.append(np.broadcast_to(np.asarray(values, np.float64), columns.shape)[there])

    def matrix(self, columns: int) -> "csr_array":
        """All of them; entries of one place add up."""
        from scipy.sparse import coo_array

        entries = (np.concatenate(self.value), (np.concatenate(self.row), np.concatenate(self.column)))
        return coo_array(entries, shape=(self.count, columns)).tocsr()


@dataclass(frozen=True)
class Cells:
    """A row a storage, a column a chosen point.

    Attributes:
        bytes: of each row.
        largest_bytes: of the row's largest storage.
        chosen: the columns: points, ascending.
        used: the storage holds memory there because the point uses it.
        waits: it is not used, but has contents that are needed later.
        fetched: of each slot (from this point to the next chosen one): its first use there, the next chosen point
            included, needs contents.
        touched: there is a use at all in it.
        written: contents change in it, from the beginning of this point's op to that of the next chosen one's.
        written_now: likewise, by this point's op.
        following: row of each storage in the step that follows, or NONE.
        rerun_ns: what making the contents again takes at least; infinite where they cannot be.
    """

    bytes: _Index
    largest_bytes: _Index
    chosen: _Index
    used: NDArray[np.bool_]
    waits: NDArray[np.bool_]
    fetched: NDArray[np.bool_]
    touched: NDArray[np.bool_]
    written: NDArray[np.bool_]
    written_now: NDArray[np.bool_]
    following: _Index
    rerun_ns: NDArray[np.float64]


def cells(points: Points, chosen: _Index, least_bytes: int) -> Cells:
    """What happens to each storage of at least so many bytes at and between the chosen points."""
    width, count = len(points) + 1, len(points.bytes)
    everyone = np.arange(count)
    key = np.append(points.storage * width + points.point, count * width)
    needs, point = np.append(points.needs, False), np.append(points.point, width)
    writes = np.concatenate([[0], np.cumsum(points.writes), [0]])
    writes[-1] = writes[-2]
    first, end = points.first[:-1, None], points.first[1:, None]
    place = everyone[:, None] * width + chosen[None, :]
    here = np.searchsorted(key, place, "left")
    later = np.searchsorted(key, place, "right")
    at = (here < end) & (key[here] == place)
    held = at & np.append(points.resident, False)[here]
    opening = points.opening()[:, None]
    opens = opening >= 0
    waits = ~at & np.where(here < end, needs[here], opens & needs[opening])
    until = np.append(chosen[1:], width)[None, :]
    own = (later < end) & (point[later] <= until)
    last = np.arange(len(chosen)) == len(chosen) - 1
    heirs = last[None, :] & ~own & opens & (point[opening] <= chosen[0])
    stop = np.concatenate([here[:, 1:], end], axis=1)
    heir = np.maximum(points.heir, 0)
    carried = np.where(points.heir >= 0, writes[here[heir, 0]] - writes[first[heir, 0]], 0)
    changes = writes[stop] - writes[here]
    changes[:, -1] += carried
    keep = np.flatnonzero((points.bytes >= max(least_bytes, 1)) & waits.any(axis=1))
    row = np.full(count + 1, NONE, np.int64)
    row[keep] = np.arange(len(keep))
    return Cells(
        bytes=points.bytes[keep],
        largest_bytes=points.bytes[keep],
        chosen=chosen,
        used=held[keep],
        waits=waits[keep],
        fetched=np.where(own, needs[later], heirs & needs[opening])[keep],
        touched=(own | heirs)[keep],
        written=changes[keep] > 0,
        written_now=(at & np.append(points.writes, False)[here])[keep],
        following=row[points.heir[keep]],
        rerun_ns=rerun_ns(points, keep, here[keep]),
    )


def merged(each: Cells) -> Cells:
    """One row for storages to which the same happens at the same points.

    The programme's minimum is the same: the mean of their shares, by bytes, keeps all rows. Only fixed costs of copies
    are lower, as of copies of the largest one's size, and a recomputation is the cheapest one's.
    """
    rows = np.arange(len(each.bytes))
    heirs = np.zeros(len(rows), bool)
    heirs[each.following[each.following >= 0]] = True
    alone = (each.following == rows) | ((each.following < 0) & ~heirs)
    flags = [getattr(each, name) for name in _FLAGS]
    own = np.where(alone, -1, rows)[:, None]
    key = np.concatenate([np.packbits(np.concatenate(flags, axis=1), axis=1), own, each.following[:, None] < 0], axis=1)
    _, first, group = np.unique(key, axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    largest, cheapest = np.zeros(len(first), np.int64), np.full((len(first), len(each.chosen)), np.inf)
    np.maximum.at(largest, group, each.bytes)
    np.minimum.at(cheapest, group, each.rerun_ns)
    following = each.following[first]
    return Cells(
        bytes=np.bincount(group, weights=each.bytes, minlength=len(first)).astype(np.int64),
        largest_bytes=largest,
        chosen=each.chosen,
        **{name: getattr(each, name)[first] for name in _FLAGS},
        following=np.where(following >= 0, group[following], NONE) if len(rows) else following,
        rerun_ns=cheapest,
    )


class Programme:
    """Columns, rows and how long the step is; see `umadvise.planners.bound` for what they mean and why they hold."""

    def __init__(
        self, points: Points, device: DeviceProfile, budget_bytes: int, cells: Cells, *, recompute: bool, whole: bool
    ) -> None:
        self.points = points
        self.device = device
        self.cells = cells
        self.rows = _Rows()
        self.columns = 0
        self.upper: list[NDArray[np.float64]] = []
        self.low: list[NDArray[np.float64]] = []
        slots = len(cells.chosen)
        starts = np.concatenate([[0], np.cumsum(points.duration_ns)])
        self.slot_ns = np.diff(np.append(starts[cells.chosen], starts[-1] + starts[cells.chosen[0]]))
        self.slot = self._begin(slots, low=self.slot_ns / MS, high=_ANY)
        waits = cells.waits
        self.present = self._of(waits)
        self.brought = self._of(waits)
        self.copied = self._of(waits | (cells.used & ~cells.written_now & waits.any(axis=1, keepdims=True)))
        again = waits & np.isfinite(cells.rerun_ns) if recompute else np.zeros_like(waits)
        self.valid, self.made = self._of(again), self._of(again, high=_ANY)
        self.block = self._of(waits) if whole else self.present
        self._move()
        self._leave()
        self._fit(budget_bytes, whole)
        self._link()

    def matrices(self) -> "tuple[NDArray[np.float64], csr_array, NDArray[np.float64]]":
        """Cost of each column, and the rows with their least values."""
        cost = np.zeros(self.columns)
        cost[self.slot] = 1.0
        return cost, self.rows.matrix(self.columns), np.concatenate(self.rows.low)

    def limits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The least and the most of each column."""
        return np.concatenate(self.low), np.concatenate(self.upper)

    def _begin(self, count: int, *, low: NDArray[np.float64] | float = _AT_LEAST_0, high: float = 1.0) -> _Index:
        columns = np.arange(self.columns, self.columns + count)
        self.columns += count
        self.low.append(np.broadcast_to(np.asarray(low, np.float64), (count,)))
        self.upper.append(np.full(count, high))
        return columns

    def _of(self, where: NDArray[np.bool_], *, high: float = 1.0) -> _Index:
        """New columns, one for each cell that is chosen; NONE elsewhere."""
        found = np.full(where.shape, NONE, np.int64)
        found[where] = self._begin(int(where.sum()), high=high)
        return found

    def _next(self, of: _Index) -> _Index:
        """What a storage's cell holds at the next chosen point: after the last, that of its heir at the first."""
        following = self.cells.following
        wrapped = np.where(following >= 0, of[following, 0], NONE)
        return np.concatenate([of[:, 1:], wrapped[:, None]], axis=1)

    def _move(self) -> None:
        """To be on the device at a use, or at the next point, what is not there must be brought or made again."""
        cells, rows = self.cells, self.rows
        slot = np.broadcast_to(np.arange(len(cells.chosen)), cells.waits.shape)
        coming = self._next(self.present) >= 0
        for level, ways in ((self.present, (self.brought, self.made)), (self.valid, (self.made,))):
            # Contents that cannot be made again are all valid.
            where = (level >= 0) & (cells.fetched | (~cells.touched & coming))
            onward = np.where(cells.touched, NONE, self._next(level))[where]
            new = rows.begin(np.where(onward >= 0, 0.0, 1.0))
            for each in (level, *ways):
                rows.put(new, each[where], 1.0)
            rows.put(new, onward, -1.0)
        again = self.made >= 0
        if again.any():
            new = rows.begin(self.slot_ns / MS)  # a slot lasts at least as long as what runs in it
            rows.put(new, self.slot, 1.0)
            rows.put(new[slot[again]], self.made[again], -cells.rerun_ns[again] / MS)
        waits = cells.waits
        low = np.where(again, 0.0, 1.0)[waits]
        new = rows.begin(low)  # contents are somewhere
        rows.put(new, self.present[waits], 1.0)
        rows.put(new, self.copied[waits], 1.0)
        rows.put(new, self.valid[waits], -1.0)

    def _leave(self) -> None:
        """A copy on the host comes from a transfer after the last write."""
        cells, rows = self.cells, self.rows
        coming = self._next(self.copied)
        fresh = (coming >= 0) & cells.written
        kept = (coming >= 0) & ~cells.written & (self.copied >= 0)
        self.fresh, self.kept = fresh, kept
        new = rows.begin(np.zeros(int(kept.sum())))
        rows.put(new, coming[kept], 1.0)
        rows.put(new, self.copied[kept], -1.0)

    def _fit(self, budget_bytes: int, whole: bool) -> None:
        cells, rows = self.cells, self.rows
        unit = max(float(budget_bytes), 1.0)
        fixed = self.points.working_set_bytes()[cells.chosen]
        new = rows.begin((fixed - budget_bytes) / unit)
        storage, slot = np.nonzero(cells.waits)
        sizes = cells.bytes
        rows.put(new[slot], self.block[storage, slot], -sizes[storage] / unit)
        if whole:
            new = rows.begin(np.zeros(len(storage)))
            rows.put(new, self.block[storage, slot], 1.0)
            rows.put(new, self.present[storage, slot], -1.0)

    def _link(self) -> None:
        """What is copied in a slot takes its time, and so does what is copied in all of them."""
        link, sizes = self.device.link, self.cells.bytes
        starts = np.append(self.cells.chosen, len(self.points))
        before = np.concatenate([np.zeros((2, 1)), np.cumsum(self.points.host_bytes, axis=1)], axis=1)
        host = np.diff(before[:, starts], axis=1)
        host[:, -1] += before[:, starts[0]]
        for to_device_ns, to_host_ns in facets(self.device):
            busy = (host[TO_DEVICE] * to_device_ns + host[TO_HOST] * to_host_ns) / MS
            new = self.rows.begin(busy)
            self.rows.put(new, self.slot, 1.0)
            self._bytes(new, TO_DEVICE, sizes * to_device_ns)
            self._bytes(new, TO_HOST, sizes * to_host_ns)
        for direction, way in ((TO_DEVICE, link.h2d), (TO_HOST, link.d2h)):
            ns_per_byte, engines = 1e9 / way.bytes_per_s.value, way.engines.value
            copies = float(self.points.host_copies[direction].sum()) * way.fixed_ns.value
            busy_ns = copies + float(self.points.host_bytes[direction].sum()) * ns_per_byte
            new = self.rows.begin(np.array([busy_ns / engines / MS]))
            self.rows.put(np.zeros_like(self.slot) + new[0], self.slot, 1.0)
            cost_ns = way.fixed_ns.value * sizes / self.cells.largest_bytes + sizes * ns_per_byte
            self._bytes(np.full_like(self.slot, new[0]), direction, cost_ns / engines)

    def _bytes(self, rows: _Index, direction: int, cost_ns: NDArray[np.floating[Any]]) -> None:
        """Takes from the row of each slot what the storages' copies in one direction cost."""
        pieces: tuple[tuple[NDArray[np.bool_], _Index, float], ...]
        if direction == TO_DEVICE:
            pieces = ((self.brought >= 0, self.brought, -1.0),)
        else:
            coming = self._next(self.copied)
            pieces = ((self.fresh | self.kept, coming, -1.0), (self.kept, self.copied, 1.0))
        for where, columns, sign in pieces:
            storage, slot = np.nonzero(where)
            self.rows.put(rows[slot], columns[storage, slot], sign * cost_ns[storage] / MS)


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
