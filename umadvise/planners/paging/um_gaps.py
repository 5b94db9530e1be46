"""When storages are not needed, in the 2 MiB blocks that unified memory moves.

A storage of a block or more begins on a block (csrc/memory/managed_heap.h). Only its whole blocks are looked at: what
is beyond them, and smaller storages, share blocks with others, and moving one of those would move what an op works on.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.uses import Uses
from umadvise.records.columns import Columns
from umadvise.records.trace import EventKind, Trace

BLOCK_BYTES = 2 << 20
"""uvm/uvm_va_block_types.h."""


@dataclass(frozen=True, eq=False)
class Gaps(Columns):
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


class Lives:
    """The storages of a trace over time. A copy of the host's after an op is a use of that op.

    Attributes:
        trace: the step.
        blocks: whole ones of each storage.
        used: storages with a use.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.blocks: NDArray[np.int64] = trace.storages.bytes // BLOCK_BYTES
        self._storage, self._op, self._overwritten = self._uses()
        self._begin = np.searchsorted(self._storage, np.arange(len(trace.storages) + 1))
        self.used: NDArray[np.bool_] = np.diff(self._begin) > 0

    def _uses(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        uses, events, count = Uses(self.trace), self.trace.events, max(len(self.trace.ops), 1)
        copies = ((events.kind == EventKind.HOST_WRITE) | (events.kind == EventKind.HOST_READ)) & (events.op >= 0)
        by_ops = uses.storage * count + uses.op
        keys = np.union1d(by_ops, events.storage[copies].astype(np.int64) * count + events.op[copies])
        return keys // count, keys % count, np.isin(keys, by_ops[uses.written_whole])

    @cached_property
    def first_use(self) -> NDArray[np.int64]:
        """Op of each storage's first use; -1 where there is none."""
        result = np.full(len(self.used), -1, np.int64)
        result[self.used] = self._op[self._begin[:-1][self.used]]
        return result

    @cached_property
    def last_use(self) -> NDArray[np.int64]:
        """Op of each storage's last use; -1 where there is none."""
        result = np.full(len(self.used), -1, np.int64)
        result[self.used] = self._op[self._begin[1:][self.used] - 1]
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

    def load_blocks(self) -> NDArray[np.int64]:
        """For each op the whole blocks of what is alive and needed now or later, in this step or the next one."""
        trace, count = self.trace, len(self.trace.ops)
        begin = np.maximum(trace.births, 0)
        # What goes on is needed by somebody, unless neither this step nor the next one uses it at all.
        goes_on = (self.heir >= 0) & (self.used | self.used[self.heir])
        end = np.where(goes_on, count, self.last_use + 1)
        counted = end > begin
        change = np.zeros(count + 1, np.int64)
        np.add.at(change, begin[counted], self.blocks[counted])
        np.add.at(change, end[counted], -self.blocks[counted])
        result: NDArray[np.int64] = np.cumsum(change)[:count]
        return result

    def gaps(self) -> Gaps:
        """Those that at least one op lies in."""
        count = len(self.trace.ops)
        within = np.flatnonzero(self._storage[1:] == self._storage[:-1])
        storage = self._storage[within]
        over = np.flatnonzero((self.heir >= 0) & self.used)
        heir = self.heir[over]
        returns = self.used[heir]
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
