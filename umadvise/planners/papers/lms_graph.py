"""A step as large model support sees it: levels, candidates, and what is absent when under which options.

See umadvise.planners.papers.lms for the algorithm and for what is decided here.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.papers.levels import Levels
from umadvise.planners.step_graph import step_graph, sum_over
from umadvise.records.trace import Trace

SMALLEST_BYTES = 64 << 10
"""Least size of a candidate: a vector, such as the statistics of a normalisation, is smaller."""
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
class LevelSwaps:
    """Absences of storages as columns, one row an absence, by storage and then in time.

    Attributes:
        storage: index of the storage.
        use: row in `LevelGraph` of the use that ends the absence.
        last: op after which the storage leaves.
        dest: op that needs it again.
        trigger: op after which the swap-in may start; where it is synchronous, the one before `dest`.
        synchronous: whether the swap-in starts only when everything else that `dest` waits for is there.
        copied: whether `dest` needs the contents.
        ahead: number of levels before `dest` at which the swap-in may start.
    """

    storage: NDArray[np.int64]
    use: NDArray[np.int64]
    last: NDArray[np.int64]
    dest: NDArray[np.int64]
    trigger: NDArray[np.int64]
    synchronous: NDArray[np.bool_]
    copied: NDArray[np.bool_]
    ahead: NDArray[np.int64]


class LevelGraph:
    """The step as LMS sees it: levels, and the uses of the candidates, by storage and then in the trace's order."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.levels = Levels(trace)
        self.step = step_graph(trace)
        uses = self.step.uses
        own = (trace.births >= 0) & ~self.step.transient
        self.candidates = own & (trace.storages.bytes >= SMALLEST_BYTES) & ~self.step.host_touched
        # What an op makes without touching it, as aten::empty does, is of no level yet.
        rows = uses.accessed & self.candidates[uses.storage]
        self._others = np.flatnonzero(uses.accessed & (own & ~self.candidates)[uses.storage])
        self.storage, self.op = uses.storage[rows], uses.at[rows]
        self.level = self.levels.level[self.op]
        self.overwrites = uses.written_whole[rows]
        self.begins = np.diff(self.storage, prepend=-1) != 0
        here = np.arange(len(self.op))
        writers = np.maximum.accumulate(np.where(uses.writes[rows] | self.begins, here, 0))
        self.source = np.where(self.begins, here, np.roll(writers, 1))
        self.distance = self.level - self.level[self.source]

    @property
    def lasting_bytes(self) -> int:
        """Bytes of what is there before the first op and after it has begun: the variables."""
        lasting = (self.trace.births < 0) & (self.trace.deaths >= 0)
        return int(self.trace.storages.bytes[lasting].sum())

    def swaps(self, settings: Settings) -> LevelSwaps:
        """The absences of a step with these options."""
        use = np.flatnonzero(self._leaves_before(settings))
        dest, last = self.op[use], self.op[use - 1]
        ahead = self._ahead(settings.swapin_ahead, self.level[use])
        trigger = self.levels.ancestors(dest, ahead + 1)
        synchronous = (trigger <= last) | bool(settings.sync_mode & SYNCHRONOUS_IN)
        copied = ~self.overwrites[use]
        return LevelSwaps(
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

    def peak_bytes(self, swaps: LevelSwaps) -> int:
        """The most bytes on the device at any op, when every swap-out that has started has ended."""
        sizes = self.trace.storages.bytes[swaps.storage]
        away = sum_over(len(self.trace.ops), swaps.last + 1, swaps.trigger + 1, sizes)
        return int((self.step.peak_bytes - away).max(initial=self.step.bytes_before))

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
    def _other_bytes(self) -> NDArray[np.int64]:
        """Bytes at each place of storages that are no candidates."""
        uses = self.step.uses
        storage, place = uses.storage[self._others], self._place[uses.at[self._others]]
        begins = np.flatnonzero(np.diff(storage, prepend=-1))
        return self._lives(storage[begins], *_spans(place, begins))

    def _lives(self, storage: NDArray[np.int64], low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes at each place of storages that live from one place to another."""
        count = len(self._place)
        return sum_over(count, low, np.minimum(high + 1, count), self.trace.storages.bytes[storage])

    def replayed_peak_bytes(self, swaps: LevelSwaps, settings: Settings) -> int:
        """The most bytes beside the variables by TFLMS's simulator: tensors live from their op to their last consumer.

        Ops run level by level. One that leaves lingers for one op more, unless ops wait for swap-outs. One that comes
        is there from the level on that is `swapin_ahead` before its consumer's. Scratch memory is not known.
        """
        starts = self.begins.copy()
        starts[swaps.use] = True
        rows = np.flatnonzero(starts)
        low, high = _spans(self._place[self.op], rows)
        which = np.searchsorted(rows, swaps.use)
        early = self._first_place[np.maximum(self.level[swaps.use] - swaps.ahead, 0)]
        early = np.maximum(early, high[which - 1] + 1)
        early = np.where(swaps.synchronous | ~swaps.copied, low[which], early)
        low[which] = np.minimum(low[which], early)
        if not settings.sync_mode & SYNCHRONOUS_OUT:
            high[which - 1] += swaps.copied
        final = np.append(self.begins[rows][1:], True)[: len(rows)]
        outlives = final & (self.trace.deaths[self.storage[rows]] == len(self.trace.ops))
        high[outlives] = len(self._place)
        return int((self._other_bytes + self._lives(self.storage[rows], low, high)).max(initial=0))


def _spans(place: NDArray[np.int64], begins: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lowest and highest place of each run of rows, given where the runs begin."""
    if not len(begins):
        return begins, begins
    return np.minimum.reduceat(place, begins), np.maximum.reduceat(place, begins)
