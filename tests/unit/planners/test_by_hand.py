"""Planners: cases worked by hand, and random steps on which the simulator executes every plan."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from traces import layers, traces

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.errors import BudgetError, FormatError, PolicyError, UsageError
from umadvise.planners.step_graph import step_graph, sum_over
from umadvise.recording.builder import TraceBuilder
from umadvise.records import plan_file as io
from umadvise.records.enums import Role
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Access, EventKind, Trace
from umadvise.simulator.swap import simulate_swap

V100 = load_device("v100-16gb")
MIB = 1 << 20


def moves(plan: Plan) -> list[tuple[str, int, int]]:
    return [(action.kind.name.lower(), action.op, action.storage) for action in plan]


def test_belady_by_hand() -> None:
    """Four maps, room for two: backward wants the latest first, so the earliest leaves."""
    assert moves(planners.run("belady", layers(4), V100, 20 * MIB)) == [
        ("swap_out", 2, 0),  # room for map 2: of 0 and 1, 0 is used last
        ("swap_out", 3, 1),
        ("swap_in", 6, 1),
        ("swap_in", 7, 0),
    ]


def test_lru_by_hand() -> None:
    """What was used longest ago is here what is used furthest ahead; backward leaves the same."""
    assert moves(planners.run("lru", layers(4), V100, 20 * MIB)) == moves(
        planners.run("belady", layers(4), V100, 20 * MIB)
    )


def test_a_weight_leaves_without_a_copy_when_the_host_has_it_still() -> None:
    builder = TraceBuilder()
    weight = builder.allocate(10 * MIB, Role.PARAMETER, "weight")
    for _ in range(2):
        builder.begin_op("aten::mm", duration_ns=10**6)
        builder.access(weight, Access.READ)
        builder.end_op()
        builder.begin_op("aten::relu", duration_ns=10**6)
        large = builder.allocate(15 * MIB, Role.INTERMEDIATE)
        builder.access(large, Access.WRITE | Access.WHOLE)
        builder.end_op()
        builder.free(large)
    trace = builder.finish(target="cuda", source="synthetic")
    plan = planners.run("belady", trace, V100, 20 * MIB)
    # The step before left it on the host; nobody writes it, so nothing is copied back.
    assert moves(plan) == [("swap_in", 0, 0), ("swap_out", 1, 0), ("swap_in", 2, 0), ("swap_out", 3, 0)]
    result = simulate_swap(trace, V100, plan).result
    assert (result.swap_in_bytes, result.swap_out_bytes) == (20 * MIB, 0)


def test_what_the_host_does_after_an_op_is_a_use() -> None:
    """Op 0 makes a and b, op 1 c; then the host writes all of a, reads b and changes a part of c."""
    builder = TraceBuilder()
    builder.begin_op("aten::op")
    a, b = builder.allocate(MIB, Role.INPUT), builder.allocate(MIB, Role.INTERMEDIATE)
    for each in (a, b):
        builder.access(each, Access.WRITE | Access.WHOLE)
    builder.end_op()
    builder.begin_op("aten::op")
    c = builder.allocate(MIB, Role.INTERMEDIATE)
    builder.end_op()
    builder.begin_op("aten::op")
    builder.end_op()
    builder.event(EventKind.HOST_WRITE, a, 0, MIB)
    builder.event(EventKind.HOST_READ, b, 0, MIB)
    builder.event(EventKind.HOST_WRITE, c, 0, MIB // 2)
    uses = step_graph(builder.finish(target="cuda", source="synthetic")).uses
    assert [uses.of(each).tolist() for each in (a, b, c)] == [[0, 2], [0, 2], [1, 2]]
    assert uses.accessed.tolist() == [True, False, True, False, False, False]
    assert uses.written_whole.tolist() == [True, True, True, False, True, False]
    assert uses.writes.tolist() == [True, True, True, False, True, True]


def test_a_graph_is_built_once_while_somebody_has_it() -> None:
    trace, other = layers(3), layers(3)
    graph = step_graph(trace)
    assert step_graph(trace) is graph and step_graph(other) is not graph
    gone = weakref.ref(step_graph(other))
    gc.collect()
    assert gone() is None and step_graph(trace) is graph


def test_what_is_live_goes_on_by_the_names_of_the_next_step() -> None:
    """A gradient of the step before dies in op 0, and op 1 makes its successor; a weight stays."""
    builder = TraceBuilder()
    weight, old = builder.allocate(MIB, Role.PARAMETER), builder.allocate(2 * MIB, Role.GRADIENT)
    builder.begin_op("aten::zero_")
    scratch = builder.allocate(8 * MIB, Role.WORKSPACE)
    builder.free(scratch)
    builder.end_op()
    builder.free(old)
    builder.begin_op("aten::mm")
    new = builder.allocate(2 * MIB, Role.GRADIENT)
    builder.access(weight, Access.READ)
    builder.end_op()
    trace = builder.finish(target="cuda", source="synthetic")
    successor = np.full(4, -1)
    successor[old] = new
    graph = step_graph(replace(trace, storages=replace(trace.storages, successor=successor)))
    assert graph.heir[[weight, old, scratch, new]].tolist() == [weight, -1, -1, old]
    assert graph.continues.tolist() == [True, True, False, False]
    assert graph.transient.tolist() == [False, False, True, False]
    assert (graph.bytes_before, graph.begin_bytes.tolist()) == (3 * MIB, [3 * MIB, MIB])
    assert (graph.peak_bytes.tolist(), graph.scratch_bytes.tolist()) == ([11 * MIB, 3 * MIB], [8 * MIB, 0])


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_sums_over_ranges_are_those_of_a_loop(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 9))
    ends = st.integers(0, count)
    ranges = data.draw(
        st.lists(st.tuples(ends, ends, st.integers(0, 99)).map(lambda each: (*sorted(each[:2]), each[2])))
    )
    begin, end, amounts = np.array(ranges, np.int64).reshape(-1, 3).T
    expected = [sum(amount for low, high, amount in ranges if low <= place < high) for place in range(count)]
    assert sum_over(count, begin, end, amounts).tolist() == expected


def test_a_step_ends_as_it_began() -> None:
    """Room for two of three weights: op 2 has pushed out what the step began with, so it comes back at the end."""
    builder = TraceBuilder()
    weights = [builder.allocate(10 * MIB, Role.PARAMETER) for _ in range(3)]
    for each in (0, 1, 2, 1):
        builder.begin_op("aten::mm", duration_ns=10**6)
        builder.access(weights[each], Access.READ)
        builder.end_op()
    trace = builder.finish(target="cuda", source="synthetic")
    for name in ("belady", "lru"):
        plan = planners.run(name, trace, V100, 20 * MIB)
        first = {action.storage: action.kind for action in reversed(list(plan))}
        ends = dict.fromkeys(range(3), True)
        begins = {each: first.get(each) is not ActionKind.SWAP_IN for each in range(3)}
        ends |= {action.storage: action.kind is ActionKind.SWAP_IN for action in plan}
        assert begins == ends and sum(begins.values()) == 2
        assert simulate_swap(trace, V100, plan).result.on_demand_swap_ins == 0


def test_an_op_that_does_not_fit_is_named() -> None:
    with pytest.raises(BudgetError, match=r"op 0 \(aten::relu\) uses 10.00 MiB at once"):
        planners.run("belady", layers(4), V100, 9 * MIB)


@pytest.mark.parametrize("name", ["belady", "lru"])
@given(trace=traces(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_simulator_executes_every_plan(name: str, trace: Trace, data: st.DataObject) -> None:
    assume(len(trace.ops))
    most = max(int(trace.peak_bytes), 1)
    budget_bytes = data.draw(st.integers(0, most))
    try:
        plan = planners.run(name, trace, V100, budget_bytes)
    except BudgetError:
        return
    result = simulate_swap(trace, V100, plan, spans=False).result
    assert result.peak_live_bytes <= budget_bytes
    assert result.on_demand_swap_ins == result.evictions == 0
    assert result.step_ns >= result.compute_ns


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_belady_is_the_simulators_own(share: float) -> None:
    """The simulator evicts on demand by a rule of its own, without a plan: what moves is the same."""
    trace = layers(40)
    budget_bytes = int(trace.peak_bytes * share)
    planned = simulate_swap(trace, V100, planners.run("belady", trace, V100, budget_bytes)).result
    alone = simulate_swap(trace, V100, None, budget_bytes=budget_bytes, eviction="belady").result
    assert (planned.swap_in_bytes, planned.swap_out_bytes) == (alone.swap_in_bytes, alone.swap_out_bytes)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: planners.run("magic", layers(2), V100, MIB), PolicyError, "unknown planner 'magic': expected one of"),
        (lambda: planners.run("lru", layers(2), V100, 99 * MIB, speed=1), UsageError, "has no option 'speed'"),
    ],
)
def test_bad_input(call: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


# ---- files ---------------------------------------------------------------------------------------------------------


def plan_of(trace: Trace) -> Plan:
    return planners.run("belady", trace, V100, 20 * MIB)


def test_a_file_gives_back_what_was_written() -> None:
    trace = layers(6)
    plan = plan_of(trace)
    again = io.decode(io.encode(plan), trace)
    assert list(again) == list(plan)
    assert (again.planner, again.budget_bytes, dict(again.options)) == ("belady", 20 * MIB, {})
    assert io.encode(again) == io.encode(plan)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_files_are_refused_or_equal(data: st.DataObject) -> None:
    trace = layers(3)
    document = bytearray(io.encode(plan_of(trace)))
    document[data.draw(st.integers(0, len(document) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        again = io.decode(bytes(document), trace)
    except FormatError:
        return
    assert list(again) == list(plan_of(trace))


def test_a_plan_of_another_trace_is_refused() -> None:
    with pytest.raises(FormatError, match="made for another trace"):
        io.decode(io.encode(plan_of(layers(6))), layers(7))


def test_a_plan_that_cannot_be_executed_is_refused() -> None:
    trace = layers(3)
    with pytest.raises(ValueError, match="not alive"):
        Plan.from_actions(trace, [Action(ActionKind.SWAP_IN, 0, 2)], planner="hand", budget_bytes=MIB)
