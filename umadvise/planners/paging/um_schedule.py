"""A schedule for unified memory: what leaves early, what comes back in time, and what is discarded.

The driver evicts what it has served least recently (uvm/uvm_pmm_gpu.c), not what is needed last, and copies it back
though nobody may need it. It chooses only where no chunk is free or discarded, so the schedule leaves room at every op:

1. Where what is alive does not fit, what is used again furthest ahead (Belady 1966) leaves right after its last use:
   by a prefetch to the host, or, where the next op overwrites it, by a discard. The former can be left to the driver.
2. It comes back as late as the link allows, but not before there is room for it.
3. What is dead stays where a later storage takes its place, since a place that is mapped does not fault; as far as
   there is room. The rest is discarded, so that it goes first and without a copy.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.paging.um_gaps import BLOCK_BYTES, Lives, PagingGaps
from umadvise.planners.paging.um_places import Places, Remains
from umadvise.planners.paging.um_refresh import refreshes
from umadvise.planners.room import Room
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Action, ActionKind

Evictions = Literal["sent", "ordered", "left"]
"""What has to leave is sent to the host in time; or the driver evicts it, in the order that is wanted; or it evicts as
it likes."""
PIECE_BLOCKS = 32
"""Most blocks that one prefetch brings: a large storage comes in pieces, as there is room for them."""


class PagingSchedule:
    """The actions of one schedule of prefetches and discards.

    Attributes:
        actions: actions of the plan; only those before or after one op are in order.
    """

    def __init__(
        self, lives: Lives, places: Places, device: DeviceProfile, blocks: int, evictions: Evictions, ahead_ns: int
    ) -> None:
        """Makes it; `um_window` describes `evictions` and `ahead_ns`."""
        self.lives, self.device, self.evictions, self.ahead_ns = lives, device, evictions, ahead_ns
        self.count = len(lives.trace.ops)
        load = lives.load_blocks() + places.shared_blocks()
        self.gaps = lives.gaps()
        leaving = _leaving(self.gaps, lives.blocks, load, blocks)
        self.room = Room(blocks - load)
        self.actions: list[Action] = []
        gone = np.flatnonzero(leaving).tolist()
        for gap in gone:
            self.room.take(int(self.gaps.last[gap]) + 1, int(self.gaps.following[gap]), -int(leaving[gap]))
        self._send(gone, leaving)
        remains = places.remains()
        within = remains.reused < self.count
        self._clear(remains, np.flatnonzero(within))
        self._bring(gone, leaving)
        self._clear(remains, np.flatnonzero(~within))
        if evictions == "ordered":
            self.actions = [*refreshes(lives, self.gaps, leaving * self.gaps.kept, self.room.left()), *self.actions]

    def _at(self, position: int, storage: int, heir: int) -> tuple[int, int]:
        """Op and name of what is before an op of this step or the next."""
        return (position, storage) if position < self.count else (position - self.count, heir)

    def _send(self, gone: list[int], leaving: NDArray[np.int64]) -> None:
        gaps = self.gaps
        for gap in gone:
            if gaps.kept[gap] and self.evictions != "sent":
                continue
            op, storage = self._at(int(gaps.last[gap]) + 1, int(gaps.storage[gap]), int(gaps.heir[gap]))
            kind = ActionKind.PREFETCH if gaps.kept[gap] else ActionKind.DISCARD
            bytes_ = int(leaving[gap]) * BLOCK_BYTES
            self.actions.append(Action(kind, op, storage, bytes=bytes_, argument=int(gaps.kept[gap])))

    def _bring(self, gone: list[int], leaving: NDArray[np.int64]) -> None:
        """What is needed first has the first choice of room."""
        gaps = self.gaps
        for gap, first, blocks, wanted in reversed(self._wanted(gone, leaving)):
            need = int(gaps.following[gap])
            at = self.room.since(min(wanted, need), need, blocks)
            self.room.take(at, need, blocks)
            op, storage = self._at(at, int(gaps.storage[gap]), int(gaps.heir[gap]))
            offset, bytes_ = first * BLOCK_BYTES, blocks * BLOCK_BYTES
            if gaps.kept[gap] and not gaps.read[gap]:  # it was kept between the steps only
                self.actions.append(Action(ActionKind.DISCARD, op, storage, False, offset, bytes_))
            self.actions.append(Action(ActionKind.PREFETCH, op, storage, False, offset, bytes_))

    def _wanted(self, gone: list[int], leaving: NDArray[np.int64]) -> list[tuple[int, int, int, int]]:
        """What comes back, the last need first: gap, first block, blocks, and the op before which the link wants it."""
        gaps = self.gaps
        durations = np.maximum(self.lives.trace.ops.duration_ns, 0)
        # Of this step's ops, and of the next one's.
        begins = [0, *np.cumsum(np.concatenate([durations, durations])).tolist()]
        block_ns = _block_ns(self.device)
        free_ns = float("inf")
        found = []
        # Wherever a gap began: the link is one and the same in every step.
        for gap in sorted(gone, key=lambda gap: -(int(gaps.following[gap]) % self.count)):
            if not gaps.returns[gap]:
                continue
            need, earliest = int(gaps.following[gap]), int(gaps.last[gap]) + 1
            if gaps.kept[gap] and not gaps.read[gap]:  # what it holds is thrown away, but not before the next step
                earliest = self.count
            step_ns = begins[need] - begins[need % self.count]
            for first, blocks in _pieces(int(leaving[gap])):
                free_ns = min(free_ns, begins[need] - step_ns - self.ahead_ns)
                free_ns -= block_ns * blocks if gaps.read[gap] else 0
                found.append((gap, first, blocks, max(bisect_right(begins, step_ns + free_ns) - 1, earliest)))
        return found

    def _clear(self, remains: Remains, rows: NDArray[np.int64]) -> None:
        """Keeps what is dead where there is room until something else takes its place, first what waits shortest."""
        waits = remains.reused[rows] - remains.last[rows]
        for row in rows[np.argsort(waits, kind="stable")].tolist():
            storage, last, reused = int(remains.storage[row]), int(remains.last[row]), int(remains.reused[row])
            blocks = int(remains.blocks[row])
            if last + 1 >= reused:
                continue
            if not remains.reached[row] or self.room.since(last + 1, reused, blocks) == last + 1:
                self.room.take(last + 1, reused, blocks)
                continue
            at_once = int(self.lives.trace.deaths[storage]) == last
            offset, bytes_ = int(remains.offset_blocks[row]) * BLOCK_BYTES, blocks * BLOCK_BYTES
            op = last if at_once else last + 1
            self.actions.append(Action(ActionKind.DISCARD, op, storage, at_once, offset, bytes_))


def _block_ns(device: DeviceProfile) -> float:
    """Of the copy of one block by a prefetch, while others leave."""
    link = device.link.h2d
    bytes_per_s = link.both_bytes_per_s.value or link.bytes_per_s.value
    return link.fixed_ns.value + BLOCK_BYTES * 1e9 / min(bytes_per_s, _prefetch_bytes_per_s(device))


def evicts_faster(device: DeviceProfile) -> bool:
    """Whether the driver copies what it evicts faster than what it is told to move (POWER9)."""
    return _prefetch_bytes_per_s(device) < device.bandwidth_d2h


def _prefetch_bytes_per_s(device: DeviceProfile) -> float:
    return device.unified_memory.costs.prefetch_bytes_per_s.value or float("inf")


def _pieces(blocks: int) -> Iterator[tuple[int, int]]:
    """First block and number of each piece, the last piece first."""
    for first in range((blocks - 1) // PIECE_BLOCKS * PIECE_BLOCKS, -1, -PIECE_BLOCKS):
        yield first, min(PIECE_BLOCKS, blocks - first)


def _leaving(
    gaps: PagingGaps, sizes: NDArray[np.int64], load: NDArray[np.int64], budget_blocks: int
) -> NDArray[np.int64]:
    """Blocks that leave in each gap, so that the rest fits at every op as far as that can be."""
    count = len(load)
    leaving = np.zeros(len(gaps), np.int64)
    opens: dict[int, list[int]] = {}
    heap: list[tuple[int, int]] = []
    for gap in range(len(gaps)):
        opens.setdefault(int(gaps.last[gap]) + 1, []).append(gap)
        if gaps.following[gap] > count:  # it reaches into the step from the one before
            heap.append((count - int(gaps.following[gap]), gap))
    heapq.heapify(heap)
    change = np.zeros(count + 1, np.int64)  # of what is there, when an op is reached
    there = 0
    for op in range(count):
        for gap in opens.get(op, ()):
            heapq.heappush(heap, (-int(gaps.following[gap]), gap))
        there += int(change[op])
        while int(load[op]) + there > budget_blocks and heap and -heap[0][0] > op:
            end, gap = heap[0]
            last, following = int(gaps.last[gap]), int(gaps.following[gap])
            size = int(sizes[gaps.storage[gap]]) - int(leaving[gap])
            blocks = min(size, int(load[op]) + there - budget_blocks)
            leaving[gap] += blocks
            there -= blocks
            if -end < following:  # chosen before it opens in this step
                change[-end] += blocks
                change[min(last + 1, count)] -= blocks
            elif following < count:
                change[following] += blocks
            if blocks == size:
                heapq.heappop(heap)
    return leaving
