"""A plan of swaps without any search, for a step that is about to run: the one that `best` begins its own search with.

It takes some milliseconds for a thousand ops. On the networks of `examples/networks` its steps are at most 4 % longer
than those of what `best` finds with swaps, and mostly not at all; other planners' are tens of percent longer
(`tools/benchmark_at_once.py`).
"""

from dataclasses import replace

import numpy as np

from umadvise import planners
from umadvise.errors import NoRoomError
from umadvise.planners.gaps import gaps
from umadvise.planners.swap_schedule import Times, enough, schedule, slack_ns
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Plan
from umadvise.records.trace import Trace
from umadvise.simulator.swap import simulate_swap

_ROUNDS = 2
"""Schedules that are made, each with the times that simulating the one before has shown."""


def at_once(trace: Trace, device: DeviceProfile, budget_bytes: int) -> Plan:
    """Plans a step by swaps alone; where its schedules find no room, as `belady` does.

    Args:
        trace: trace of one training step.
        device: profile of the device whose link makes the copies.
        budget_bytes: bytes that tensors may take on the device.

    Raises:
        BudgetError: one op uses more than the budget.
    """
    its = gaps(trace, device)
    times, found = Times.of_compute(its), None
    for _ in range(_ROUNDS):
        leaves = enough(its, np.zeros(len(its), bool), budget_bytes, slack_ns(its, times))
        if leaves is None:
            break
        plan = schedule(its, leaves, budget_bytes, times)
        try:
            simulation = simulate_swap(trace, device, plan)
        except NoRoomError:
            break
        times = Times.of_simulation(its, simulation)
        late = simulation.result.on_demand_swap_ins > 0
        if not late and (found is None or simulation.step_ns < found[0]):
            found = simulation.step_ns, plan
    if found is None:
        return planners.run("belady", trace, device, budget_bytes)
    return replace(found[1], planner="best", budget_bytes=budget_bytes)
