"""When storages are not needed, in the 2 MiB blocks that unified memory moves.

A storage of a block or more begins on a block (csrc/memory/managed_heap.h). Only its whole blocks are looked at: what
is beyond them, and smaller storages, share blocks with others, and moving one of those would move what an op works on.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.step_graph import step_graph, sum_over
from umadvise.records.columns import Columns
from umadvise.records.trace import Trace

BLOCK_BYTES = 2 << 20
"""Size of a block of managed memory (kernel-open/nvidia-uvm/uvm_va_block_types.h)."""


@dataclass(frozen=True, eq=False)
class PagingGaps(Columns):
    """The times between two uses of storages with whole blocks, as columns, one row each.

    Attributes:
        storage: index of the storage where the gap begins.
        heir: index of the storage where the gap ends: its successor's where that takes its place in the next step.
        last: op of the use before the gap.
        following: op of the next use, counted on from the number of ops where it is one of the next step.
        kept: 1 where the contents must survive the gap: they are read after it, or outlive the step, so that whoever
            trains may look at them.
        read: 1 where the contents are read after the gap, 0 where the next op writes all of them.
        returns: 1 where the gap ends with a use, 0 where it ends with the storage's death in the next step.
    """

    storage: NDArray[np.int64]
    heir: NDArray[np.int64]
    last: NDArray[np.int64]
    following: NDArray[np.int64]
    kept: NDArray[np.uint8]
    read: NDArray[np.uint8]
    returns: NDArray[np.uint8]


class Lives:
    """The storages of a trace over time.

    Attributes:
        trace: trace of the step.
        graph: step graph of the trace.
        blocks: number of whole blocks of each storage.
        first_use: op of each storage's first use; -1 where there is none.
        last_use: op of each storage's last use; -1 where there is none.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace, self.graph = trace, step_graph(trace)
        self.blocks: NDArray[np.int64] = trace.storages.bytes // BLOCK_BYTES
        uses = self.graph.uses
        at = np.append(uses.at, -1)
        self.first_use = np.where(uses.used, at[uses.first[:-1]], -1)
        self.last_use = np.where(uses.used, at[uses.first[1:] - 1], -1)

    def load_blocks(self) -> NDArray[np.int64]:
        """For each op the whole blocks of what is alive and needed now or later, in this step or the next one."""
        count, heir, used = len(self.trace.ops), self.graph.heir, self.graph.uses.used
        begin = np.maximum(self.trace.births, 0)
        # What goes on is needed by somebody, unless neither this step nor the next one uses it at all.
        goes_on = (heir >= 0) & (used | used[heir])
        end = np.where(goes_on, count, self.last_use + 1)
        return sum_over(count, begin, np.maximum(begin, end), self.blocks)

    def gaps(self) -> PagingGaps:
        """The gaps in which at least one op lies."""
        count, uses, within = len(self.trace.ops), self.graph.uses, self.graph.uses.inner
        storage = uses.storage[within]
        over = np.flatnonzero((self.graph.heir >= 0) & uses.used)
        heir = self.graph.heir[over]
        returns = uses.used[heir]
        ends = np.where(returns, self.first_use[heir], np.minimum(self.trace.deaths[heir], count - 1))
        read = ~uses.written_whole[within + 1]
        read_next = ~uses.written_whole[np.minimum(uses.first[heir], len(uses.at) - 1)]
        columns = (
            np.concatenate([storage, over]),
            np.concatenate([storage, heir]),
            np.concatenate([uses.at[within], self.last_use[over]]),
            np.concatenate([uses.at[within + 1], ends + count]),
            np.concatenate([read, np.ones(len(over), bool)]),
            np.concatenate([read, read_next]),
            np.concatenate([np.ones(len(within), bool), returns]),
        )
        keep = (columns[3] - columns[2] > 1) & (self.blocks[columns[0]] > 0)
        return PagingGaps(*(column[keep] for column in columns))
