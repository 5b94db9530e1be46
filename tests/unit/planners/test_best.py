"""`best`: cases worked by hand, beside every other planner and the optimum on random steps, and interrupted."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_traces import random_ops, random_step

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.errors import BudgetError, UmadviseError, UsageError
from umadvise.planners.best import best
from umadvise.planners.bounds.bound import lower_bound, optimum, regret
from umadvise.planners.gaps import gaps
from umadvise.planners.judging.score import score
from umadvise.planners.recompute_choice import candidates, cheapest
from umadvise.planners.step_lists import StepLists
from umadvise.recording.builder import TraceBuilder
from umadvise.recording.dry import recorder as dry
from umadvise.records.enums import Phase, Role
from umadvise.records.plan import ActionKind, Plan
from umadvise.records.trace import Access, Trace
from umadvise.simulator.swap import simulate_swap

V100 = load_device("v100-16gb")
EXAMPLES = Path(__file__).parents[3] / "examples"
MIB = 1 << 20
MADE = Access.WRITE | Access.WHOLE
MS = 10**6


def layers(sizes: list[int], durations_ns: list[int]) -> Trace:
    """Forward makes a map an op, backward reads them in the opposite order and frees them."""
    builder, maps = TraceBuilder(), []
    for size, duration_ns in zip(sizes, durations_ns, strict=True):
        builder.begin_op("aten::relu", phase=Phase.FORWARD, duration_ns=duration_ns)
        maps.append(builder.allocate(size, Role.INTERMEDIATE))
        builder.access(maps[-1], MADE)
        builder.end_op()
    for each, duration_ns in zip(reversed(maps), reversed(durations_ns), strict=True):
        builder.begin_op("aten::threshold_backward", phase=Phase.BACKWARD, duration_ns=duration_ns)
        builder.access(each, Access.READ)
        builder.end_op()
        builder.free(each)
    return builder.finish(target="cuda", source="synthetic")


def kinds(plan: Plan) -> set[ActionKind]:
    return {action.kind for action in plan}


# ---- by hand -------------------------------------------------------------------------------------------------------


def test_copies_that_ops_hide_cost_nothing() -> None:
    """A map of 8 MiB takes less than a millisecond either way, an op takes five: with room for three of ten maps."""
    trace = layers([8 * MIB] * 10, [5 * MS] * 10)
    plan = best(trace, V100, 24 * MIB, trials=5)
    result = simulate_swap(trace, V100, plan).result
    assert result.step_ns == 100 * MS
    assert result.recomputed_ops == 0
    assert result.peak_live_bytes <= 24 * MIB
    assert (plan.planner, plan.budget_bytes, plan.options["trials"]) == ("best", 24 * MIB, 5)


def test_what_takes_longer_to_copy_than_to_make_is_made_again() -> None:
    """An op takes 10 us, a copy of its map milliseconds. Three maps of ten have room. Forward leaves two of them, and
    the last one; each of the seven others is made again by one op: fewer ops cannot do it."""
    trace = layers([64 * MIB] * 10, [10_000] * 10)
    plan = best(trace, V100, 3 * 64 * MIB, trials=5)
    result = simulate_swap(trace, V100, plan).result
    assert (result.recomputed_ops, result.step_ns) == (7, 27 * 10_000)
    assert (result.swap_in_bytes, result.swap_out_bytes) == (0, 0)
    assert result.step_ns >= lower_bound(trace, V100, 3 * 64 * MIB, recompute=True).step_ns


def test_what_may_not_run_again_is_copied() -> None:
    """The same, but every other op may not run again. What others plan to have run again is out of the question."""
    trace = layers([64 * MIB] * 10, [10_000] * 10)
    repeatable = np.arange(20) % 2 == 0
    plan = best(trace, V100, 3 * 64 * MIB, trials=5, repeatable=repeatable)
    again = [each.storage for each in plan if each.kind == ActionKind.RECOMPUTE]
    assert len(again) == 5 and repeatable[trace.births[again]].all()
    assert simulate_swap(trace, V100, plan).result.swap_in_bytes == 2 * 64 * MIB


def test_what_is_made_of_what_may_not_run_again_cannot_be_made_again_once_that_is_gone() -> None:
    builder = TraceBuilder()
    builder.begin_op("aten::native_dropout", phase=Phase.FORWARD)
    drawn = builder.allocate(MIB, Role.INTERMEDIATE)
    builder.access(drawn, MADE)
    builder.end_op()
    builder.begin_op("aten::relu", phase=Phase.FORWARD)
    made = builder.allocate(MIB, Role.INTERMEDIATE)
    builder.access(drawn, Access.READ)
    builder.access(made, MADE)
    builder.end_op()
    builder.free(drawn)
    builder.begin_op("aten::threshold_backward", phase=Phase.BACKWARD)
    builder.access(made, Access.READ)
    builder.end_op()
    builder.free(made)
    trace = builder.finish(target="cuda", source="synthetic")

    def again(*repeatable: bool) -> list[tuple[int, int, int]]:
        found = candidates(StepLists(trace, np.array(repeatable)))
        return [(each.storage, each.rerun.first, each.rerun.last) for each in found]

    assert again(True, True, False) == [(made, 0, 1)]
    assert again(False, True, False) == again(True, False, False) == []


def test_clean_storages_leave_without_a_copy() -> None:
    """Four weights in turn, forth and back, and room for three: two come back in each step, and nothing is copied out.
    The ops take no time to speak of, so that the copies are the step."""
    builder = TraceBuilder()
    weights = [builder.allocate(8 * MIB, Role.PARAMETER) for _ in range(4)]
    for each in (*weights, *reversed(weights)):
        builder.begin_op("aten::mm", duration_ns=1000)
        builder.access(each, Access.READ)
        builder.end_op()
    trace = builder.finish(target="cuda", source="synthetic")
    result = simulate_swap(trace, V100, best(trace, V100, 24 * MIB, trials=5)).result
    assert (result.swap_in_bytes, result.swap_out_bytes) == (16 * MIB, 0)
    assert result.step_ns == pytest.approx(2 * V100.transfer_ns("h2d", 8 * MIB), rel=0.01)


def test_what_nobody_needs_any_more_leaves_at_once() -> None:
    """A map that its owner keeps up to the end, though only the first op looks at it: dropped, the step fits."""
    builder = TraceBuilder()
    for op in range(4):
        builder.begin_op("aten::relu", duration_ns=1000)
        each = builder.allocate(64 * MIB, Role.INTERMEDIATE)
        builder.access(each, MADE)
        builder.end_op()
        if op:
            builder.free(each)
    trace = builder.finish(target="cuda", source="synthetic")
    plan = best(trace, V100, 64 * MIB, trials=5)
    assert simulate_swap(trace, V100, plan).step_ns == 4000
    assert kinds(plan) == {ActionKind.DROP}


def test_the_cheapest_are_made_again_until_their_share_is_reached() -> None:
    """Five maps of one size, made in 4, 1, 3, 2 and 5 ms, and room for three: at the turn half of the excess is one
    map, which is the cheapest one; all of it are the two cheapest. The last map has no gap to leave in."""
    trace = layers([8 * MIB] * 5, [4 * MS, MS, 3 * MS, 2 * MS, 5 * MS])
    step, its = StepLists(trace), gaps(trace, V100)
    known = candidates(step)
    assert [each.storage for each in known] == [1, 3, 2, 0, 4]
    assert [(each.rerun.first, each.rerun.last) for each in known] == [(1, 1), (3, 3), (2, 2), (0, 0), (4, 4)]

    def made_again(share: float, chain_bytes: float = 1e9) -> frozenset[int]:
        return cheapest(its, step, known, 24 * MIB, share, chain_bytes)

    assert made_again(0.0) == frozenset()
    assert made_again(0.5) == {1}
    assert made_again(1.0) == {1, 3}
    assert made_again(1.0, chain_bytes=8 * MIB - 1) == frozenset()  # not even a map by itself


def test_a_budget_below_what_an_op_needs() -> None:
    trace = layers([8 * MIB] * 3, [MS] * 3)
    with pytest.raises(BudgetError, match=r"uses 8\.00 MiB at once: no plan of swaps keeps a budget of 1\.00 MiB"):
        best(trace, V100, MIB)  # not even one for unified memory, which evicts while an op runs
    with pytest.raises(UsageError, match="trials: expected at least 0, found -1"):
        best(trace, V100, 8 * MIB, trials=-1)


def test_a_step_that_fits_and_one_without_ops() -> None:
    trace = layers([8 * MIB] * 3, [MS] * 3)
    fits = best(trace, V100, 24 * MIB)
    assert score(trace, V100, fits).step_ns == 6 * MS
    nothing = TraceBuilder().finish(target="cuda", source="synthetic")
    assert len(best(nothing, V100, 0)) == 0


# ---- beside the others ---------------------------------------------------------------------------------------------


def others_ns(trace: Trace, budget_bytes: int) -> list[int]:
    """Steps of the plans of all the planners that do not search themselves."""
    found = []
    for name in sorted({*planners.PLANNERS} - {"best", "dqn"}):
        try:
            found.append(score(trace, V100, planners.run(name, trace, V100, budget_bytes)).step_ns)
        except UmadviseError:
            continue
    return [each for each in found if each is not None]


@given(make=st.sampled_from([random_step, random_ops]), seed=st.integers(0, 2**32), share=st.floats(0, 0.9))
@settings(max_examples=12, deadline=None, database=None)
def test_never_slower_than_another_planner_or_a_plan_that_it_is_handed(
    make: Callable[[Random], Trace], seed: int, share: float
) -> None:
    trace = make(Random(seed))
    least, most = int(trace.working_set_bytes().max()), trace.peak_bytes
    budget_bytes = least + int((most - least) * share)
    others = others_ns(trace, budget_bytes)
    try:
        plan = best(trace, V100, budget_bytes, trials=5)
    except BudgetError:
        assert not others
        return
    found = score(trace, V100, plan)
    assert found.step_ns is not None and found.step_ns <= min(others, default=found.step_ns)
    assert found.peak_bytes is not None and found.peak_bytes <= budget_bytes
    handed = best(trace, V100, budget_bytes, trials=0, plans=[plan])
    assert (score(trace, V100, handed).step_ns or 0) <= found.step_ns
    again = best(trace, V100, budget_bytes, trials=5)
    assert (list(again), again.options) == (list(plan), plan.options)


@pytest.mark.parametrize("share", [0.5, 0.7])
def test_faster_than_the_others_on_a_network(share: float) -> None:
    sys.path.insert(0, str(EXAMPLES))
    try:
        from networks import NETWORKS
    finally:
        sys.path.remove(str(EXAMPLES))
    trace = dry.record(lambda: NETWORKS["resnet50"](64, image=64, width=16, layers=(1, 1, 1, 1)), device=V100)
    budget_bytes = int(trace.peak_bytes * share)
    found = score(trace, V100, best(trace, V100, budget_bytes, trials=5))
    assert found.step_ns is not None and found.step_ns < min(others_ns(trace, budget_bytes))


def test_a_plan_for_a_smaller_budget_is_as_good() -> None:
    trace = layers([8 * MIB] * 6, [MS] * 6)
    smaller = best(trace, V100, 24 * MIB, trials=5)
    plan = best(trace, V100, 32 * MIB, trials=0, plans=[smaller])
    assert plan.budget_bytes == 32 * MIB
    assert simulate_swap(trace, V100, plan).step_ns <= simulate_swap(trace, V100, smaller).step_ns
    larger = replace(best(trace, V100, 48 * MIB, trials=0), budget_bytes=24 * MIB)  # fits no 24 MiB
    assert simulate_swap(trace, V100, best(trace, V100, 24 * MIB, trials=0, plans=[larger])).step_ns


def test_near_the_optimum_of_small_steps() -> None:
    """Copies are whole, and begin and end between ops: what that costs beside the programme is a copy or two."""
    pytest.importorskip("scipy")
    regrets = []
    for seed in range(8):
        random = Random(seed)
        sizes = [random.randint(4, 16) * MIB for _ in range(6)]
        trace = layers(sizes, [random.randint(1, 20) * MS // 10 for _ in range(6)])
        budget_bytes = max(int(trace.peak_bytes * random.uniform(0.45, 0.8)), max(sizes))
        found_ns = simulate_swap(trace, V100, best(trace, V100, budget_bytes, trials=40)).step_ns
        exact = optimum(trace, V100, budget_bytes, recompute=True, time_limit_s=20)
        assert exact.step_ns <= found_ns
        regrets.append(regret(found_ns, exact))
    assert np.median(regrets) <= 0.02
    assert max(regrets) <= 0.15


# ---- interrupted ---------------------------------------------------------------------------------------------------


def test_an_interrupt_keeps_the_best_plan_so_far() -> None:
    trace, budget_bytes = layers([64 * MIB] * 10, [MS * (1 + each % 3) for each in range(10)]), 4 * 64 * MIB
    steps = []
    for last in (0, 3, 9):
        calls: list[tuple[int, int]] = []

        def interrupt(done: int, all_: int, last: int = last, calls: list[tuple[int, int]] = calls) -> None:
            calls.append((done, all_))
            if len(calls) == last + 1:
                raise KeyboardInterrupt

        steps.append(score(trace, V100, best(trace, V100, budget_bytes, trials=20, progress=interrupt)).step_ns or 0)
        assert len(calls) == last + 2  # and that the search has ended
        assert calls[-1][0] == calls[-1][1]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] <= min(others_ns(trace, budget_bytes))


def test_progress_only_grows() -> None:
    trace, calls = layers([64 * MIB] * 6, [10_000] * 6), []
    best(trace, V100, 3 * 64 * MIB, trials=7, progress=lambda done, all_: calls.append((done, all_)))
    done = np.array([each[0] for each in calls])
    assert (np.diff(done) >= 0).all()
    assert len({all_ for _, all_ in calls}) == 1
    assert done[-1] == calls[0][1]
