"""The times between two uses of a storage, in which it could leave the device: what a plan of swaps decides about."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.points import Points
from umadvise.planners.step_graph import sum_over
from umadvise.records.device import DeviceProfile
from umadvise.records.enums import Role
from umadvise.records.trace import EventKind, Trace


@dataclass(frozen=True, eq=False)
class SwapGaps:
    """The gaps of a step as columns, one row a gap, by storage and then in time.

    The step repeats, so a gap may go on over its end: points and ops of the next step are counted on from the number of
    points or ops.

    Attributes:
        points: moments of the step: ops, and the copies that the program makes itself.
        storage: index of the storage that could leave.
        heir: index of the storage when it comes back: its successor's where that takes its place in the next step.
        begin: last point of the op that uses the storage before the gap.
        end: first point at which the storage is there again.
        bytes: size of the storage.
        needed: whether the storage's contents are needed after the gap.
        written: number of the write that made the contents: a copy on the host is valid for gaps with the same number;
            -1 for contents that no step writes, which the host has for good.
        carried: whether that write was in the step before.
        first_op: first op before which the storage could come back.
        last_op: last op before which the storage could come back: the one that uses it.
    """

    points: Points
    storage: NDArray[np.int64]
    heir: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    bytes: NDArray[np.int64]
    needed: NDArray[np.bool_]
    written: NDArray[np.int64]
    carried: NDArray[np.bool_]
    first_op: NDArray[np.int64]
    last_op: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.storage)

    @cached_property
    def ended(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Storages that outlive their last use, and the op of that use: nobody needs them any more."""
        known = self.points
        ended = np.flatnonzero(known.used & (known.opening < 0))
        last = known.op[known.at[known.first[ended + 1] - 1]]
        outlives = (last >= 0) & (known.trace.deaths[ended] > last)
        return ended[outlives], last[outlives]

    @cached_property
    def idle(self) -> NDArray[np.int64]:
        """Storages that are there before the step and after it, and that nobody uses: they leave after op 0.

        A library's workspace is not among them: its kernels use it, though no op names it.
        """
        known = self.points
        unused = ~known.used & (known.graph.heir == np.arange(len(known.bytes)))
        movable = (known.trace.storages.role != Role.WORKSPACE) & (known.bytes > 0)
        return np.flatnonzero(unused & movable & (len(known.trace.ops) > 0))

    @cached_property
    def kept_bytes(self) -> NDArray[np.int64]:
        """At each point the most bytes on the device if nothing leaves but what nobody needs again, or uses."""
        known, (ended, last) = self.points, self.ended
        dead = np.flatnonzero(~self.needed)
        leaves = np.searchsorted(known.op, last, "right")  # after all that is after the op
        result = _live_bytes(known, ended)
        result -= sum_over(len(known), leaves, np.full(len(leaves), len(known)), known.bytes[ended])
        result[known.op > 0] -= known.bytes[self.idle].sum()
        result -= self.bytes_in(dead, self.begin[dead] + 1, self.end[dead])
        # The first step of all begins with everything on the device that has not been swapped out.
        result[:1] = np.maximum(result[:1], known.bytes[known.trace.births < 0].sum())
        return result

    def bytes_in(self, rows: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
        """At each point the bytes of gaps over points begin..end - 1, which go on in the next step."""
        count = len(self.points)
        total = sum_over(2 * count, begin, np.maximum(begin, end), self.bytes[rows])
        return total[:count] + total[count:]

    def copied_out(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For gaps in which storages leave, ascending: whether the host has no valid copy yet."""
        result = np.zeros(len(rows), bool)
        order = np.lexsort((self.carried[rows], self.written[rows]))
        _, first = np.unique(self.written[rows][order], return_index=True)
        result[order[first]] = True
        return result & (self.written[rows] >= 0)


def gaps(trace: Trace, device: DeviceProfile) -> SwapGaps:
    """The gaps of a step, in all of which its storages could leave."""
    known = Points(trace, device)
    count, ops, op = len(known), len(trace.ops), known.op
    onward = np.flatnonzero(known.used & (known.opening >= 0))
    use = np.concatenate([known.inner, known.first[onward + 1] - 1])
    following = np.concatenate([known.inner + 1, known.opening[onward]])
    again = np.arange(len(use)) >= len(known.inner)
    needed, storage = _needs(known)[following], known.storage[use]
    # It leaves after all that is after the op, and comes back before all that is in the op.
    begin = np.searchsorted(op, op[known.at[use]], "right") - 1
    end = np.where(needed, np.searchsorted(op, op[known.at[following]], "left"), known.at[following])
    end += count * again
    first_op, last_op = op[begin] + 1, op[known.at[following]] + ops * again
    # What is needed before the first op, in the first step of all, finds no anchor to come back at, what is used before
    # it none to leave at, nor does what is back within one op.
    early = known.graph.host_begins[known.storage[following]] & again
    anchored = (op[begin] >= 0) & (first_op <= last_op) & ~(needed & early)
    order = np.lexsort((begin, storage))
    order = order[(anchored & (end > begin + 1) & (known.bytes[storage] > 0))[order]]
    written, carried = (column[use] for column in _contents(known))
    heir, size = known.storage[following], known.bytes[storage]
    columns = (storage, heir, begin, end, size, needed, written, carried, first_op, last_op)
    return SwapGaps(known, *(column[order] for column in columns))


def _needs(known: Points) -> NDArray[np.bool_]:
    """For each use whether contents are needed: for a copy in an op also where the op needs what was before it."""
    of = known.op[known.at]
    last = np.append(known.op_at, -1)[of]
    together = (np.diff(known.storage) == 0) & (np.diff(of) == 0) & (known.at[1:] <= last[1:])
    first = np.flatnonzero(~np.append(False, together)[: len(of)])
    if not len(first):
        return known.needs
    any_needs: NDArray[np.bool_] = np.logical_or.reduceat(known.needs, first)
    return np.repeat(any_needs, np.diff(np.append(first, len(of))))


def _contents(known: Points) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """For each use the number of the write that its contents are of, and whether that was in the step before."""
    before = np.concatenate([[0], np.cumsum(known.writes)])
    last = before[known.first[1:]]  # of each storage; numbers go on from one to the next
    graph = known.graph
    ancestor = np.where(graph.continues, graph.source, np.arange(len(last)))
    written = before[1:]
    carried = written == before[known.first[known.storage]]
    source = ancestor[known.storage]
    of_last = np.where(last[source] > before[known.first[source]], last[source] * (len(last) + 1) + source, -1)
    return np.where(carried, of_last, written * (len(last) + 1) + known.storage), carried


def _live_bytes(known: Points, unfreed: NDArray[np.int64]) -> NDArray[np.int64]:
    """At each point the most bytes of what there is, with these storages up to the end of the step."""
    trace, events, hosted = known.trace, known.trace.events, known.graph.program_copies
    frees = (events.kind == EventKind.FREE) & ~np.isin(events.storage, unfreed)
    live = np.cumsum(((events.kind == EventKind.ALLOCATE).astype(np.int64) - frees) * known.bytes[events.storage])
    result = np.zeros(len(known), np.int64)
    result[known.op_at] = np.append(live, 0)[np.searchsorted(events.op, np.arange(len(trace.ops))) - 1]
    # What happens between two points counts for the one before.
    at = np.setdiff1d(np.arange(len(known)), known.op_at)
    np.maximum.at(result, at, live[hosted])
    after = np.flatnonzero((events.inside == 0) | (events.op < 0))
    hosted_after = events.inside[hosted] == 0
    copy = np.searchsorted(hosted[hosted_after], after, "right") - 1
    owner = np.append(at[hosted_after], -1)[copy]
    owner = np.maximum(owner, np.append(known.op_at, -1)[events.op[after]])
    inside = np.flatnonzero((events.inside == 1) & (events.op >= 0))
    np.maximum.at(result, known.op_at[events.op[inside]], live[inside])
    np.maximum.at(result, owner[owner >= 0], live[after[owner >= 0]])
    return result
