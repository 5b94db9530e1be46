"""The plan that is made at once: it runs wherever belady's does, is no slower, and the same for the same step."""

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from random_traces import random_ops, random_step
from traces import layers

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.errors import BudgetError, UmadviseError
from umadvise.planners.at_once import at_once
from umadvise.planners.gaps import gaps
from umadvise.planners.judging.score import score
from umadvise.planners.swap_schedule import Times, enough, schedule, slack_ns
from umadvise.records.trace import Trace
from umadvise.simulator.swap import simulate_swap

MIB = 1 << 20
DEVICE = load_device("v100-16gb")


def step_ns(trace: Trace, budget: int, planner: str = "") -> int:
    plan = planners.run(planner, trace, DEVICE, budget) if planner else at_once(trace, DEVICE, budget)
    found = score(trace, DEVICE, plan, budget_bytes=budget).step_ns
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(30))
def test_it_runs_wherever_belady_does_and_is_no_slower(seed: int) -> None:
    trace = random_step(Random(seed))
    ran = 0
    for share in (0.9, 0.6, 0.45, 0.3):
        budget = int(trace.peak_bytes * share)
        try:
            expected = step_ns(trace, budget, "belady")
        except UmadviseError:
            continue
        ran += 1
        assert step_ns(trace, budget) <= 1.02 * expected
    assert ran > 0


@pytest.mark.parametrize(
    ("make", "seed", "share"), [(random_step, 0, 0.1), (random_ops, 22, 0.2), (random_ops, 25, 0.2)]
)
def test_a_choice_is_scheduled_again_by_its_own_times(make: Callable[[Random], Trace], seed: int, share: float) -> None:
    trace = make(Random(seed))
    least = int(trace.working_set_bytes().max())
    budget = least + int((trace.peak_bytes - least) * share)
    its, scheduled_once = gaps(trace, DEVICE), []
    times = Times.of_compute(its)
    for _ in range(2):
        leaves = enough(its, np.zeros(len(its), bool), budget, slack_ns(its, times))
        assert leaves is not None
        simulation = simulate_swap(trace, DEVICE, schedule(its, leaves, budget, times))
        scheduled_once.append(simulation.step_ns)
        times = Times.of_simulation(its, simulation)
    assert step_ns(trace, budget) < 0.99 * min(scheduled_once)


def test_a_step_that_fits_moves_nothing() -> None:
    trace = layers(8)
    assert len(at_once(trace, DEVICE, trace.peak_bytes)) == 0


def test_the_same_step_gives_the_same_plan() -> None:
    trace = layers(12)
    assert list(at_once(trace, DEVICE, 60 * MIB)) == list(at_once(layers(12), DEVICE, 60 * MIB))
    assert len(at_once(trace, DEVICE, 60 * MIB)) > 0


def test_an_op_that_is_too_large_is_named() -> None:
    with pytest.raises(BudgetError, match="op 0"):
        at_once(layers(4), DEVICE, MIB)
