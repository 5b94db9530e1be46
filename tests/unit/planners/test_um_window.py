"""Windows of unified memory: a case worked by hand, what may be discarded, and that no plan is slower than none."""

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from traces import layers, traces

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.devices.rungs import ADVISE
from umadvise.errors import BudgetError, InvalidAdviceError, PolicyError, UsageError
from umadvise.planners.judging.score import score
from umadvise.planners.paging.advice import by_role
from umadvise.planners.room import Room
from umadvise.recording.builder import TraceBuilder
from umadvise.records import plan_file as io
from umadvise.records.enums import Advice, Role
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Access, EventKind, Trace
from umadvise.simulator.unified import UnifiedSimulation, simulate_unified

V100 = load_device("v100-16gb")
MIB = 1 << 20
MS = 1_000_000


def simulated(trace: Trace, plan: Plan) -> UnifiedSimulation:
    return simulate_unified(trace, V100, capacity_bytes=plan.budget_bytes, advice=by_role(plan), plan=plan)


def advised(trace: Trace, budget_bytes: int, advice: dict[Role, Advice]) -> UnifiedSimulation:
    return simulate_unified(trace, V100, capacity_bytes=budget_bytes, advice=advice)


def moves(plan: Plan) -> list[tuple[str, int, bool, int, int]]:
    """What moves, before or after which op, to where, how many blocks."""
    names = {0: "in", 1: "out"}
    return [
        (
            f"{names[action.argument] if action.kind is ActionKind.PREFETCH else action.kind.name.lower()} "
            f"{action.storage}",
            action.op,
            action.after,
            action.offset_bytes // (2 * MIB),
            (action.bytes or 0) // (2 * MIB),
        )
        for action in plan
    ]


def test_by_hand() -> None:
    """Four maps of five blocks, room for ten, 1 ms an op and 0.9 ms a map over the link.

    Maps 0 and 1 leave when they have been made, since backward needs them last. Each comes back one op early, as soon
    as there is room; there is because map 3, and then map 2, is thrown away. Maps 1 and 0 stay when they are dead: the
    next step makes its first two maps before it needs their places.
    """
    plan = planners.run("um-window", layers(4), V100, 20 * MIB, reserve=0.0)
    assert moves(plan) == [
        ("out 0", 1, False, 0, 5),
        ("out 1", 2, False, 0, 5),
        ("discard 3", 4, True, 0, 5),
        ("in 1", 5, False, 0, 5),
        ("discard 2", 5, True, 0, 5),
        ("in 0", 6, False, 0, 5),
    ]
    assert set(by_role(plan).values()) == {Advice.PREFERRED_LOCATION}


def test_only_as_much_leaves_as_has_to() -> None:
    plan = planners.run("um-window", layers(4), V100, 24 * MIB, reserve=0.0)
    assert [move for move in moves(plan) if move[0].startswith("out")] == [
        ("out 0", 1, False, 0, 5),
        ("out 1", 2, False, 0, 3),
    ]


def test_nothing_moves_where_all_fits() -> None:
    plan = planners.run("um-window", layers(4), V100, 44 * MIB)
    assert len(plan) == 0
    step = simulated(layers(4), plan).steady[-1]
    assert step.duration_ns == step.compute_ns


def test_what_the_next_op_overwrites_is_thrown_away_and_gets_room_again() -> None:
    builder = TraceBuilder()
    buffer = builder.allocate(20 * MIB, Role.PARAMETER, "buffer")
    for _ in range(2):
        builder.begin_op("aten::fill_", duration_ns=MS)
        builder.access(buffer, Access.WRITE | Access.WHOLE)
        builder.end_op()
        builder.begin_op("aten::mul", duration_ns=MS)
        large = builder.allocate(24 * MIB, Role.INTERMEDIATE)
        builder.access(large, Access.WRITE | Access.WHOLE)
        builder.end_op()
        builder.free(large)
    trace = builder.finish(target="cuda", source="synthetic")
    plan = planners.run("um-window", trace, V100, 32 * MIB, reserve=0.0)
    # Between the steps it is kept, since whoever trains may look at it; what is overwritten does not come back.
    assert moves(plan) == [
        ("discard 0", 0, False, 0, 6),
        ("in 0", 0, False, 0, 6),
        ("discard 0", 1, False, 0, 6),
        ("discard 1", 1, True, 0, 12),
        ("in 0", 2, False, 0, 6),
        ("out 0", 3, False, 0, 6),
        ("discard 2", 3, True, 0, 12),
    ]
    found = score(trace, V100, plan)
    assert (found.bytes_h2d, found.bytes_d2h, found.evictions) == (0, 12 * MIB, 0)


def test_what_stays_is_served_again_before_its_turn_comes() -> None:
    """The weight was served before map 0, so that the driver would evict it first: it is prefetched, and map 0 goes."""
    builder, maps = TraceBuilder(), []
    weight = builder.allocate(10 * MIB, Role.PARAMETER, "weight")
    for _ in range(3):
        builder.begin_op("aten::mm", duration_ns=MS)
        maps.append(builder.allocate(10 * MIB, Role.INTERMEDIATE))
        builder.access(weight, Access.READ)
        builder.access(maps[-1], Access.WRITE | Access.WHOLE)
        builder.end_op()
    for each in reversed(maps):
        builder.begin_op("aten::mm", duration_ns=MS)
        builder.access(weight, Access.READ)
        builder.access(each, Access.READ)
        builder.end_op()
        builder.free(each)
    trace = builder.finish(target="cuda", source="synthetic")
    faulted = {}
    for evictions in ("ordered", "left"):
        plan = planners.run("um-window", trace, V100, 30 * MIB, reserve=0.0, evictions=evictions)
        own = [move for move in moves(plan) if move[0] in ("in 0", "out 0")]
        assert own == ([("in 0", 2, False, 0, 5)] if evictions == "ordered" else [])
        faulted[evictions] = sum(step.counters.fault_groups or 0 for step in simulated(trace, plan).steady)
    assert faulted["ordered"] < faulted["left"]  # map 0 comes back by a prefetch, the weight would by faults


def test_faults_and_time_are_less_than_without() -> None:
    trace = layers(40)
    budget_bytes = 200 * MIB
    plan = planners.run("um-window", trace, V100, budget_bytes)
    planned = simulated(trace, plan).steady[-1]
    plain = advised(trace, budget_bytes, {}).steady[-1]
    recommended = advised(trace, budget_bytes, ADVISE.advice).steady[-1]
    assert planned.counters.evictions == 0  # the driver never has to choose
    assert (planned.counters.fault_groups or 0) < (plain.counters.fault_groups or 0)
    assert planned.duration_ns - planned.compute_ns < (recommended.duration_ns - recommended.compute_ns) / 5
    assert recommended.duration_ns < plain.duration_ns
    found = score(trace, V100, plan)
    assert (found.planner, found.evictions) == ("um-window", 0)


def test_the_advice_goes_with_the_plan_whoever_gives_it() -> None:
    trace = layers(40)
    plan = planners.run("um-window", trace, V100, 200 * MIB)
    given = replace(plan, planner="best", options=MappingProxyType({**plan.options, "from": plan.planner}))
    assert score(trace, V100, given).step_ns == score(trace, V100, plan).step_ns
    unadvised = simulate_unified(trace, V100, capacity_bytes=plan.budget_bytes, plan=plan)
    assert unadvised.mean_step_ns > (score(trace, V100, plan).step_ns or 0)


def test_a_budget_below_one_ops_working_set_is_only_slow() -> None:
    trace = layers(3, bytes_=20 * MIB)
    plan = planners.run("um-window", trace, V100, 16 * MIB)
    assert simulated(trace, plan).mean_step_ns <= advised(trace, 16 * MIB, {}).mean_step_ns


# ---- random steps ----------------------------------------------------------------------------------------------------


def lost(trace: Trace, plan: Plan) -> list[Action]:
    """Discards of what is read, or may be after the step, before it is written as a whole or freed."""
    return [action for action in plan if action.kind is ActionKind.DISCARD and not harmless(trace, action)]


def harmless(trace: Trace, discard: Action) -> bool:
    """In the order of execution: an op, the actions after it, what happens outside ops."""
    accesses, events = trace.accesses, trace.events
    after = discard.op * 3 + 1 if discard.after else discard.op * 3 - 1
    used = np.flatnonzero((accesses.storage == discard.storage) & (accesses.op * 3 > after))
    next_op = int(accesses.op[used[0]]) if len(used) else len(trace.ops)
    happens = events.op.astype(np.int64) * 3 + np.where(events.inside == 1, 0, 2)
    until = (events.storage == discard.storage) & (happens > after) & (happens < next_op * 3)
    for kind in events.kind[until].tolist():
        if kind in (EventKind.FREE, EventKind.HOST_READ, EventKind.HOST_WRITE):
            return bool(kind == EventKind.FREE)
    own = accesses.op[used] == next_op
    flags, bytes_ = accesses.flags[used][own], accesses.bytes[used][own]
    whole = (flags & Access.WHOLE != 0) & (bytes_ == trace.storages.bytes[discard.storage])
    return bool(whole.any() and not (flags & Access.READ).any())


def test_the_test_finds_what_is_lost() -> None:
    trace = layers(2)
    discards = [Action(ActionKind.DISCARD, 1, 0), Action(ActionKind.DISCARD, 3, 0, after=True)]
    plan = Plan.from_actions(trace, discards, planner="test", budget_bytes=0)
    assert lost(trace, plan) == [next(iter(plan))]


@given(
    trace=traces(),
    share=st.floats(0.05, 1.1),
    reserve=st.none() | st.floats(0, 1),
    evictions=st.sampled_from([None, "ordered", "left"]),
)
@settings(max_examples=80, deadline=None)
def test_plans_of_random_steps(trace: Trace, share: float, reserve: float | None, evictions: str | None) -> None:
    assume(len(trace.ops))
    budget_bytes = max(int(trace.peak_bytes * share), 4 * MIB)
    plan = planners.run("um-window", trace, V100, budget_bytes, reserve=reserve, evictions=evictions)
    assert lost(trace, plan) == []
    again = planners.run("um-window", trace, V100, budget_bytes, reserve=reserve, evictions=evictions)
    assert list(again) == list(plan)
    assert list(io.decode(io.encode(plan), trace)) == list(plan)
    step_ns = simulated(trace, plan).mean_step_ns
    if reserve is None:
        assert step_ns <= advised(trace, budget_bytes, {}).mean_step_ns
        assert step_ns <= advised(trace, budget_bytes, ADVISE.advice).mean_step_ns


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_room_is_what_a_list_would_say(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 700))
    free = np.array(data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)))
    room, plain = Room(free), free.copy()
    for _ in range(data.draw(st.integers(0, 8))):
        first = data.draw(st.integers(0, 2 * count - 1))
        end = data.draw(st.integers(first, min(first + count, 2 * count)))
        ops, blocks = np.arange(first, end) % count, data.draw(st.integers(-3, 3))
        room.take(first, end, blocks)
        np.subtract.at(plain, ops, blocks)
        wanted = data.draw(st.integers(-2, 9))
        short = np.flatnonzero(plain[ops] < wanted)
        assert room.since(first, end, wanted) == (first + int(short[-1]) + 1 if len(short) else first)


@pytest.mark.parametrize(
    ("device", "budget_bytes", "options", "error", "says"),
    [
        ("k40", 1 << 30, {}, PolicyError, "cannot page unified memory"),
        ("v100-16gb", 3 * MIB, {}, BudgetError, "3.00 MiB is below two blocks of 2 MiB: give at least 4.00 MiB"),
        ("v100-16gb", 1 << 30, {"reserve": 2.0}, UsageError, "expected a reserve of 0 to 1"),
        ("v100-16gb", 1 << 30, {"ahead_ns": -1}, UsageError, "at least 0 ns"),
        ("v100-16gb", 1 << 30, {"evictions": "none"}, UsageError, "expected one of sent, ordered, left"),
        ("v100-16gb", 1 << 30, {"advice": "maybe"}, InvalidAdviceError, "maybe"),
    ],
)
def test_bad_input(device: str, budget_bytes: int, options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        planners.run("um-window", layers(2), load_device(device), budget_bytes, **options)
