"""Sums of events against sums made by brute force, and readings of counters against their differences."""

from collections import defaultdict
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from umadvise.records.counters import (
    CAUSES,
    EVENT_KINDS,
    PHASES,
    ROLES,
    SWAP_CAUSES,
    SWAP_KINDS,
    Chunks,
    Event,
    Swaps,
    add,
    subtract,
)
from umadvise.records.fault_profile import BIN_COUNT, MOST_STEPS, MOST_UNDRIVEN, Tally, TensorRow, decode, encode
from umadvise.records.peaks import later
from umadvise.reports.counters.builder import ProfileBuilder
from umadvise.reports.counters.tables import StepAccumulator, TableSum, TableSums
from umadvise.reports.counters.timeline import pattern_of

names = st.sampled_from([None, "a", "b"])
kinds_and_causes = st.sampled_from(EVENT_KINDS).flatmap(
    lambda kind: st.tuples(st.just(kind), st.sampled_from(SWAP_CAUSES if kind in SWAP_KINDS else CAUSES))
)
events = st.lists(
    st.builds(
        lambda kind_and_cause, **fields: Event(kind=kind_and_cause[0], cause=kind_and_cause[1], **fields),
        kinds_and_causes,
        start_ns=st.integers(0, 999),
        address=st.just(0),
        allocation=st.integers(1, 6),
        neighbours=st.integers(0, 3),
        op_index=st.just(1),
        write=st.booleans(),
        duration_ns=st.integers(0, 50),
        step=st.sampled_from([1, 1, 1, 2]),
        bytes=st.sampled_from([0, 4096, 2 << 20]),
        allocation_bytes=st.sampled_from([64, 128]),
        role=st.sampled_from([None, *ROLES]),
        name=names,
        birth_op=names,
        birth_module=names,
        op=names,
        module=names,
        phase=st.sampled_from(PHASES),
        unordered=st.booleans(),
        first_touch=st.booleans(),
    ),
    max_size=40,
)

# How a person would count one field over a list of events.
BY_HAND = {
    "fault_groups": lambda event: event.kind == "fault_group",
    "unordered_faults": lambda event: event.kind == "fault_group" and event.unordered,
    "first_touches": lambda event: event.kind == "fault_group" and event.first_touch,
    "evictions": lambda event: event.kind == "eviction" and event.bytes > 0,
    "evictions_dropped": lambda event: event.kind == "eviction" and event.bytes == 0,
    "collapses": lambda event: event.kind == "collapse",
    "remote_maps": lambda event: event.kind == "remote_map",
    "service_ns": lambda event: event.duration_ns if event.kind in ("fault_group", "eviction") else 0,
    "swap_ins": lambda event: event.kind == "swap_in",
    "swap_in_bytes": lambda event: event.bytes if event.kind == "swap_in" else 0,
    "on_demand_swap_ins": lambda event: event.kind == "swap_in" and event.cause == "on_demand",
    "on_demand_bytes": lambda event: event.bytes if event.kind == "swap_in" and event.cause == "on_demand" else 0,
    "swap_outs": lambda event: event.kind == "swap_out" and event.bytes > 0,
    "clean_drops": lambda event: event.kind == "swap_out" and event.bytes == 0,
    "swap_out_bytes": lambda event: event.bytes if event.kind == "swap_out" else 0,
    "swap_evictions": lambda event: event.kind == "swap_out" and event.cause == "for_room",
    "wait_copy_ns": lambda event: event.duration_ns if event.kind == "wait_copy" else 0,
    "on_demand_wait_ns": lambda event: (
        event.duration_ns if event.kind == "wait_copy" and event.cause == "on_demand" else 0
    ),
    "wait_room_ns": lambda event: event.duration_ns if event.kind == "wait_room" else 0,
}
SUBJECTS = {
    "role": ("role",),
    "phase": ("phase",),
    "role_phase": ("role", "phase"),
    "module": ("module",),
    "op": ("op", "phase"),
}


def by_hand(some: list[Event]) -> dict[str, Any]:
    sums: dict[str, Any] = {field: sum(count(event) for event in some) for field, count in BY_HAND.items()}
    for direction in ("h2d", "d2h"):
        sums[f"bytes_{direction}"] = {
            cause: sum(event.bytes for event in some if event.kind == f"transfer_{direction}" and event.cause == cause)
            for cause in CAUSES
        }
    return sums


def finally_labelled(given_events: list[Event]) -> list[Event]:
    """The events that count, each with the label that its allocation had last."""
    counted = [event for event in given_events if event.step == 1 and event.kind not in ELSEWHERE]
    last = {event.allocation: event for event in counted}
    label = ("role", "name", "birth_op", "birth_module", "allocation_bytes")
    return [
        msgspec.structs.replace(event, **{field: getattr(last[event.allocation], field) for field in label})
        for event in counted
        if event.kind != "label"
    ]


# Told of otherwise: by op, and in the counters of explicit swapping.
ELSEWHERE = ("oversized_op", "silent_write")


def fields_of(row: Tally) -> dict[str, Any]:
    fields = {field: getattr(row, field) for field in BY_HAND}
    for field in ("bytes_h2d", "bytes_d2h"):
        fields[field] = {cause: getattr(getattr(row, field), cause) for cause in CAUSES}
    return fields


@given(events)
def test_tables_are_the_sums_that_one_makes_by_hand(given_events: list[Event]) -> None:
    step, sums = StepAccumulator(1), TableSums()
    step.add(given_events)
    sums.add(step)
    tables = sums.tables()
    counted = finally_labelled(given_events)
    for name, columns in SUBJECTS.items():
        groups = defaultdict(list)
        for event in counted:
            groups[tuple(getattr(event, column) for column in columns)].append(event)
        table = getattr(tables, name)
        found = {tuple(getattr(row, column) for column in columns): fields_of(row) for row in table.rows}
        assert found == {subject: by_hand(group) for subject, group in groups.items()}
        assert table.rest is None
    oversized = [event for event in given_events if event.step == 1 and event.kind == "oversized_op"]
    assert sum(op.count for op in sums.oversized_ops()) == len(oversized)
    assert max((op.bytes for op in sums.oversized_ops()), default=0) == max((e.bytes for e in oversized), default=0)


@given(events)
def test_a_named_tensor_is_one_row_wherever_it_was_born(given_events: list[Event]) -> None:
    step, sums = StepAccumulator(1), TableSums()
    step.add(given_events)
    sums.add(step)
    groups = defaultdict(list)
    for event in finally_labelled(given_events):
        born = (None, None) if event.name is not None else (event.birth_module, event.birth_op)
        groups[(event.role, event.name, *born, event.allocation_bytes)].append(event)
    found = {
        (row.role, row.name, row.birth_module, row.birth_op, row.bytes): fields_of(row)
        for row in sums.tables().tensor.rows
    }
    assert found == {subject: by_hand(group) for subject, group in groups.items()}


def test_what_is_labelled_late_counts_for_its_last_name(make: Any) -> None:
    born = {"role": "intermediate", "birth_op": "aten::zeros_like", "allocation_bytes": 64}
    step, sums = StepAccumulator(1), TableSums()
    step.add(
        [make.event("fault_group", allocation=7, neighbours=3, **born), make.event("fault_group", allocation=8, **born)]
    )
    step.add([make.event("label", allocation=7, **{**born, "role": "optimizer_state", "name": "weight.exp_avg"})])
    sums.add(step)
    rows = {(row.role, row.name, row.birth_op): (row.fault_groups, row.neighbours) for row in sums.tables().tensor.rows}
    assert rows == {
        ("optimizer_state", "weight.exp_avg", None): (1, 3),
        ("intermediate", None, "aten::zeros_like"): (1, 0),
    }


def test_swaps_of_steps_and_outside_of_them_are_all_that_was_counted(make: Any) -> None:
    def reading(number: int) -> Swaps:
        return make.swaps(swap_ins=number, wait_copy_ns=10 * number)

    chunks = Chunks(chunk_bytes=2 << 20, budget_bytes=8 << 20, used_peak_bytes=8 << 20, host_peak_bytes=0)
    builder = ProfileBuilder(make.environment(), make.counters(), reading(3))
    for index, (first, last) in enumerate(((4, 9), (9, 29)), 1):
        builder.begin_step(index, index, make.counters(), reading(first))
        builder.end_step(index, make.counters(), None, swaps=reading(last))
    profile = builder.build(make.counters(), 0, swaps=reading(30), chunks=chunks)
    assert [step.swaps for step in profile.steps] == [reading(5), reading(20)]
    assert (profile.swaps, profile.outside_swaps) == (reading(25), reading(2))
    assert decode(encode(profile)) == profile
    assert builder.build(make.counters(), 0, swaps=reading(30)).swaps is None  # no chunks: nothing could be swapped


def test_steps_that_no_plan_drove_are_told_with_their_reasons(make: Any) -> None:
    builder = ProfileBuilder(make.environment(), make.counters())
    reasons = ["recorded", "recorded", None, "left its plan", None, "recorded"]
    for number, reason in enumerate(reasons, 1):
        builder.note_plan(number, reason)
    planned = builder.build(make.counters(), 0).planned
    assert planned is not None
    assert planned.driven == 2
    assert [(each.first, each.last, each.reason) for each in planned.undriven] == [
        (1, 2, "recorded"),
        (4, 4, "left its plan"),
        (6, 6, "recorded"),
    ]
    for number in range(7, 1000):
        builder.note_plan(number, f"another reason {number}")
    planned = builder.build(make.counters(), 0).planned
    assert planned is not None
    assert len(planned.undriven) == MOST_UNDRIVEN
    assert (planned.undriven[0].first, planned.undriven[-1].last) == (1, 999)


@given(events, st.integers(0, 1200))
def test_the_pattern_is_what_counting_nanoseconds_gives(given_events: list[Event], duration_ns: int) -> None:
    start_ns = 100
    services = [(e.start_ns, e.duration_ns, e.phase) for e in given_events]
    pattern = pattern_of(1, start_ns, duration_ns, services)
    in_service = [0] * BIN_COUNT
    for begin, length, _ in services:
        for now in range(max(begin, start_ns), min(begin + length, start_ns + duration_ns)):
            in_service[(now - start_ns) * BIN_COUNT // duration_ns] += 1
    assert list(pattern.service_ns) == in_service
    assert sum(pattern.fault_groups) == len(services)


def test_a_bin_between_two_of_one_phase_has_that_phase() -> None:
    pattern = pattern_of(1, 0, 96, [(10, 1, "forward"), (20, 1, "forward"), (40, 3, "backward")])
    assert pattern.phases[:10] == (None,) * 10
    assert set(pattern.phases[10:21]) == {"forward"}
    assert set(pattern.phases[21:40]) == {None}  # forward before, backward after: nobody knows where it changed
    assert pattern.phases[40:43] == ("backward",) * 3
    assert pattern.stall_share("forward") == 2 / 11  # of the eleven bins from the tenth on
    assert pattern.stall_share("optimizer") is None


def test_rows_that_do_not_fit_are_summed_in_the_rest(make: Any) -> None:
    table = TableSum(TensorRow, ("role", "name", "birth_module", "birth_op", "bytes"), most_rows=8)
    sums = TableSums()
    for index in range(1, 101):
        step = StepAccumulator(index)
        new = make.event(
            "fault_group", step=index, duration_ns=1, role="intermediate", name=f"new{index}", allocation=1
        )
        old = make.event("fault_group", step=index, duration_ns=9, role="parameter", name="weight")
        step.add([new, old])
        table.add(index, step.sums().items())
        sums.add(step)
    kept = table.table()
    assert len(kept.rows) == 8
    assert kept.rest is not None
    assert (kept.rows[0].name, kept.rows[0].service_ns, kept.rows[0].faulted_steps) == ("weight", 900, 100)
    assert sum(row.fault_groups for row in kept.rows) + kept.rest.fault_groups == 200
    assert sum(row.service_ns for row in kept.rows) + kept.rest.service_ns == 1000
    assert {row.role: row.faulted_steps for row in sums.tables().role.rows} == {"parameter": 100, "intermediate": 100}


def test_residency_is_the_highest_of_all_steps(make: Any) -> None:
    builder = ProfileBuilder(make.environment(), make.counters())
    fault = make.event("fault_group", role="gradient", name="w.grad", allocation_bytes=64, op="aten::mm", module="a")
    remote = make.event(
        "remote_map", role="input", name="batch", allocation_bytes=8, op="aten::mm", module="a", allocation=2
    )
    peaks = {
        1: [
            make.peak("role", 100, role="gradient"),
            make.peak("role", 0, role="input"),
            make.peak("role", 0, role="workspace"),
            make.peak("tensor", 64, role="gradient", name="w.grad", bytes=64),
            make.peak("tensor", 0, role="input", name="batch", bytes=8),
            make.peak("tensor", 0, role="input", name="elsewhere", bytes=8),
            make.peak("op", 500, op="aten::mm", module="a", phase="forward", compute_ns=30),
            make.peak("op", 700, op="aten::mm", module="b", phase="forward"),
            make.peak("op", 600, op="aten::mm", module="a", phase="backward", compute_ns=50),
            make.peak("op", 0, op="aten::relu", module="c", phase="forward", compute_ns=9),
        ],
        2: [
            make.peak("role", 90, role="gradient"),
            make.peak("tensor", 128, role="gradient", name="w.grad", bytes=64),
            make.peak("op", 650, op="aten::add", module=None, phase="backward"),
        ],
        3: [],  # unknown: events were lost
    }
    for index, some in peaks.items():
        builder.begin_step(index, index, make.counters())
        builder.add_events([fault, remote] if index == 1 else [])
        builder.end_step(index, make.counters(), make.memory(), some)
    profile = builder.build(make.counters(), 0)
    tables = profile.tables
    assert tables is not None
    # The faulting row first, then those that were only there; who neither faulted nor was there has none.
    assert [(row.role, row.resident_peak_bytes) for row in tables.role.rows] == [("gradient", 100), ("input", 0)]
    assert [(row.name, row.resident_peak_bytes) for row in tables.tensor.rows] == [("w.grad", 128), ("batch", 0)]
    assert {row.phase: row.resident_peak_bytes for row in tables.phase.rows} == {
        None: None,  # the events' own phase, of which no peak was told
        "forward": 700,
        "backward": 650,
    }
    modules = {row.module: (row.resident_peak_bytes, row.compute_ns) for row in tables.module.rows}
    assert modules == {"a": (600, 80), "b": (700, 0), None: (650, 0), "c": (0, 9)}
    assert {row.phase: row.compute_ns for row in tables.phase.rows} == {None: 0, "forward": 39, "backward": 50}
    assert {(row.op, row.phase): row.resident_peak_bytes for row in tables.op.rows} == {
        ("aten::mm", None): None,
        ("aten::mm", "forward"): 700,
        ("aten::mm", "backward"): 600,
        ("aten::add", "backward"): 650,
        ("aten::relu", "forward"): 0,
    }
    assert sum(row.fault_groups for row in tables.module.rows) == 1
    assert tables.role.rest is None
    assert decode(encode(profile)) == profile


def test_a_profile_of_many_steps_keeps_first_and_latest_and_all_sums(make: Any) -> None:
    builder = ProfileBuilder(make.environment(), make.counters(fault_groups=7))
    for index in range(1, 1001):
        builder.begin_step(index, index * 1000, make.counters(fault_groups=7 + 10 * (index - 1)))
        builder.add_events(
            [make.event("fault_group", step=index, start_ns=index * 1000 + 5, duration_ns=10, role="input")]
        )
        builder.end_step(index * 1000 + 960, make.counters(fault_groups=7 + 10 * index), make.memory())
    profile = builder.build(make.counters(fault_groups=7 + 10_000 + 3), 0)
    assert profile.step_count == 1000
    assert profile.duration_ns == 960_000
    assert len(profile.steps) == MOST_STEPS
    indices = [step.index for step in profile.steps]
    assert (indices[0], indices[15], indices[16], indices[-1]) == (1, 16, 953, 1000)
    assert profile.counters.fault_groups == 10_000
    assert profile.outside is not None
    assert profile.outside.fault_groups == 3
    assert profile.tables is not None
    assert profile.tables.role.rows[0].fault_groups == 1000
    assert profile.pattern is not None
    assert (profile.pattern.step, profile.pattern.fault_groups[0]) == (1000, 1)
    assert profile.pattern.service_ns[:3] == (5, 5, 0)  # ten nanoseconds a bin, and it begins in the middle of one
    assert decode(encode(profile)) == profile


def test_a_step_that_never_ended_is_outside(make: Any) -> None:
    builder = ProfileBuilder(make.environment(script="bad\nname\x1b[2J"), make.counters())
    builder.begin_step(1, 0, make.counters())
    builder.add_events([make.event("fault_group", role="input")])
    profile = builder.build(make.counters(fault_groups=4), 0)
    assert profile.step_count == 0
    assert profile.outside is not None
    assert profile.outside.fault_groups == 4
    assert profile.tables is not None
    assert profile.tables.role.rows == ()
    assert profile.pattern is None
    assert profile.environment.script == "bad\ufffdname\ufffd[2J"
    assert decode(encode(profile)) == profile


def test_without_events_the_tables_are_unknown_not_empty(make: Any) -> None:
    builder = ProfileBuilder(make.environment(provider="cuda", counting="raw"), make.counters(fault_groups=None))
    builder.begin_step(1, 0, make.counters(fault_groups=None))
    builder.end_step(10, make.counters(fault_groups=None), None)
    profile = builder.build(make.counters(fault_groups=None), 0)
    assert profile.tables is None
    assert profile.pattern is None
    assert profile.memory is None
    assert profile.counters.fault_groups is None


@pytest.mark.parametrize("index", [1, 0])
def test_steps_go_forward(make: Any, index: int) -> None:
    builder = ProfileBuilder(make.environment(), make.counters())
    builder.begin_step(1, 0, make.counters())
    builder.end_step(5, make.counters(), None)
    with pytest.raises(ValueError, match="larger index"):
        builder.begin_step(index, 10, make.counters())
    with pytest.raises(ValueError, match="no step is open"):
        builder.end_step(20, make.counters(), None)


def test_readings_subtract_field_by_field_and_unknown_stays_unknown(make: Any) -> None:
    before = make.counters(fault_groups=5, collapses=None, bytes_h2d=make.by_cause(eviction=10, user=None))
    after = make.counters(fault_groups=8, collapses=3, bytes_h2d=make.by_cause(eviction=25, user=7))
    difference = subtract(after, before)
    assert (difference.fault_groups, difference.collapses, difference.remote_accesses) == (3, None, None)
    assert difference.bytes_h2d == make.by_cause(eviction=15, user=None)
    assert difference.bytes_h2d.total is None
    assert subtract(add(before, difference), before) == difference
    with pytest.raises(ValueError, match="fault_groups ran backwards by 3"):
        subtract(before, after)
    with pytest.raises(ValueError, match="eviction ran backwards by 1"):
        subtract(make.counters(), make.counters(bytes_d2h=make.by_cause(eviction=1)))


def test_the_later_memory_reading_keeps_the_higher_peaks(make: Any) -> None:
    first = make.memory(
        requested_bytes=5,
        requested_peak_bytes=9,
        resident_peak_bytes=None,
        requested_peak_by_role=make.by_role(input=3),
        resident_by_role=make.by_role(input=9),
        resident_peak_by_role=make.by_role(input=9, parameter=2),
    )
    second = make.memory(
        requested_bytes=2,
        requested_peak_bytes=7,
        resident_peak_bytes=4,
        requested_peak_by_role=make.by_role(parameter=1),
        resident_by_role=make.by_role(input=4),
        resident_peak_by_role=make.by_role(input=7, parameter=5),
    )
    both = later(first, second)
    assert (both.requested_bytes, both.requested_peak_bytes, both.resident_peak_bytes) == (2, 9, 4)
    assert both.requested_peak_by_role == make.by_role(input=3, parameter=1)
    assert both.resident_peak_by_role == make.by_role(input=9, parameter=5)
    assert both.resident_by_role == make.by_role(input=4)
    assert later(msgspec.structs.replace(first, resident_peak_by_role=None), second) == msgspec.structs.replace(
        both, resident_peak_by_role=second.resident_peak_by_role
    )


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(events, min_size=1, max_size=5))
def test_what_a_builder_builds_can_be_read_again(steps: list[list[Event]]) -> None:
    from umadvise.records.counters import Counters
    from umadvise.records.fault_profile import RunEnvironment

    nothing = Counters()
    environment = RunEnvironment(
        device_name="\ud800", provider="emulated", counting="raw", capacity_bytes=0, budget_bytes=0, policy=None,
        umadvise_version="", torch_version=None, script="\u202e" * 5000,
    )  # fmt: skip
    builder = ProfileBuilder(environment, nothing)
    for index, step in enumerate(steps, 1):
        builder.begin_step(index, 0, nothing)
        builder.add_events(
            Event(**{**{f: getattr(e, f) for f in Event.__struct_fields__}, "step": index}) for e in step
        )
        builder.end_step(1000, nothing, None)
    profile = builder.build(nothing, 0)
    assert decode(encode(profile)) == profile
