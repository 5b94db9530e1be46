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


@dataclass(frozen=True, eq=False)
class _Schedule:
    """A schedule of some gaps, how long the step is with it, and when its points begin then."""

    leaves: NDArray[np.bool_]
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
    times, found = Times.of_compute(its), []
    for _ in range(_ROUNDS):
        leaves = enough(its, np.zeros(len(its), bool), budget_bytes, slack_ns(its, times))
        made = _scheduled(its, leaves, budget_bytes, times)
        if made is None:
            break
        times = made.times
        found += [made, _scheduled(its, leaves, budget_bytes, times) or made]
    best = min(found, key=lambda each: each.step_ns, default=None)
    if best is None or best.step_ns == math.inf:
        return planners.run("belady", trace, device, budget_bytes)
    return replace(best.plan, planner="best", budget_bytes=budget_bytes)


def _scheduled(its: SwapGaps, leaves: NDArray[np.bool_] | None, budget_bytes: int, times: Times) -> _Schedule | None:
    """None: an op finds no room. With something that comes on demand the step counts as endless."""
    if leaves is None:
        return None
    plan = schedule(its, leaves, budget_bytes, times)
    try:
        simulation = simulate_swap(its.points.trace, its.points.device, plan)
    except NoRoomError:
        return None
    step_ns = math.inf if simulation.result.on_demand_swap_ins else simulation.step_ns
    return _Schedule(leaves, plan, step_ns, Times.of_simulation(its, simulation))
