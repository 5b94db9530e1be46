"""No planner emits a plan that the simulator finds invalid: random steps in which much moves, at budgets of every size.

What is checked is what an executor would stumble over: an op that finds something gone, memory beyond the budget at any
op, copies that no action asked for, and ops that would read something else than without the plan.
"""

from collections.abc import Callable
from random import Random

import pytest
from contents import reads
from hypothesis import given, settings
from hypothesis import strategies as st
from random_traces import random_ops, random_step

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.errors import BudgetError
from umadvise.planners.judging.score import pages
from umadvise.records import plan_file as io
from umadvise.records.plan import Option, Plan
from umadvise.records.trace import Trace
from umadvise.simulator.swap import simulate_swap
from umadvise.simulator.unified import simulate_unified

V100 = load_device("v100-16gb")
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.95)
"""Of the way from what the largest op uses, below which nothing can run, up to the peak."""
VARIANTS: dict[str, tuple[dict[str, Option], ...]] = {
    "best": ({"trials": 3},),
    "dqn": ({"episodes": 1, "rounds": 1, "time_limit_s": 1.0},),
    "window": ({}, {"refined": True}, {"refined": True, "schedule_window": 16 << 20}),
    "superneurons": ({}, {"strategy": "memory-centric"}, {"strategy": "speed-centric", "lru_on": False}),
    "sqrt-recompute": ({}, {"threshold": 8}),
    "lms": (
        {},
        {"swapout_threshold": 1, "swapin_ahead": 2, "swapin_groupby": 3, "sync_mode": 0},
        {"swapout_threshold": 2, "swapin_ahead": 1, "swapin_groupby": 0, "sync_mode": 3},
    ),
}
"""Options besides a planner's defaults."""
EXAMPLES = {"best": 6, "dqn": 10, "um-window": 15} | dict.fromkeys(("sqrt-recompute", "vdnn-all", "vdnn-conv"), 100)
"""Of random steps: fewer for planners that take their time, more for those that leave most of these steps alone."""


@pytest.mark.parametrize("name", planners.PLANNERS)
def test_every_plan_runs_within_its_budget(name: str) -> None:
    moving = 0

    @given(make=st.sampled_from([random_step, random_step, random_ops]), seed=st.integers(0, 2**32))
    @settings(max_examples=EXAMPLES.get(name, 25), deadline=None, database=None)
    def every_plan(make: Callable[[Random], Trace], seed: int) -> None:
        nonlocal moving
        trace = make(Random(seed))
        least, most = int(trace.working_set_bytes().max()), trace.peak_bytes
        for share in SHARES:
            for options in VARIANTS.get(name, ({},)):
                moving += assert_runs(name, trace, least + int((most - least) * share), options)

    every_plan()
    assert moving >= 5  # else it tests little


def assert_runs(name: str, trace: Trace, budget_bytes: int, options: dict[str, Option]) -> bool:
    """Whether there is a plan, and it moves anything."""
    try:
        plan = planners.run(name, trace, V100, budget_bytes, **options)
    except BudgetError:
        return False
    assert (plan.planner, plan.budget_bytes) == (name, budget_bytes)
    again = io.decode(io.encode(plan), trace)
    assert list(again) == list(plan) and again.options == plan.options
    if pages(plan):
        simulate_unified(trace, V100, capacity_bytes=budget_bytes, plan=plan, iterations=2)
    else:
        assert_swaps(trace, plan)
    return len(plan) > 0


def assert_swaps(trace: Trace, plan: Plan) -> None:
    simulation = simulate_swap(trace, V100, plan, spans=False)  # that nobody evicts makes what finds no room an error
    result = simulation.result
    assert result.on_demand_swap_ins == result.evictions == 0
    assert (simulation.live_bytes <= plan.budget_bytes).all() and result.peak_live_bytes <= plan.budget_bytes
    assert result.step_ns >= result.compute_ns + result.recompute_ns
    assert reads(trace, plan) == reads(trace, None)
