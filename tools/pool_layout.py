"""Which chunks lie under each stay of a steady step, chosen ahead of time.

A plan decides when storages come and go, so all stays of a steady step are known before it runs, and each can have an
address range of its own that stays mapped. A chunk may lie under many ranges: a layout gives it to one stay after the
other. Stays that meet in the order of the host's calls must not share a chunk; the step repeats, so its time is a
circle.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from pool_memory import CHUNK_BYTES, SMALL_BYTES, LaidOutMemory, rounded
from pool_replay import Replay

Integers: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.float64]
_LONG_AGO, _NEVER = -1e18, 1e18


@dataclass(frozen=True, eq=False)
class Stays:
    """The times for which storages hold memory in a steady step: by the host's calls, and by the device's work.

    Attributes:
        begin: tick of the host's takings and givings of memory, and nanosecond, at which each stay begins; two rows.
        end: the same of each stay's end; it may be in the step after.
        bytes: memory of each stay, in the order in which they begin.
        length: ticks and nanoseconds of a step.
        fixed_bytes: memory of storages that never leave, in whole chunks where they are not small.
        first_take: number of takings of memory before a steady step.
        budget_bytes: memory of the replay that they come from.
    """

    begin: Numbers
    end: Numbers
    bytes: Integers
    length: Numbers
    fixed_bytes: int
    first_take: int
    budget_bytes: int

    @classmethod
    def of(cls, replay: Replay, budget_bytes: int) -> "Stays":
        """Those that begin in the last step but one of a replay in a budget."""
        step, after = replay.steps[-2:]
        origin = np.array([step.first_tick, step.begin_ns])
        begun = [stay for stay in replay.stays if step.first_tick <= stay.lease.taken_at < after.first_tick]
        begun.sort(key=lambda stay: stay.lease.taken_at)
        length = np.array([after.first_tick, after.begin_ns]) - origin
        held = [s for s in replay.stays if s.lease.taken_at < step.first_tick and s.end > after.first_tick + length[0]]
        return cls(
            begin=np.array([(stay.lease.taken_at, stay.lease.used_ns) for stay in begun]).T - origin[:, None],
            end=np.array([(stay.end, stay.free.ns) for stay in begun]).T - origin[:, None],
            bytes=np.array([stay.lease.bytes for stay in begun]),
            length=length,
            fixed_bytes=sum(rounded(s.lease.bytes, 1 if s.lease.bytes < SMALL_BYTES else CHUNK_BYTES) for s in held),
            first_take=replay.steps[len(replay.steps) // 2].first_take,
            budget_bytes=budget_bytes,
        )

    @property
    def small(self) -> NDArray[np.bool_]:
        """Whether each shares chunks with others, and needs no layout."""
        return self.bytes < SMALL_BYTES

    @property
    def chunks(self) -> Integers:
        """Chunks of each stay that is not small."""
        return np.where(self.small, 0, -(-self.bytes // CHUNK_BYTES))

    @property
    def budget_chunks(self) -> int:
        """Chunks of the budget, but for those of small stays and of storages that never leave."""
        return int(self.budget_bytes - self.fixed_bytes - self.load(np.where(self.small, self.bytes, 0))) // CHUNK_BYTES

    def load(self, amounts: Integers) -> int:
        """The most that is held at once, by the host's calls, where each stay holds an amount."""
        length, (begin, end) = int(self.length[0]), (self.begin[0].astype(int), self.end[0].astype(int))
        change = np.zeros(2 * length + 1, np.int64)
        np.add.at(change, begin, amounts)
        np.subtract.at(change, end, amounts)
        held = np.cumsum(change)
        return int((held[:length] + held[length:-1]).max())


class ChunkLayout:
    """Chunks for each stay that is not small.

    Stays that span the edge of the step get chunks of their own. Then every other one, in the order in which they
    begin, takes of the chunks that are free for all of it those for which the device has to wait least, and of equal
    ones those that are idle first: what is late then delays nobody.

    Attributes:
        stays: stays of the step.
        chunks: chunks of each stay; none of a small one.
        count: chunks that are needed.
    """

    def __init__(self, stays: Stays, *, predicted: bool = True) -> None:
        """Lays out a step.

        Args:
            stays: stays of a steady step.
            predicted: whether the times of the device's work count, or the order of the host's calls alone.

        Raises:
            ValueError: a stay lasts for more than a step.
        """
        if (stays.end[0] - stays.begin[0] > stays.length[0]).any():
            raise ValueError("expected a steady step, in which no stay lasts for more than a step")
        self.stays, self._predicted = stays, predicted
        sizes, spanning = stays.chunks, stays.end[0] > stays.length[0]
        own = int(sizes[spanning].sum())
        self.count = max(own, stays.budget_chunks)
        # By chunk, tick and nanosecond: when the last stay in it ends, and when the stay that spans the edge begins.
        self._ended = np.full((2, self.count), _LONG_AGO)
        self._claimed = np.full((2, self.count), _NEVER)
        self._ended[:, :own] = np.repeat(stays.end[:, spanning] - stays.length[:, None], sizes[spanning], axis=1)
        self._claimed[:, :own] = np.repeat(stays.begin[:, spanning], sizes[spanning], axis=1)
        self.chunks = [np.zeros(0, np.int64)] * len(sizes)
        firsts = np.cumsum(np.where(spanning, sizes, 0)) - sizes
        for stay in np.flatnonzero(spanning).tolist():
            self.chunks[stay] = np.arange(firsts[stay], firsts[stay] + sizes[stay])
        for stay in np.flatnonzero(~spanning & ~stays.small).tolist():
            self._choose(stay)

    def memory(self) -> LaidOutMemory:
        """Memory for a replay whose steady steps have this layout."""
        users: list[list[int]] = [[] for _ in range(self.count)]
        for stay, chunks in enumerate(self.chunks):
            for chunk in chunks.tolist():
                users[chunk].append(stay)
        sharing = [
            sorted({stay}.union(*(users[chunk] for chunk in chunks.tolist())))
            for stay, chunks in enumerate(self.chunks)
        ]
        stays = self.stays
        return LaidOutMemory(stays.budget_bytes, stays.bytes.tolist(), sharing, stays.first_take)

    def _choose(self, stay: int) -> None:
        begin, end = self.stays.begin[:, stay], self.stays.end[:, stay]
        free = np.flatnonzero((self._ended[0] <= begin[0]) & (self._claimed[0] >= end[0]))
        lacking = max(0, int(self.stays.chunks[stay]) - len(free))
        if lacking:
            free = np.append(free, np.arange(self.count, self.count + lacking))
            self._ended = np.pad(self._ended, ((0, 0), (0, lacking)), constant_values=_LONG_AGO)
            self._claimed = np.pad(self._claimed, ((0, 0), (0, lacking)), constant_values=_NEVER)
            self.count += lacking
        idle = self._ended[int(self._predicted), free]
        waits = np.maximum(0.0, np.maximum(self._ended[1, free] - begin[1], end[1] - self._claimed[1, free]))
        order = np.lexsort((idle, waits)) if self._predicted else np.argsort(idle, kind="stable")
        chosen = free[order[: self.stays.chunks[stay]]]
        self._ended[:, chosen] = end[:, None]
        self.chunks[stay] = chosen
