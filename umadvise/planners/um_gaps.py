"""When storages are not needed, in the 2 MiB blocks that unified memory moves.

A storage of a block or more begins on a block (csrc/memory/managed_heap.h). Only its whole blocks are looked at: what
is beyond them, and smaller storages, share blocks with others, and moving one of those would move what an op works on.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from umadvise._abi import Role
from umadvise.planners.uses import Uses
from umadvise.simulator.unified import arenas
from umadvise.trace.schema import EventKind, Table, Trace

BLOCK_BYTES = 2 << 20
"""uvm/uvm_va_block_types.h."""
_GRANULE_BYTES = 512  # csrc/memory/arena.h


@dataclass(frozen=True, eq=False)
class Gaps(Table):
    """Times between two uses of what is needed again, of storages with whole blocks; one row each.

    Attributes:
        storage: under its name where the gap begins.
        heir: under its name where the gap ends; another one where a successor takes its place.
        last: op of the use before.
        following: op of the next use, and the number of ops more where it is one of the next step.
        kept: 1 where the contents must be: they are read after the gap, or outlive the step, when whoever trains may
            look at them.
        read: 1 where they are read after the gap, 0 where the next op writes all of them.
        returns: 0 where the gap ends with the storage's death in the next step.
    """

    storage: NDArray[np.int64]
    heir: NDArray[np.int64]
    last: NDArray[np.int64]
    following: NDArray[np.int64]
    kept: NDArray[np.uint8]
    read: NDArray[np.uint8]
    returns: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Remains(Table):
    """What is left on the device of storages that nobody needs any more; one row a storage with whole blocks.

    Attributes:
        storage: index.
        last: op of its last use.
        reused: op that makes something in the same place, and the number of ops more where it is one of the next step.
        reached: 1 where an action can reach it between its last use and its end.
    """

    storage: NDArray[np.int64]
    last: NDArray[np.int64]
    reused: NDArray[np.int64]
    reached: NDArray[np.uint8]


class Lives:
    """The storages of a trace over time. A copy of the host's after an op is a use of that op.

    Attributes:
        trace: the step.
        blocks: whole ones of each storage.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.blocks: NDArray[np.int64] = trace.storages.bytes // BLOCK_BYTES
        self._storage, self._op, self._overwritten = self._uses()
        self._begin = np.searchsorted(self._storage, np.arange(len(trace.storages) + 1))
        self._used: NDArray[np.bool_] = np.diff(self._begin) > 0

    def _uses(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        uses, events, count = Uses(self.trace), self.trace.events, max(len(self.trace.ops), 1)
        copies = ((events.kind == EventKind.HOST_WRITE) | (events.kind == EventKind.HOST_READ)) & (events.op >= 0)
        by_ops = uses.storage * count + uses.op
        keys = np.union1d(by_ops, events.storage[copies].astype(np.int64) * count + events.op[copies])
        return keys // count, keys % count, np.isin(keys, by_ops[uses.written_whole])

    @cached_property
    def first_use(self) -> NDArray[np.int64]:
        """Op of each storage's first use; -1 where there is none."""
        result = np.full(len(self._used), -1, np.int64)
        result[self._used] = self._op[self._begin[:-1][self._used]]
        return result

    @cached_property
    def last_use(self) -> NDArray[np.int64]:
        """Op of each storage's last use; -1 where there is none."""
        result = np.full(len(self._used), -1, np.int64)
        result[self._used] = self._op[self._begin[1:][self._used] - 1]
        return result

    @cached_property
    def heir(self) -> NDArray[np.int64]:
        """As which storage of the next step each goes on; -1 where it does not."""
        trace, count = self.trace, len(self.trace.ops)
        successor = trace.storages.successor
        result = np.where((trace.births < 0) & (trace.deaths == count), np.arange(len(successor)), -1)
        heirs = np.flatnonzero(successor >= 0)
        result[successor[heirs]] = heirs
        return result

    def load_bytes(self) -> NDArray[np.int64]:
        """For each op the bytes of what is alive and needed now or later; of this step's and the next one's."""
        trace, count = self.trace, len(self.trace.ops)
        begin = np.maximum(trace.births, 0)
        # What goes on is needed by somebody, unless neither this step nor the next one uses it at all.
        goes_on = (self.heir >= 0) & (self._used | self._used[self.heir])
        end = np.where(goes_on, count, self.last_use + 1)
        counted = end > begin
        change = np.zeros(count + 1, np.int64)
        np.add.at(change, begin[counted], trace.storages.bytes[counted])
        np.add.at(change, end[counted], -trace.storages.bytes[counted])
        return np.cumsum(change)[:count]

    def gaps(self) -> Gaps:
        """Those that at least one op lies in."""
        count = len(self.trace.ops)
        within = np.flatnonzero(self._storage[1:] == self._storage[:-1])
        storage = self._storage[within]
        over = np.flatnonzero((self.heir >= 0) & self._used)
        heir = self.heir[over]
        returns = self._used[heir]
        ends = np.where(returns, self.first_use[heir], np.minimum(self.trace.deaths[heir], count - 1))
        read = ~self._overwritten[within + 1]
        read_next = ~self._overwritten[np.minimum(self._begin[:-1][heir], len(self._op) - 1)]
        columns = (
            np.concatenate([storage, over]),
            np.concatenate([storage, heir]),
            np.concatenate([self._op[within], self.last_use[over]]),
            np.concatenate([self._op[within + 1], ends + count]),
            np.concatenate([read, np.ones(len(over), bool)]),
            np.concatenate([read, read_next]),
            np.concatenate([np.ones(len(within), bool), returns]),
        )
        keep = (columns[3] - columns[2] > 1) & (self.blocks[columns[0]] > 0)
        return Gaps(*(column[keep] for column in columns))

    def remains(self) -> Remains:
        """Of all storages that end in the step."""
        trace, count = self.trace, len(self.trace.ops)
        ends = np.flatnonzero((trace.deaths < count) & (self.blocks > 0) & self._used)
        reused = np.where(trace.births < 0, -1, trace.births)[ends] + count
        later = self._next_in_place()
        reused = np.where(later[ends] >= 0, later[ends], reused)
        events = trace.events
        freed_inside = np.zeros(len(trace.storages), bool)
        freed_inside[events.storage[(events.kind == EventKind.FREE) & (events.inside == 1)]] = True
        last = self.last_use[ends]
        # What the host copies after the last op that uses it, it copies before it is freed and after the action.
        copied = np.zeros(len(trace.storages), bool)
        rows = ((events.kind == EventKind.HOST_WRITE) | (events.kind == EventKind.HOST_READ)) & (events.op >= 0)
        copied[events.storage[rows][events.op[rows] == self.last_use[events.storage[rows]]]] = True
        reached = (trace.deaths[ends] > last) | ~(freed_inside | copied)[ends]
        return Remains(ends, last, reused, reached)  # type: ignore[arg-type]

    def _next_in_place(self) -> NDArray[np.int64]:
        """Op that makes a storage of equal size where each was, as far as can be said: what was freed last is first."""
        trace, count = self.trace, len(self.trace.ops)
        size = -(-trace.storages.bytes // _GRANULE_BYTES) * len(Role) + arenas(trace)
        result = np.full(len(size), -1, np.int64)
        free: dict[int, list[int]] = {}
        late: list[tuple[int, int]] = []
        events = trace.events
        rows = np.flatnonzero((events.kind <= EventKind.FREE) & (events.op >= 0))
        keys = size[events.storage[rows]].tolist()
        for key, kind, storage, op in zip(
            keys, events.kind[rows].tolist(), events.storage[rows].tolist(), events.op[rows].tolist(), strict=True
        ):
            if kind == EventKind.FREE:
                free.setdefault(key, []).append(storage)
            elif free.get(key):
                result[free[key].pop()] = op
            else:
                late.append((key, op))
        for key, op in late:  # of the next step
            if free.get(key):
                result[free[key].pop()] = op + count
        return result
