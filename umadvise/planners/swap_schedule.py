"""From gaps to a plan of swaps: in which gaps between two uses storages leave, and when they are copied.

Those leave that hide their copies best, enough of them for every op to find room.

A storage leaves after the use that begins its gap. It comes back as early as there is room for it from then until its
use: those needed first choose first. Room is what the budget leaves beside all that stays, works or is on its way out,
with the ops at the times of an earlier simulation, so that simulating, and planning again with the times that this
showed, ends in a plan that knows its stalls. With copies to the host that take no time every op would find its room:
so a plan may stand still, but never runs out of memory.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.gaps import SwapGaps
from umadvise.planners.room import Room
from umadvise.records.plan import ActionKind, Actions, Plan
from umadvise.simulator.swap import SwapSimulation

_FIRST = -1
"""Rank of what leaves before all that is copied at the same place."""


@dataclass(frozen=True, eq=False)
class Times:
    """When each point of a step begins, in nanoseconds, and one more entry: when the next step does."""

    start_ns: NDArray[np.float64]

    @classmethod
    def of_compute(cls, gaps: SwapGaps) -> "Times":
        """The times of a step in which no op waits for memory."""
        return cls(np.concatenate([[0.0], np.cumsum(gaps.points.duration_ns)]))

    @classmethod
    def of_simulation(cls, gaps: SwapGaps, simulation: SwapSimulation) -> "Times":
        """The times of the last iteration of a simulation."""
        start_ns = simulation.op_starts_ns().astype(np.float64)
        return cls(np.maximum.accumulate(np.append(start_ns[np.maximum(gaps.points.op, 0)], simulation.step_ns)))

    @property
    def two_steps_ns(self) -> NDArray[np.float64]:
        """When each point of this step and of the next one begins, and the end of the next one."""
        return np.concatenate([self.start_ns[:-1], self.start_ns + self.start_ns[-1]])


def slack_ns(gaps: SwapGaps, times: Times) -> NDArray[np.float64]:
    """How much longer than its copies each gap lasts; below 0 for one that is too short to win anything."""
    begin_ns, link = times.two_steps_ns, gaps.points.device.link
    copies_ns = gaps.bytes * (1e9 / link.d2h.bytes_per_s.value + 1e9 / link.h2d.bytes_per_s.value)
    result: NDArray[np.float64] = begin_ns[gaps.end] - begin_ns[gaps.begin + 1] - copies_ns
    return result


def enough(
    gaps: SwapGaps, leaves: NDArray[np.bool_], budget_bytes: int, worth: NDArray[np.float64]
) -> NDArray[np.bool_] | None:
    """Adds gaps until every point finds room, were copies to the host to take no time; None where that cannot be.

    At the fullest point those gaps are next which are worth most, and of what exceeds the excess there that which is
    worth most for what it takes away of it.

    Args:
        gaps: gaps of the step between uses.
        leaves: whether the storage of each gap leaves in it already.
        budget_bytes: bytes that tensors may take on the device.
        worth: value of leaving in each gap; gaps below 0 come after all others.
    """
    leaves = leaves & gaps.needed
    rows = np.flatnonzero(leaves)
    count = len(gaps.points)
    used = gaps.kept_bytes - gaps.bytes_in(rows, gaps.begin[rows] + 1, gaps.end[rows])
    waiting = gaps.needed & ~leaves
    while len(used) and int(used.max()) > budget_bytes:
        point = int(used.argmax())
        inside = ((gaps.begin < point) & (point < gaps.end)) | (point + count < gaps.end)
        found = np.flatnonzero(waiting & inside)
        if not len(found):
            return None
        excess = int(used[point]) - budget_bytes
        ranked = found[np.argsort(-worth[found], kind="stable")]
        whole = int(np.searchsorted(np.cumsum(gaps.bytes[ranked]), excess, "right"))
        chosen, rest = ranked[:whole], ranked[whole:]
        excess -= int(gaps.bytes[chosen].sum())
        if excess > 0 and len(rest):
            share = np.minimum(gaps.bytes[rest], excess) / gaps.bytes[rest]
            chosen = np.append(chosen, rest[np.where(worth[rest] > 0, worth[rest] * share, worth[rest]).argmax()])
        leaves[chosen], waiting[chosen] = True, False
        for begin, end, size in zip(
            (gaps.begin[chosen] + 1).tolist(), gaps.end[chosen].tolist(), gaps.bytes[chosen].tolist(), strict=True
        ):
            used[begin : min(end, count)] -= size
            used[: max(end - count, 0)] -= size
    return leaves


def schedule(gaps: SwapGaps, leaves: NDArray[np.bool_], budget_bytes: int, times: Times) -> Plan:
    """The plan in which storages leave in these gaps, and what nobody needs any more leaves at once.

    Args:
        gaps: gaps of the step between uses.
        leaves: whether the storage of each gap leaves in it.
        budget_bytes: bytes that tensors may take on the device.
        times: moments at which ops are expected to begin.
    """
    rows = np.flatnonzero(leaves & gaps.needed)
    gone_ns = _departures_ns(gaps, rows, times)
    free = np.searchsorted(times.two_steps_ns, gone_ns, "left")  # first point that finds it gone
    free = np.clip(free, gaps.begin[rows] + 1, gaps.end[rows])
    used_bytes = gaps.kept_bytes - gaps.bytes_in(rows, free, gaps.end[rows])
    back = _arrivals(gaps, rows, free, used_bytes, budget_bytes)
    return _plan(gaps, rows, back, budget_bytes)


def _departures_ns(gaps: SwapGaps, rows: NDArray[np.int64], times: Times) -> NDArray[np.float64]:
    """When each copy to the host has ended: one after the other, in the order of the uses before."""
    way = gaps.points.device.link.d2h
    start_ns = times.two_steps_ns[gaps.begin[rows] + 1]
    ends_ns = start_ns.copy()
    copied = np.flatnonzero(gaps.copied_out(rows))
    copied = copied[np.argsort(gaps.begin[rows[copied]], kind="stable")]
    lasts_ns = (way.fixed_ns.value + gaps.bytes[rows[copied]] * 1e9 / way.bytes_per_s.value).tolist()
    free_ns = 0.0
    for _ in range(2):  # what the step before leaves behind is still on its way when a step begins
        for row, last_ns in zip(copied.tolist(), lasts_ns, strict=True):
            free_ns = max(free_ns, start_ns[row]) + last_ns
            ends_ns[row] = free_ns
        free_ns = max(free_ns - times.start_ns[-1], 0.0)
    return ends_ns


def _arrivals(
    gaps: SwapGaps, rows: NDArray[np.int64], free: NDArray[np.int64], used_bytes: NDArray[np.int64], budget_bytes: int
) -> NDArray[np.int64]:
    """The op before which each storage comes back, in the next step counted on from the number of ops."""
    count, ops = len(gaps.points), len(gaps.points.op_at)
    room = Room(budget_bytes - used_bytes)
    anchors = np.searchsorted(gaps.points.op, np.arange(ops))
    anchors = np.concatenate([anchors, anchors + count])
    result = np.zeros(len(rows), np.int64)
    for each in np.argsort(gaps.end[rows] % count, kind="stable").tolist():
        row = rows[each]
        end, bytes_ = int(gaps.end[row]), int(gaps.bytes[row])
        op = int(np.searchsorted(anchors, room.since(int(free[each]), end, bytes_), "left"))
        result[each] = op = min(max(op, int(gaps.first_op[row])), int(gaps.last_op[row]))
        room.take(int(anchors[op]), end, bytes_)
    return result


def _plan(gaps: SwapGaps, rows: NDArray[np.int64], back: NDArray[np.int64], budget_bytes: int) -> Plan:
    """The actions. Who comes back before one op comes in the order of need."""
    trace, known, ops = gaps.points.trace, gaps.points, len(gaps.points.op_at)
    leaving, dead = gaps.begin[rows], np.flatnonzero(~gaps.needed)
    ended, last = gaps.ended
    # In the first step of all they are there.
    begins = gaps.heir[dead[gaps.end[dead] > len(known)]]
    returning = np.where(back >= ops, gaps.heir[rows], gaps.storage[rows])
    anchored: list[tuple[Any, ...]] = [  # kind, op, whether after it, storages, and their order there
        (ActionKind.SWAP_OUT, gaps.points.op[leaving], True, gaps.storage[rows], leaving),
        (ActionKind.SWAP_IN, back % ops, False, returning, gaps.end[rows] % len(known)),
        (ActionKind.DROP, gaps.points.op[gaps.begin[dead]], True, gaps.storage[dead], _FIRST),
        (ActionKind.DROP, last, True, ended, _FIRST),
        (ActionKind.DROP, 0, False, begins, _FIRST),
        (ActionKind.SWAP_OUT, 0, True, gaps.idle, _FIRST),
    ]
    columns = zip(*(np.broadcast_arrays(*each) for each in anchored), strict=True)
    kind, op, after, storage, rank = (np.concatenate(each) for each in columns)
    order = np.lexsort((rank, after, op))
    zeros = np.zeros(len(op), np.int64)
    actions = Actions(
        kind=kind[order],
        op=op[order],
        after=after[order],
        storage=storage[order],
        offset_bytes=zeros,
        bytes=trace.storages.bytes[storage[order]],
        argument=zeros,
    )
    return Plan.of_rows(trace, actions, "best", budget_bytes)
