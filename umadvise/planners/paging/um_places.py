"""Which storages share blocks of 2 MiB, at the same time or one after the other, given their addresses.

Addresses come from the simulator, which has the allocator of a real run. They do not depend on what moves.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.paging.um_gaps import BLOCK_BYTES, Lives
from umadvise.planners.step_graph import sum_over
from umadvise.records.columns import Columns
from umadvise.records.trace import EventKind


@dataclass(frozen=True, eq=False)
class Remains(Columns):
    """What is left on the device of storages that nobody needs any more, in whole blocks; one row a run of them.

    Attributes:
        storage: index of the storage.
        offset_blocks: first block of the run, within the storage.
        blocks: number of blocks of the run.
        last: op of the storage's last use.
        reused: op that makes something in the same place, counted on from the number of ops in the next step.
        reached: 1 where an action can reach it between its last use and its end.
    """

    storage: NDArray[np.int64]
    offset_blocks: NDArray[np.int64]
    blocks: NDArray[np.int64]
    last: NDArray[np.int64]
    reused: NDArray[np.int64]
    reached: NDArray[np.uint8]


class Places:
    """The blocks of a trace's storages: one row for each storage and block of which it has a part."""

    def __init__(self, lives: Lives, addresses: NDArray[np.uint64]) -> None:
        """Finds the blocks of each storage, and which storage has each of them next.

        Args:
            lives: storages of the trace over time.
            addresses: address of each storage; 0 where it has no memory.
        """
        self.lives, self.trace = lives, lives.trace
        at, sizes = addresses.astype(np.int64), lives.trace.storages.bytes
        begin, end = at // BLOCK_BYTES, (at + sizes - 1) // BLOCK_BYTES
        counts = np.where((at > 0) & (sizes > 0), end - begin + 1, 0)
        self._storage = np.repeat(np.arange(len(sizes)), counts)
        self._offset = np.arange(len(self._storage)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._made = np.maximum(self.trace.births, 0)[self._storage]
        self._reused = self._next_made(begin[self._storage] + self._offset)
        self._whole = self._offset < lives.blocks[self._storage]

    def _next_made(self, block: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each row the op that makes the next storage in the same block; the last one is followed by the first."""
        events, count = self.trace.events, len(block)
        allocated = np.flatnonzero(events.kind == EventKind.ALLOCATE)
        turn = np.zeros(len(self.trace.storages), np.int64)
        turn[events.storage[allocated]] = allocated
        order = np.lexsort((turn[self._storage], block))
        made = self._made[order]
        last = np.append(np.diff(block[order]) != 0, True)[:count]
        first = np.append(True, last[:-1])[:count]
        following = np.append(made[1:], 0)[:count]
        following[last] = made[first] + len(self.trace.ops)
        result = np.empty(count, np.int64)
        result[order] = following
        return result

    def shared_blocks(self) -> NDArray[np.int64]:
        """For each op the number of blocks of which storages have a part only: no action on one storage moves them."""
        count, parts = len(self.trace.ops), ~self._whole
        there = sum_over(2 * count, self._made[parts], self._reused[parts], np.ones(np.count_nonzero(parts), np.int64))
        return there[:count] + there[count:]

    def remains(self) -> Remains:
        """What is left on the device of all storages that end in the step."""
        ends = (
            (self.trace.deaths[self._storage] < len(self.trace.ops))
            & self._whole
            & self.lives.graph.uses.used[self._storage]
        )
        storage, offset, reused = self._storage[ends], self._offset[ends], self._reused[ends]
        joined = (np.diff(storage) == 0) & (np.diff(reused) == 0)
        first = np.flatnonzero(np.append(True, ~joined)[: len(storage)])
        lengths = np.diff(np.append(first, len(storage)))
        storage = storage[first]
        return Remains(
            storage=storage,
            offset_blocks=offset[first],
            blocks=lengths,
            last=self.lives.last_use[storage],
            reused=reused[first],
            reached=self._reached()[storage],
        )

    def _reached(self) -> NDArray[np.uint8]:
        """Storages for which an action fits between the last use and the end."""
        events, last_use = self.trace.events, self.lives.last_use
        freed_inside, copied = np.zeros(len(last_use), bool), np.zeros(len(last_use), bool)
        freed_inside[events.storage[(events.kind == EventKind.FREE) & (events.inside == 1)]] = True
        # What the host copies after the last op that uses it, it copies before it is freed and after the action.
        rows = ((events.kind == EventKind.HOST_WRITE) | (events.kind == EventKind.HOST_READ)) & (events.op >= 0)
        copied[events.storage[rows][events.op[rows] == last_use[events.storage[rows]]]] = True
        return ((self.trace.deaths > last_use) | ~(freed_inside | copied)).astype(np.uint8)
