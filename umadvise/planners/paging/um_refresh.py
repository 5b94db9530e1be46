"""Steers the driver's evictions: what must stay is prefetched again before it would be evicted.

The driver evicts what it has served least recently, by a fault or a prefetch, whatever is used next
(uvm/uvm_pmm_gpu.c). A prefetch of what is there moves nothing, but puts it last. So each time something has to go, the
driver's order is followed: what may leave goes, and what must stay and would go before it is prefetched.

What is made counts as served, although it is not where the place is still mapped; so some victims are others.
"""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.paging.um_gaps import BLOCK_BYTES, Lives, PagingGaps
from umadvise.planners.step_lists import grouped
from umadvise.records.plan import Action, ActionKind


def refreshes(lives: Lives, gaps: PagingGaps, leaving: NDArray[np.int64], room: NDArray[np.int64]) -> list[Action]:
    """Prefetches of what is on the device already, so that the driver evicts what is not needed instead.

    Args:
        lives: storages of the trace over time.
        gaps: gaps between uses in which storages may leave.
        leaving: number of blocks that leave in each gap.
        room: number of free blocks at each op when all of those have left.
    """
    order = _Order(lives, gaps, leaving, room)
    order.follow()  # a step that brings the list into its order
    order.actions.clear()
    order.follow()
    return order.actions


class _Order:
    def __init__(self, lives: Lives, gaps: PagingGaps, leaving: NDArray[np.int64], room: NDArray[np.int64]) -> None:
        self.lives, self.count = lives, len(room)
        self.room: list[int] = room.tolist()
        self.sizes: list[int] = lives.blocks.tolist()
        self.actions: list[Action] = []
        self.leaves: dict[int, list[tuple[int, int]]] = {}  # by op: a storage that is not needed, and how many blocks
        self.returns: dict[int, list[int]] = {}
        for gap in np.flatnonzero(leaving).tolist():
            begin, end = int(gaps.last[gap]) + 1, int(gaps.following[gap]) % self.count
            name = int(gaps.storage[gap] if begin < self.count else gaps.heir[gap])
            self.leaves.setdefault(begin % self.count, []).append((name, int(leaving[gap])))
            if gaps.returns[gap]:
                self.returns.setdefault(end, []).append(int(gaps.heir[gap]))
        whole = np.flatnonzero(lives.blocks)
        # The last entry, [-1], is what is there before the first op.
        self.births = grouped(lives.trace.births[whole] % (self.count + 1), whole, self.count + 1)
        self.deaths = grouped(lives.trace.deaths[whole] % (self.count + 1), whole, self.count + 1)
        self.begins = [each for each in self.births[-1] if lives.trace.deaths[each] >= 0]
        there = set(self.begins)
        self.heirs = {each: heir for each, heir in enumerate(lives.graph.heir.tolist()) if heir in there}
        self.served: OrderedDict[int, None] = OrderedDict.fromkeys(self.begins)  # the least recently first
        self.idle: dict[int, int] = {}  # blocks that are not needed and still there
        self.idle_blocks = 0
        self.parts: dict[int, int] = {}  # blocks that were not needed when it was last not needed

    def follow(self) -> None:
        """One step, and what the next one calls what lives on."""
        for op in range(self.count):
            for storage in self.returns.get(op, ()):
                self._end(storage)
                self._serve(storage)
            for storage, blocks in self.leaves.get(op, ()):
                self.idle[storage] = self.parts[storage] = blocks
                self.idle_blocks += blocks
            self._make_room(op)
            for storage in self.births[op]:
                self._serve(storage)
            for storage in self.deaths[op]:
                self._end(storage)
                self.served.pop(storage, None)
        self.served = OrderedDict.fromkeys(self.heirs[each] for each in self.served if each in self.heirs)
        self.served.update(dict.fromkeys(self.begins))
        self.idle = {self.heirs[each]: blocks for each, blocks in self.idle.items() if each in self.heirs}
        self.idle_blocks = sum(self.idle.values())
        self.parts = {self.heirs[each]: blocks for each, blocks in self.parts.items() if each in self.heirs}

    def _serve(self, storage: int) -> None:
        self.served[storage] = None
        self.served.move_to_end(storage)

    def _end(self, storage: int) -> None:
        self.idle_blocks -= self.idle.pop(storage, 0)

    def _make_room(self, op: int) -> None:
        needed = self.idle_blocks - self.room[op]
        for _ in range(len(self.served)):
            if needed <= 0 or self.idle_blocks == 0:
                return
            storage = next(iter(self.served))
            goes = min(self.idle.get(storage, 0), needed)
            needed -= goes
            self.idle_blocks -= goes
            left = self.idle.pop(storage, 0) - goes
            if left > 0:
                self.idle[storage] = left
            else:
                self._refresh(op, storage, self.parts[storage] if goes > 0 else 0)

    def _refresh(self, op: int, storage: int, first: int) -> None:
        blocks = self.sizes[storage] - first
        if blocks == 0:
            del self.served[storage]
            return
        self._serve(storage)
        offset, bytes_ = first * BLOCK_BYTES, blocks * BLOCK_BYTES
        self.actions.append(Action(ActionKind.PREFETCH, op, storage, offset_bytes=offset, bytes=bytes_))
