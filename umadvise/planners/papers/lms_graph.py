"""A step as large model support sees it: levels, candidates, and what is absent when under which options.

See umadvise.planners.papers.lms for the algorithm and for what is decided here.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.papers.levels import Levels
from umadvise.planners.uses import Uses
from umadvise.records.trace import EventKind, Trace

SMALLEST_BYTES = 64 << 10
"""Of a candidate: a vector, such as the statistics of a normalisation, is smaller."""
SEQUENTIAL = -1
"""`swapin_ahead`: the first swap-in 3 levels before its consumer, each later at the level of the consumer before."""
_FIRST_AHEAD = 3
SYNCHRONOUS_OUT, SYNCHRONOUS_IN = 1, 2  # bits of sync_mode


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of `lms`, each with a value."""

    swapout_threshold: int
    swapin_ahead: int
    swapin_groupby: int
    sync_mode: int


@dataclass(frozen=True, slots=True)
class Swaps:
    """One row an absence of a storage, in the order of storages and then time.

    Attributes:
        storage: which one.
        use: row of `Graph` of the use that ends it.
        last: op after which the storage leaves.
        dest: op that needs it again.
        trigger: op after which the swap-in may start; where it is synchronous, the one before `dest`.
        synchronous: the swap-in starts when everything else that `dest` waits for is there.
        copied: `dest` needs the contents.
        ahead: levels.
    """

    storage: NDArray[np.int64]
    use: NDArray[np.int64]
    last: NDArray[np.int64]
    dest: NDArray[np.int64]
    trigger: NDArray[np.int64]
    synchronous: NDArray[np.bool_]
    copied: NDArray[np.bool_]
    ahead: NDArray[np.int64]


class Graph:
    """The step as LMS sees it: levels, and the uses of the candidates, by storage and then in the trace's order."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.levels = Levels(trace)
        self.uses = Uses(trace)
        # What an op makes without touching it, as aten::empty does, is of no level yet.
        self._touches = self.uses.accessed
        candidates = self._candidates()
        rows = self._touches & candidates[self.uses.storage]
        self.storage = self.uses.storage[rows]
        self.op = self.uses.op[rows]
        self.level = self.levels.level[self.op]
        self.overwrites = self.uses.written_whole[rows]
        self.begins = np.diff(self.storage, prepend=-1) != 0
        self.candidates = candidates
        here = np.arange(len(self.op))
        writers = np.maximum.accumulate(np.where(self.uses.writes[rows] | self.begins, here, 0))
        self.source = np.where(self.begins, here, np.roll(writers, 1))
        self.distance = self.level - self.level[self.source]

    def _candidates(self) -> NDArray[np.bool_]:
        trace = self.trace
        of_host = np.isin(trace.events.kind, (EventKind.HOST_READ, EventKind.HOST_WRITE))
        result = (trace.births >= 0) & ~self.uses.transient & (trace.storages.bytes >= SMALLEST_BYTES)
        result[trace.events.storage[of_host]] = False
        return result

    @property
    def lasting_bytes(self) -> int:
        """Of what is there before the first op and after it has begun: variables."""
        lasting = (self.trace.births < 0) & (self.trace.deaths >= 0)
        return int(self.trace.storages.bytes[lasting].sum())

    def swaps(self, settings: Settings) -> Swaps:
        """What is absent when."""
        use = np.flatnonzero(self._leaves_before(settings))
        dest, last = self.op[use], self.op[use - 1]
        ahead = self._ahead(settings.swapin_ahead, self.level[use])
        trigger = self.levels.ancestors(dest, ahead + 1)
        synchronous = (trigger <= last) | bool(settings.sync_mode & SYNCHRONOUS_IN)
        copied = ~self.overwrites[use]
        return Swaps(
            storage=self.storage[use],
            use=use,
            last=last,
            dest=dest,
            trigger=np.where(synchronous | ~copied, dest - 1, trigger),
            synchronous=synchronous,
            copied=copied,
            ahead=ahead,
        )

    def _leaves_before(self, settings: Settings) -> NDArray[np.bool_]:
        """For each use: the storage is away before it."""
        here = np.arange(len(self.op))
        near = ~self.begins & (self.distance <= settings.swapout_threshold)
        last_near = here.copy()
        np.maximum.at(last_near, self.source[near], here[near])
        beyond = ~self.begins & (here > last_near[self.source])
        joins = np.zeros(len(here), bool)
        if settings.swapin_groupby > 0 and len(here):
            joins[1:] = (self.source[1:] == self.source[:-1]) & beyond[:-1]
            joins[1:] &= np.diff(self.level) <= settings.swapin_groupby
        idle = np.diff(self.op, prepend=0) > 1  # else there is no op during which it could be away
        result: NDArray[np.bool_] = beyond & ~joins & idle
        return result

    @staticmethod
    def _ahead(swapin_ahead: int, level: NDArray[np.int64]) -> NDArray[np.int64]:
        if swapin_ahead != SEQUENTIAL:
            return np.full(len(level), swapin_ahead)
        distinct, which = np.unique(level, return_inverse=True)
        ahead: NDArray[np.int64] = np.diff(distinct, prepend=distinct[:1] - _FIRST_AHEAD)[which]
        return ahead

    # ---- memory by the trace: what the executor will find -------------------------------------------------------

    @cached_property
    def _most_live_bytes(self) -> NDArray[np.int64]:
        """For what is before the first op, and for each op, the most bytes that are live within it and after it."""
        events, live = self.trace.events, self.trace.live_bytes
        before = np.searchsorted(events.op, np.arange(-1, len(self.trace.ops)))  # events of earlier ops
        most = np.where(before > 0, np.append(live, 0)[before - 1], 0)
        np.maximum.at(most, events.op.astype(np.int64) + 1, live)
        return most

    def peak_bytes(self, swaps: Swaps) -> int:
        """The most bytes on the device at any op, when every swap-out that has started has ended."""
        change = np.zeros(len(self.trace.ops) + 2, np.int64)
        sizes = self.trace.storages.bytes[swaps.storage]
        np.subtract.at(change, swaps.last + 2, sizes)
        np.add.at(change, swaps.trigger + 2, sizes)
        return int((self._most_live_bytes + np.cumsum(change)[:-1]).max(initial=0))

    # ---- memory by levels: what the tuner's simulator finds ------------------------------------------------------

    @cached_property
    def _place(self) -> NDArray[np.int64]:
        """Of each op among all, level by level."""
        place = np.empty(len(self.levels.level), np.int64)
        place[np.argsort(self.levels.level, kind="stable")] = np.arange(len(place))
        return place

    @cached_property
    def _first_place(self) -> NDArray[np.int64]:
        return np.searchsorted(np.sort(self.levels.level), np.arange(self.levels.count + 1))

    @cached_property
    def _other_change(self) -> NDArray[np.int64]:
        """Bytes that storages which are no candidates add at each place, and one more entry."""
        other = (self.trace.births >= 0) & ~self.uses.transient & ~self.candidates
        rows = self._touches & other[self.uses.storage]
        storage, place = self.uses.storage[rows], self._place[self.uses.op[rows]]
        change = np.zeros(len(self._place) + 1, np.int64)
        begins = np.flatnonzero(np.diff(storage, prepend=-1))
        if len(begins):
            self._count(change, storage[begins], np.minimum.reduceat(place, begins), np.maximum.reduceat(place, begins))
        return change

    def _count(
        self, change: NDArray[np.int64], storage: NDArray[np.int64], low: NDArray[np.int64], high: NDArray[np.int64]
    ) -> None:
        sizes = self.trace.storages.bytes[storage]
        end = len(change) - 1
        np.add.at(change, low, sizes)
        np.subtract.at(change, np.minimum(high + 1, end), sizes)

    def replayed_peak_bytes(self, swaps: Swaps, settings: Settings) -> int:
        """The most bytes beside the variables by TFLMS's simulator: tensors live from their op to their last consumer.

        Ops run level by level. One that leaves lingers for one op more, unless ops wait for swap-outs. One that comes
        is there from the level on that is `swapin_ahead` before its consumer's. Scratch memory is not known.
        """
        change = self._other_change.copy()
        if len(self.op):
            starts = self.begins.copy()
            starts[swaps.use] = True
            rows = np.flatnonzero(starts)
            place = self._place[self.op]
            low, high = np.minimum.reduceat(place, rows), np.maximum.reduceat(place, rows)
            which = np.searchsorted(rows, swaps.use)
            early = self._first_place[np.maximum(self.level[swaps.use] - swaps.ahead, 0)]
            early = np.maximum(early, high[which - 1] + 1)
            early = np.where(swaps.synchronous | ~swaps.copied, low[which], early)
            low[which] = np.minimum(low[which], early)
            if not settings.sync_mode & SYNCHRONOUS_OUT:
                high[which - 1] += swaps.copied
            final = np.append(self.begins[rows][1:], True)
            outlives = final & (self.trace.deaths[self.storage[rows]] == len(self.trace.ops))
            high[outlives] = len(self._place)
            self._count(change, self.storage[rows], low, high)
        return int(np.cumsum(change)[:-1].max(initial=0))
