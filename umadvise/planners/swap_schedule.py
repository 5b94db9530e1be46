"""When to copy what leaves the device: from gaps in which storages leave to a plan of swaps.

A storage leaves after the use that begins its gap. It comes back as early as there is room for it from then until its
use: those needed first choose first. Room is what the budget leaves beside all that stays, works or is on its way out,
with the ops at the times of an earlier simulation, so that simulating, and planning again with the times that this
showed, ends in a plan that knows its stalls. With copies to the host that take no time every op would find its room:
so a plan may stand still, but never runs out of memory.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.gaps import Gaps
from umadvise.records.plan import ActionKind, Actions, Plan, check
from umadvise.records.timeline import SpanKind, Track
from umadvise.simulator.swap import SwapSimulation

_FIRST = -1
"""Rank of what leaves before all that is copied at the same place."""


@dataclass(frozen=True, eq=False)
class Times:
    """When each point of a step begins, in nanoseconds, and one more entry: when the next step does."""

    start_ns: NDArray[np.float64]

    @classmethod
    def of_compute(cls, gaps: Gaps) -> "Times":
        """Without a stall."""
        return cls(np.concatenate([[0.0], np.cumsum(gaps.points.duration_ns)]))

    @classmethod
    def of_simulation(cls, gaps: Gaps, simulation: SwapSimulation) -> "Times":
        """Of a step's last iteration."""
        start_ns = op_starts_ns(simulation, len(gaps.point))
        return cls(np.maximum.accumulate(np.append(start_ns[np.maximum(gaps.op, 0)], simulation.step_ns)))

    @property
    def two_steps_ns(self) -> NDArray[np.float64]:
        """Of the points of this step and the next one's."""
        return np.concatenate([self.start_ns[:-1], self.start_ns + self.start_ns[-1]])


def op_starts_ns(simulation: SwapSimulation, ops: int) -> NDArray[np.float64]:
    """When each op began, from the first op's beginning on."""
    timeline = simulation.timeline
    assert timeline is not None
    rows = (timeline.track == Track.COMPUTE) & (timeline.kind == SpanKind.OP)
    result = np.zeros(ops)
    result[timeline.op[rows]] = timeline.start_ns[rows]
    return result - result[:1]


def schedule(gaps: Gaps, leaves: NDArray[np.bool_], budget_bytes: int, times: Times) -> Plan:
    """The plan in which storages leave in these gaps, and what nobody needs any more leaves at once.

    Args:
        gaps: of the step.
        leaves: for each gap.
        budget_bytes: of device memory.
        times: at which ops are expected to begin.
    """
    rows = np.flatnonzero(leaves & gaps.needed)
    gone_ns = _departures_ns(gaps, rows, times)
    free = np.searchsorted(times.two_steps_ns, gone_ns, "left")  # first point that finds it gone
    free = np.clip(free, gaps.begin[rows] + 1, gaps.end[rows])
    used_bytes = gaps.kept_bytes - gaps.bytes_in(rows, free, gaps.end[rows])
    back = _arrivals(gaps, rows, free, used_bytes, budget_bytes)
    return _plan(gaps, rows, back, budget_bytes)


def _departures_ns(gaps: Gaps, rows: NDArray[np.int64], times: Times) -> NDArray[np.float64]:
    """When each copy to the host has ended: one after the other, in the order of the uses before."""
    way = gaps.device.link.d2h
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
    gaps: Gaps, rows: NDArray[np.int64], free: NDArray[np.int64], used_bytes: NDArray[np.int64], budget_bytes: int
) -> NDArray[np.int64]:
    """The op before which each storage comes back, in the next step counted on from the number of ops."""
    count, ops = len(gaps.points), len(gaps.point)
    most = budget_bytes - gaps.bytes
    used = np.concatenate([used_bytes, used_bytes])
    anchors = np.searchsorted(gaps.op, np.arange(ops))
    anchors = np.concatenate([anchors, anchors + count])
    result = np.zeros(len(rows), np.int64)
    for each in np.argsort(gaps.end[rows] % count, kind="stable").tolist():
        row = rows[each]
        first, end = int(free[each]), int(gaps.end[row])
        full = np.flatnonzero(used[first:end] > most[row])
        if len(full):
            first += int(full[-1]) + 1
        op = int(np.searchsorted(anchors, first, "left"))
        op = min(max(op, int(gaps.first_op[row])), int(gaps.last_op[row]))
        result[each] = op
        begin = int(anchors[op])
        for shift in (-count, 0, count):
            low, high = max(begin + shift, 0), min(end + shift, 2 * count)
            if low < high:
                used[low:high] += gaps.bytes[row]
    return result


def _plan(gaps: Gaps, rows: NDArray[np.int64], back: NDArray[np.int64], budget_bytes: int) -> Plan:
    """The actions. Who comes back before one op comes in the order of need."""
    trace, known, ops = gaps.trace, gaps.points, len(gaps.point)
    leaving, dead = gaps.begin[rows], np.flatnonzero(~gaps.needed)
    ended, last = gaps.ended
    # In the first step of all they are there.
    begins = gaps.heir[dead[gaps.end[dead] > len(known)]]
    returning = np.where(back >= ops, gaps.heir[rows], gaps.storage[rows])
    anchored: list[tuple[Any, ...]] = [  # kind, op, whether after it, storages, and their order there
        (ActionKind.SWAP_OUT, gaps.op[leaving], True, gaps.storage[rows], leaving),
        (ActionKind.SWAP_IN, back % ops, False, returning, gaps.end[rows] % len(known)),
        (ActionKind.DROP, gaps.op[gaps.begin[dead]], True, gaps.storage[dead], _FIRST),
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
    plan = Plan("best", budget_bytes, MappingProxyType({}), trace.digest, actions)
    check(plan, trace)
    return plan
