"""The times between two uses of a storage, in which it could leave the device: what a plan of swaps decides about."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.bounds.bound_points import Points, op_of_points, points, program_copies
from umadvise.planners.uses import Uses
from umadvise.records.device import DeviceProfile
from umadvise.records.enums import Role
from umadvise.records.trace import EventKind, Trace


@dataclass(frozen=True, eq=False)
class Gaps:
    """One row a gap, by storage and then in time. The step repeats: gaps go on over its end.

    Attributes:
        trace: the step.
        device: whose link would copy.
        points: its moments: ops, and the copies that the program makes itself.
        op: of each point, that or after which it is; -1 before the first.
        point: of each op.
        storage: which leaves.
        heir: what it is called when it comes back: another one where its successor takes its place in the next step.
        begin: the last point of the op of the use before.
        end: the first point at which it is there again; in the next step counted on from the number of points.
        bytes: of the storage.
        needed: whether its contents are needed again.
        written: number of the write that the contents are of: a copy on the host is valid for gaps with the same one;
            -1 for what no step writes, which the host has for good.
        carried: that write was in the step before.
        first_op: the first op before which it could come back; in the next step counted on from the number of ops.
        last_op: the last one.
    """

    trace: Trace
    device: DeviceProfile
    points: Points
    op: NDArray[np.int64]
    point: NDArray[np.int64]
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
        ended = np.flatnonzero((known.first[1:] > known.first[:-1]) & (known.opening() < 0))
        last = self.op[known.point[known.first[ended + 1] - 1]]
        outlives = (last >= 0) & (self.trace.deaths[ended] > last)
        return ended[outlives], last[outlives]

    @cached_property
    def idle(self) -> NDArray[np.int64]:
        """Storages that are there before the step and after it, and that nobody uses: they leave after op 0.

        A library's workspace is not among them: its kernels use it, though no op names it.
        """
        known = self.points
        unused = (known.first[1:] == known.first[:-1]) & (known.heir == np.arange(len(known.heir)))
        movable = (self.trace.storages.role != Role.WORKSPACE) & (known.bytes > 0)
        return np.flatnonzero(unused & movable & (len(self.trace.ops) > 0))

    @cached_property
    def kept_bytes(self) -> NDArray[np.int64]:
        """At each point the most bytes on the device where only that leaves which nobody needs, or uses."""
        ended, last = self.ended
        dead = np.flatnonzero(~self.needed)
        leaves = np.searchsorted(self.op, last, "right")  # after all that is after the op
        gone = np.bincount(leaves, weights=self.points.bytes[ended], minlength=len(self.op) + 1)
        result: NDArray[np.int64] = _live_bytes(self.trace, self.op, self.point, ended)
        result = result - np.cumsum(gone[:-1]).astype(np.int64)
        result[self.op > 0] -= self.points.bytes[self.idle].sum()
        result -= self.bytes_in(dead, self.begin[dead] + 1, self.end[dead])
        # The first step of all begins with everything on the device that has not been swapped out.
        result[:1] = np.maximum(result[:1], self.trace.storages.bytes[self.trace.births < 0].sum())
        return result

    def bytes_in(self, rows: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
        """At each point the bytes of gaps over points begin..end - 1, which go on in the next step."""
        count = len(self.points)
        change = np.zeros(2 * count + 1, np.int64)
        np.add.at(change, begin, self.bytes[rows])
        np.add.at(change, np.maximum(begin, end), -self.bytes[rows])
        total = np.cumsum(change[:-1])
        result: NDArray[np.int64] = total[:count] + total[count:]
        return result

    def copied_out(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For gaps in which storages leave, ascending: whether the host has no valid copy yet."""
        result = np.zeros(len(rows), bool)
        order = np.lexsort((self.carried[rows], self.written[rows]))
        _, first = np.unique(self.written[rows][order], return_index=True)
        result[order[first]] = True
        return result & (self.written[rows] >= 0)


def gaps(trace: Trace, device: DeviceProfile) -> Gaps:
    """The gaps of a step."""
    known = points(trace, device)
    count, ops = len(known), len(trace.ops)
    op, point = op_of_points(trace)
    opening = known.opening()
    inner = np.flatnonzero(known.storage[1:] == known.storage[:-1])
    onward = np.flatnonzero((known.first[1:] > known.first[:-1]) & (opening >= 0))
    use = np.concatenate([inner, known.first[onward + 1] - 1])
    following = np.concatenate([inner + 1, opening[onward]])
    again = np.arange(len(use)) >= len(inner)
    needed, storage = _needs(known, op, point)[following], known.storage[use]
    # It leaves after all that is after the op, and comes back before all that is in the op.
    begin = np.searchsorted(op, op[known.point[use]], "right") - 1
    end = np.where(needed, np.searchsorted(op, op[known.point[following]], "left"), known.point[following])
    end += count * again
    first_op, last_op = op[begin] + 1, op[known.point[following]] + ops * again
    # What is needed before the first op, in the first step of all, finds no anchor to come back at, what is used before
    # it none to leave at, nor does what is back within one op.
    early = Uses(trace).host_begins[known.storage[following]] & again
    anchored = (op[begin] >= 0) & (first_op <= last_op) & ~(needed & early)
    order = np.lexsort((begin, storage))
    order = order[(anchored & (end > begin + 1) & (known.bytes[storage] > 0))[order]]
    written, carried = _contents(known)
    return Gaps(
        trace=trace,
        device=device,
        points=known,
        op=op,
        point=point,
        storage=storage[order],
        heir=known.storage[following][order],
        begin=begin[order],
        end=end[order],
        bytes=known.bytes[storage[order]],
        needed=needed[order],
        written=written[use[order]],
        carried=carried[use[order]],
        first_op=first_op[order],
        last_op=last_op[order],
    )


def _needs(known: Points, op: NDArray[np.int64], point: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For each use whether contents are needed: for a copy in an op also where the op needs what was before it."""
    of, last = op[known.point], np.append(point, -1)[op[known.point]]
    together = (known.storage[1:] == known.storage[:-1]) & (of[1:] == of[:-1]) & (known.point[1:] <= last[1:])
    first = np.flatnonzero(~np.concatenate([[False], together])[: len(of)])
    if not len(first):
        return known.needs
    any_needs: NDArray[np.bool_] = np.logical_or.reduceat(known.needs, first)
    return np.repeat(any_needs, np.diff(np.append(first, len(of))))


def _contents(known: Points) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """For each use the number of the write that its contents are of, and whether that was in the step before."""
    before = np.concatenate([[0], np.cumsum(known.writes)])
    last = before[known.first[1:]]  # of each storage; numbers go on from one to the next
    ancestor = np.arange(len(known.bytes))
    linked = np.flatnonzero(known.heir >= 0)
    ancestor[known.heir[linked]] = linked
    written = before[1:]
    carried = written == before[known.first[known.storage]]
    source = ancestor[known.storage]
    of_last = np.where(last[source] > before[known.first[source]], last[source] * (len(known.bytes) + 1) + source, -1)
    return np.where(carried, of_last, written * (len(known.bytes) + 1) + known.storage), carried


def _live_bytes(
    trace: Trace, op: NDArray[np.int64], point: NDArray[np.int64], unfreed: NDArray[np.int64]
) -> NDArray[np.int64]:
    """At each point the most bytes of what there is, with these storages up to the end of the step."""
    events, size = trace.events, trace.storages.bytes[trace.events.storage]
    frees = (events.kind == EventKind.FREE) & ~np.isin(events.storage, unfreed)
    live = np.cumsum(np.where(events.kind == EventKind.ALLOCATE, size, np.where(frees, -size, 0)))
    result = np.zeros(len(op), np.int64)
    first = np.searchsorted(events.op, np.arange(len(trace.ops)))
    result[point] = np.concatenate([[0], live])[first]
    # What happens between two points counts for the one before.
    hosted = program_copies(trace)
    at = np.setdiff1d(np.arange(len(op)), point)
    np.maximum.at(result, at, live[hosted])
    after = np.flatnonzero((events.inside == 0) | (events.op < 0))
    hosted_after = events.inside[hosted] == 0
    copy = np.searchsorted(hosted[hosted_after], after, "right") - 1
    owner = np.concatenate([at[hosted_after], [-1]])[copy]
    owner = np.maximum(owner, np.concatenate([point, [-1]])[events.op[after]])
    inside = np.flatnonzero((events.inside == 1) & (events.op >= 0))
    np.maximum.at(result, point[events.op[inside]], live[inside])
    np.maximum.at(result, owner[owner >= 0], live[after[owner >= 0]])
    return result
