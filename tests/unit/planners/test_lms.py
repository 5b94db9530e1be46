"""Large model support: a chain worked by hand, its tuner, and random steps whose every plan the simulator executes."""

import dataclasses
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_traces import random_ops
from traces import traces

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.errors import BudgetError, UsageError
from umadvise.planners.papers.levels import Levels
from umadvise.recording.builder import TraceBuilder
from umadvise.records.enums import Role
from umadvise.records.plan import ActionKind, Plan
from umadvise.records.trace import Access, Trace
from umadvise.simulator.swap import simulate_swap

V100 = load_device("v100-16gb")
MIB = 1 << 20
MADE = Access.WRITE | Access.WHOLE


def chain(*, skip: bool = False) -> Trace:
    """Four ops forward, four back, each on the level of its index; maps 0 to 3 are 10 MiB, and so are gradients.

    Map i is made by op i, used by op i + 1, and by op 7 - i; with `skip` map 0 is used by op 5 too.
    """
    builder = TraceBuilder()
    maps: list[int] = []
    for index in range(4):
        builder.begin_op("aten::relu", duration_ns=10**6)
        maps.append(builder.allocate(10 * MIB, Role.INTERMEDIATE))
        if index:
            builder.access(maps[index - 1], Access.READ)
        builder.access(maps[index], MADE)
        builder.end_op()
    gradients: list[int] = []
    for index in reversed(range(4)):
        builder.begin_op("aten::threshold_backward", duration_ns=10**6)
        gradients.append(builder.allocate(10 * MIB, Role.GRADIENT))
        for read in (*gradients[-2:-1], maps[index], *([maps[0]] if skip and index == 2 else [])):
            builder.access(read, Access.READ)
        builder.access(gradients[-1], MADE)
        builder.end_op()
        builder.free(maps[index])
        for done in gradients[-2:-1]:
            builder.free(done)
    builder.free(gradients[-1])
    return builder.finish(target="cuda", source="synthetic")


def lms(trace: Trace, budget_mib: int, threshold: int, ahead: int, groupby: int, sync_mode: int) -> list[str]:
    """The plan's actions: kind, storage, and whether before or after which op."""
    plan = planners.run(
        "lms",
        trace,
        V100,
        budget_mib * MIB,
        swapout_threshold=threshold,
        swapin_ahead=ahead,
        swapin_groupby=groupby,
        sync_mode=sync_mode,
    )
    return words(plan)


def words(plan: Plan) -> list[str]:
    return [f"{each.kind.name} {each.storage} {'after' if each.after else 'before'} {each.op}" for each in plan]


def test_levels_of_the_chain_are_its_ops() -> None:
    levels = Levels(chain())
    assert levels.level.tolist() == list(range(8))
    assert levels.ancestors(np.array([7, 6, 1]), np.array([5, 0, 2])).tolist() == [2, 6, -1]


def test_writers_wait_for_readers() -> None:
    """Nothing flows from the reader to the second writer, which must come after it nevertheless."""
    builder = TraceBuilder()
    storage = builder.allocate(MIB, Role.INTERMEDIATE)
    for flags in (MADE, Access.READ, Access.READ, MADE):
        builder.begin_op("aten::op")
        builder.access(storage, flags)
        builder.end_op()
    assert Levels(builder.finish(target="cuda", source="synthetic")).level.tolist() == [0, 1, 1, 2]


def test_a_threshold_and_the_levels_ahead() -> None:
    """Maps 0, 1, 2 are used again after 7, 5, 3 levels: beyond 3 are the first two.

    Map 1 is needed by op 6 and comes when one has run that is more than one level before: op 4.
    """
    assert lms(chain(), 50, 3, 1, 0, 0) == [
        "SWAP_OUT 0 after 1",
        "SWAP_OUT 1 after 2",
        "SWAP_IN 1 after 4",
        "SWAP_IN 0 after 5",
    ]


def test_where_nothing_can_trigger_a_swap_in_it_is_synchronous() -> None:
    """Four levels ahead: op 2 triggers map 0; op 1 would trigger map 1, which is still used by op 2."""
    assert lms(chain(), 50, 3, 4, 0, 0) == [
        "SWAP_OUT 0 after 1",
        "SWAP_OUT 1 after 2",
        "SWAP_IN 0 after 2",
        "SWAP_IN 1 before 6",
        "WAIT 1 before 6",
    ]


def test_by_turns() -> None:
    """The first consumer is on level 6, the one after it on 7: one level ahead."""
    assert lms(chain(), 50, 3, -1, 0, 0)[2:] == ["SWAP_IN 0 after 5", "SWAP_IN 1 before 6", "WAIT 1 before 6"]


@pytest.mark.parametrize(
    ("sync_mode", "waits"),
    [
        (1, ["WAIT 0 after 1", "WAIT 1 after 2"]),
        (2, ["WAIT 1 before 6", "WAIT 0 before 7"]),
        (3, ["WAIT 0 after 1", "WAIT 1 after 2", "WAIT 1 before 6", "WAIT 0 before 7"]),
    ],
)
def test_what_ops_wait_for(sync_mode: int, waits: list[str]) -> None:
    moved = lms(chain(), 50, 3, 1, 0, sync_mode)
    assert [each for each in moved if each.startswith("WAIT")] == waits
    if sync_mode & 2:  # nothing comes before it is needed
        assert [each for each in moved if "SWAP_IN" in each] == ["SWAP_IN 1 before 6", "SWAP_IN 0 before 7"]


@pytest.mark.parametrize(("groupby", "swap_ins"), [(0, 2), (1, 2), (2, 1)])
def test_consumers_two_levels_apart_share_a_swap_in(groupby: int, swap_ins: int) -> None:
    moved = lms(chain(skip=True), 50, 4, 0, groupby, 0)
    assert sum(each.startswith("SWAP_IN 0") for each in moved) == swap_ins


def test_what_is_overwritten_is_dropped_and_does_not_come_back() -> None:
    builder = TraceBuilder()
    builder.begin_op("aten::relu")
    old, other = builder.allocate(MIB, Role.INTERMEDIATE), builder.allocate(MIB, Role.INTERMEDIATE)
    for each in (old, other):
        builder.access(each, MADE)
    builder.end_op()
    for _ in range(3):
        builder.begin_op("aten::add_")
        builder.access(other, Access.READ | Access.WRITE | Access.IN_PLACE)
        builder.end_op()
    builder.begin_op("aten::copy_")
    builder.access(other, Access.READ)
    builder.access(old, MADE)
    builder.end_op()
    assert lms(builder.finish(target="cuda", source="synthetic"), 2, 2, 0, 0, 0) == ["DROP 0 after 0"]


def test_the_tuner_by_hand() -> None:
    """The step takes 50 MiB, and nine tenths of 55 are 49.5: the largest threshold lets map 0 alone go.

    It may be back one level before op 7, when 40 are live; two before there would be 50.
    """
    plan = planners.run("lms", chain(), V100, 55 * MIB)
    assert dict(plan.options) == {"swapout_threshold": 6, "swapin_ahead": 1, "swapin_groupby": 8, "sync_mode": 0}
    assert words(plan) == ["SWAP_OUT 0 after 1", "SWAP_IN 0 after 5"]


def test_the_tuner_leaves_alone_what_fits() -> None:
    """Nine tenths of 56 MiB are 50.4."""
    assert not len(planners.run("lms", chain(), V100, 56 * MIB))


def test_the_tuner_keeps_what_is_given() -> None:
    plan = planners.run("lms", chain(), V100, 55 * MIB, swapout_threshold=2, sync_mode=1)
    assert (plan.options["swapout_threshold"], plan.options["sync_mode"]) == (2, 1)


def test_the_tuner_keeps_a_tenth_back() -> None:
    """Op 5 uses 30 MiB at once, which is all that the smallest setting needs."""
    with pytest.raises(BudgetError, match=r"asks for 33\.33 MiB; give at least that, or all four options"):
        planners.run("lms", chain(), V100, 33 * MIB)
    assert lms(chain(), 30, 1, 0, 0, 3)


def test_a_setting_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"needs 50\.00 MiB; the budget is 40\.00 MiB"):
        lms(chain(), 40, 7, 1, 0, 0)


@pytest.mark.parametrize(
    ("option", "value"),
    [("swapout_threshold", -1), ("swapin_ahead", -2), ("swapin_groupby", -1), ("sync_mode", 4)],
)
def test_bad_options(option: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"{option}: expected"):
        planners.run("lms", chain(), V100, 55 * MIB, **{option: value})


OPTIONS: dict[str, Any] = {
    "swapout_threshold": st.none() | st.integers(0, 6),
    "swapin_ahead": st.none() | st.integers(-1, 6),
    "swapin_groupby": st.none() | st.integers(0, 6),
    "sync_mode": st.none() | st.integers(0, 3),
}


def assert_executed(trace: Trace, budget_bytes: int, options: dict[str, int | None]) -> bool:
    """Says whether anything moves."""
    try:
        plan = planners.run("lms", trace, V100, budget_bytes, **options)
    except BudgetError:
        return False
    result = simulate_swap(trace, V100, plan, spans=False).result
    assert result.on_demand_swap_ins == result.evictions == 0
    assert result.peak_live_bytes <= budget_bytes
    assert set(plan.options) == set(OPTIONS)
    assert all(value is None or plan.options[name] == value for name, value in options.items())
    sync_mode = int(plan.options["sync_mode"] or 0)
    actions = list(plan)
    for action in actions:
        waits = dataclasses.replace(action, kind=ActionKind.WAIT)
        if action.kind is ActionKind.SWAP_OUT and sync_mode & 1:
            assert waits in actions
        if action.kind is ActionKind.SWAP_IN and sync_mode & 2:
            assert waits in actions and not action.after
    return len(plan) > 0


@pytest.mark.long
@given(trace=traces(most_ops=20), options=st.fixed_dictionaries(OPTIONS), share=st.floats(0.3, 1.2))
@settings(max_examples=50, deadline=None)
def test_the_simulator_executes_every_plan(trace: Trace, options: dict[str, int | None], share: float) -> None:
    assume(len(trace.ops))
    assert_executed(trace, int(trace.peak_bytes * share), options)


@pytest.mark.long
def test_the_simulator_executes_plans_that_move_much() -> None:
    moving = 0
    for seed in range(300):
        random = Random(seed)
        trace = random_ops(random)
        given_options = random.random() < 0.8
        options = {
            "swapout_threshold": random.randint(0, 8) if given_options else None,
            "swapin_ahead": random.randint(-1, 8) if given_options else None,
            "swapin_groupby": random.randint(0, 8) if given_options else None,
            "sync_mode": random.randint(0, 3) if given_options else None,
        }
        moving += assert_executed(trace, int(trace.peak_bytes * random.uniform(0.8, 1.3)), options)
    assert moving >= 100  # else it tests little
