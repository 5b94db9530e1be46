"""Recorded steps: canonical numbers, structures that come again, and what a step begins with when it does."""

import dataclasses
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_traces import MADE, random_step
from traces import traces

from umadvise import _native
from umadvise._native.structures import layout
from umadvise.recording.builder import TraceBuilder
from umadvise.recording.recorded_step import (
    RecordedStep,
    as_grown,
    growth_bytes,
    in_canonical_order,
    recorded_step,
    renumbered,
)
from umadvise.records.enums import Role
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.plan import check as check_plan
from umadvise.records.trace import Access, Trace
from umadvise.records.trace_check import check

MIB = 1 << 20


def shuffled(trace: Trace, seed: int) -> Trace:
    """The same step of a run whose storages were born in another order."""
    order = np.arange(len(trace.storages))
    Random(seed).shuffle(order)  # type: ignore[arg-type]
    return renumbered(trace, order)


@given(traces(), st.integers(0, 1000))
def test_numbers_do_not_depend_on_the_order_of_births(trace: Trace, seed: int) -> None:
    one, other = in_canonical_order(trace)[0], in_canonical_order(shuffled(trace, seed))[0]
    check(one)
    assert one.structure_digest == other.structure_digest


@given(st.integers(0, 10**6))
def test_canonical_order_changes_nothing_else(seed: int) -> None:
    trace = random_step(Random(seed))
    ordered, order = in_canonical_order(trace)
    assert sorted(order.tolist()) == list(range(len(trace.storages)))
    assert ordered.storages.bytes.tolist() == trace.storages.bytes[order].tolist()
    assert ordered.peak_bytes == trace.peak_bytes
    assert ordered.working_set_bytes().tolist() == trace.working_set_bytes().tolist()
    assert order[ordered.accesses.storage].tolist() == trace.accesses.storage.tolist()
    heirs = {(int(order[one]), int(order[heir])) for one, heir in enumerate(ordered.storages.successor) if heir >= 0}
    assert heirs == {(one, int(heir)) for one, heir in enumerate(trace.storages.successor) if heir >= 0}
    assert in_canonical_order(ordered)[1].tolist() == list(range(len(order)))


def step(durations_ns: int = 5, unused: int = 0, size: int = MIB, op: str = "aten::relu", name: str = "w") -> Trace:
    """An op on a parameter whose result becomes this step's gradient in the place of the last one's."""
    builder = TraceBuilder()
    for index in range(unused):
        builder.allocate(MIB, Role.INTERMEDIATE, f"a loss of step {index}")
    weight, gradient = builder.allocate(size, Role.PARAMETER, name), builder.allocate(size, Role.GRADIENT)
    builder.begin_op(op, duration_ns=durations_ns, module=name)
    builder.access(weight, Access.READ)
    made = builder.allocate(size, Role.GRADIENT)
    builder.access(made, MADE)
    builder.end_op()
    builder.free(gradient)
    builder.set_successor(gradient, made)
    return builder.finish(target="cpu", source="live", device="somewhere", torch_version="2")


def digest(trace: Trace) -> str:
    return in_canonical_order(trace)[0].structure_digest


def test_a_structure_is_what_comes_again() -> None:
    first = digest(step())
    for same in (step(durations_ns=999), step(unused=3), step(name="other"), dataclasses.replace(step(), device="x")):
        assert digest(same) == first
    for other in (step(size=2 * MIB), step(op="aten::gelu")):
        assert digest(other) != first


@pytest.mark.parametrize(
    ("table", "column", "counts"),
    [
        *(
            ("storages", each, each in ("bytes", "successor"))
            for each in ("bytes", "successor", "role", "name", "module")
        ),
        *(("accesses", each, True) for each in ("op", "storage", "offset_bytes", "bytes", "flags")),
        *(("events", each, True) for each in ("kind", "op", "inside", "storage", "offset_bytes", "bytes")),
        *(("ops", each, each in ("creates", "name")) for each in ("creates", "name", "duration_ns", "module", "phase")),
    ],
)
def test_a_structure_has_these_columns(table: str, column: str, counts: bool) -> None:
    trace = in_canonical_order(step())[0]
    columns = getattr(trace, table)
    values = getattr(columns, column).copy()
    row = int(np.flatnonzero(trace.storages.successor >= 0)[0]) if column == "successor" else len(values) - 1
    values[row] = 0 if values[row] else 1
    other = dataclasses.replace(trace, **{table: dataclasses.replace(columns, **{column: values})})
    assert (other.structure_digest != trace.structure_digest) == counts


def test_names_count_and_their_numbers_do_not() -> None:
    trace = in_canonical_order(step())[0]
    strings = (*reversed(trace.strings),)
    last = len(strings) - 1
    ops = dataclasses.replace(trace.ops, name=(last - trace.ops.name).astype(np.int32))
    assert dataclasses.replace(trace, strings=strings, ops=ops).structure_digest == trace.structure_digest


def test_a_plan_of_a_step_is_one_whenever_it_comes_again() -> None:
    first, again = (in_canonical_order(step(**each))[0] for each in ({}, {"durations_ns": 999, "unused": 3}))
    assert first.used.tolist() == again.used.tolist()[:3] == [True] * 3
    assert not again.used[3:].any()
    actions = [Action(ActionKind.SWAP_OUT, 0, 0, after=True)]
    plan = Plan.from_actions(first, actions, planner="best", budget_bytes=1 << 30)
    check_plan(plan, again)
    with pytest.raises(ValueError, match="another trace"):
        check_plan(plan, in_canonical_order(step(size=2 * MIB))[0])


def test_what_the_next_step_begins_with() -> None:
    trace = step(unused=1)
    recorded = RecordedStep(trace, np.array([11, 12, 13, 14], np.uint64), "host")
    # the loss stays, the weight stays, the gradient is the one that was made, which is made anew
    assert recorded.first_serials().tolist() == [11, 12, 14, 0]
    assert trace.continued_from.tolist() == [0, 1, 3, -1]


def by_rule(trace: Trace, storage: int) -> int:
    """csrc: `IndexedTrace::find_continuations`, one storage at a time."""
    dies = trace.deaths < len(trace.ops)
    if trace.births[storage] >= 0:
        return -1
    source = int(trace.storages.successor[storage]) if dies[storage] else storage
    if source < 0 or dies[source] or (dies[storage] and trace.births[source] < 0):
        return -1
    return source


@given(st.integers(0, 10**6))
def test_continuations_are_those_of_the_engine(seed: int) -> None:
    trace = random_step(Random(seed))
    assert trace.continued_from.tolist() == [by_rule(trace, storage) for storage in range(len(trace.storages))]


@pytest.mark.parametrize(("grown", "goes_on"), [(5 * MIB, True), (3 * MIB, True), (6 * MIB, False)])
def test_a_cache_that_has_grown_is_the_same_one(grown: int, goes_on: bool) -> None:
    builder = TraceBuilder()
    old = [builder.allocate(4 * MIB, Role.INTERMEDIATE) for _ in range(2)]
    other = builder.allocate(4 * MIB, Role.INPUT)
    new = []
    for each in old:
        builder.begin_op("aten::cat")
        builder.access(each, Access.READ)
        new.append(builder.allocate(grown, Role.INTERMEDIATE))
        builder.access(new[-1], MADE)
        builder.end_op()
        builder.free(each)
    builder.free(other)
    trace = as_grown(builder.finish(target="cpu", source="live"))
    check(trace)
    larger = max(4 * MIB, grown)
    assert trace.storages.successor.tolist() == [*(new if goes_on else [-1, -1]), -1, -1, -1]
    assert trace.storages.bytes[[*old, *new]].tolist() == ([larger] * 4 if goes_on else [4 * MIB] * 2 + [grown] * 2)
    assert trace.storages.bytes[other] == 4 * MIB


def test_growth_is_what_came_to_stay() -> None:
    assert growth_bytes(step()) == (0, 0)
    builder = TraceBuilder()
    weight = builder.allocate(8 * MIB, Role.PARAMETER)
    builder.begin_op("aten::mul")
    builder.access(weight, Access.READ)
    for size, role in ((3 * MIB, Role.OPTIMIZER_STATE), (4, Role.INTERMEDIATE), (MIB, Role.WORKSPACE)):
        made = builder.allocate(size, role)
    builder.end_op()
    builder.free(made)
    trace = builder.finish(target="cpu", source="live")
    assert growth_bytes(trace) == (3 * MIB, 4)
    assert not RecordedStep(trace, np.arange(4, dtype=np.uint64), "host").is_steady


@pytest.mark.parametrize(("size", "steady"), [(4, True), (MIB, False)])
def test_a_loss_that_is_kept_is_no_growth(size: int, steady: bool) -> None:
    builder = TraceBuilder()
    weight = builder.allocate(8 * MIB, Role.PARAMETER)
    builder.begin_op("aten::sum")
    builder.access(weight, Access.READ)
    builder.access(builder.allocate(size, Role.INTERMEDIATE), MADE)
    builder.end_op()
    trace = builder.finish(target="cpu", source="live")
    assert RecordedStep(trace, np.arange(2, dtype=np.uint64), "host").is_steady is steady


@pytest.mark.parametrize(
    ("device_times", "durations"), [((1, 1, 0), "device"), ((1, 0, 1), "host"), ((0, 0, 0), "host")]
)
def test_whose_times_the_durations_are(device_times: tuple[int, ...], durations: str) -> None:
    rows = {name: np.zeros(0, layout(f"um_recorded_{name}")) for name in ("access", "allocation", "event")}
    ops, edges = np.zeros(3, layout("um_recorded_op")), np.zeros(2, layout("um_recorded_edge"))
    ops["step"], ops["device_time"], edges["step"] = (1, 1, 2), device_times, (1, 2)
    recording = _native.Recording(
        ops, rows["access"], np.zeros(0, np.uint64), rows["allocation"], rows["event"], edges, lost=0
    )
    assert recorded_step(recording, 1, [], target="cuda").durations == durations
