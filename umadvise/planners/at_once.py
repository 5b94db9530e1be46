"""A plan of swaps without any search, for a step that is about to run: the one that `best` begins its own search with.

It takes some tens of milliseconds for a thousand ops. On the networks of `examples/networks` its steps are at most 7 %
longer than those of what `best` finds with swaps, and mostly not at all; other planners' are tens of percent longer
(`tools/benchmark_at_once.py`).
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from umadvise import planners
from umadvise.errors import NoRoomError
from umadvise.planners.gaps import SwapGaps, gaps
from umadvise.planners.swap_schedule import Times, enough, schedule, slack_ns
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Plan
from umadvise.records.trace import Trace
from umadvise.simulator.swap import simulate_swap

_ROUNDS = 2
"""Choices of gaps that are made, each with the times that simulating the one before has shown."""
_SCHEDULES = 2
"""Schedules of each choice, the second with the times of the first."""


@dataclass(frozen=True, eq=False)
class _Schedule:
    """A schedule of some gaps, how long the step is with it, and when its points begin then."""

    plan: Plan
    step_ns: float
    times: Times


def at_once(trace: Trace, device: DeviceProfile, budget_bytes: int) -> Plan:
    """Plans a step by swaps alone; where its schedules find no room, as `belady` does.

    Each choice of gaps is scheduled again with the times that its first schedule has led to. In those of a step that
    never waits copies to the host end late, and what comes back finds no room until its op begins: a Transformer of
    small layers took 2 to 7 % longer (one to eight micro-batches of `tools/benchmark_changing.py`).

    Args:
        trace: trace of one training step.
        device: profile of the device whose link makes the copies.
        budget_bytes: bytes that tensors may take on the device.

    Raises:
        BudgetError: one op uses more than the budget.
    """
    its = gaps(trace, device)
    times, found = Times.of_compute(its), list[_Schedule]()
    for _ in range(_ROUNDS):
        leaves = enough(its, np.zeros(len(its), bool), budget_bytes, slack_ns(its, times))
        made = _scheduled(its, leaves, budget_bytes, times)
        if not made:
            break
        times = made[0].times
        found += made
    best = min(found, key=lambda each: each.step_ns, default=None)
    if best is None or best.step_ns == math.inf:
        return planners.run("belady", trace, device, budget_bytes)
    return replace(best.plan, planner="best", budget_bytes=budget_bytes)


def _scheduled(its: SwapGaps, leaves: NDArray[np.bool_] | None, budget_bytes: int, times: Times) -> list[_Schedule]:
    """Schedules gaps with some times, and again with those that the first schedule leads to; none if an op has no room.

    With something that comes on demand the step counts as endless.
    """
    found: list[_Schedule] = []
    while leaves is not None and len(found) < _SCHEDULES:
        plan = schedule(its, leaves, budget_bytes, found[0].times if found else times)
        try:
            simulation = simulate_swap(its.points.trace, its.points.device, plan)
        except NoRoomError:
            break
        step_ns = math.inf if simulation.result.on_demand_swap_ins else simulation.step_ns
        found.append(_Schedule(plan, step_ns, Times.of_simulation(its, simulation)))
    return found
