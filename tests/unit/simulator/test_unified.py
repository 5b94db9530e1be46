"""Simulated unified memory against closed forms; that its counters are the emulated device's is test_one_truth.py."""

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import traces

from umadvise import _native
from umadvise._native.abi import Concurrency
from umadvise.devices.catalogue import load_device
from umadvise.errors import BudgetError, InvalidAdviceError, NativeError, PolicyError, UsageError
from umadvise.recording.builder import TraceBuilder
from umadvise.records.device import DeviceProfile
from umadvise.records.enums import Advice, Role
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Access, EventKind, Trace
from umadvise.simulator import SpanKind, Track
from umadvise.simulator.unified import UnifiedSimulation, simulate_plain, simulate_unified

MIB = 1 << 20
PAGE = 2 * MIB
MS = 1_000_000
SERIAL = Concurrency(1, 1, 1)


@pytest.fixture(scope="module")
def device() -> DeviceProfile:
    return load_device("v100-pcie-16gb")


def sweep(count: int, bytes_: int, *, duration_ns: int = MS, role: Role = Role.PARAMETER) -> Trace:
    """Storages that come from the host, each read by an op of its own."""
    builder = TraceBuilder()
    storages = [builder.allocate(bytes_, role) for _ in range(count)]
    for storage in storages:
        builder.event(EventKind.HOST_WRITE, storage, 0, bytes_)
    for storage in storages:
        builder.begin_op("aten::sum", duration_ns=duration_ns)
        builder.access(storage, Access.READ)
        builder.end_op()
    return builder.finish(target="cuda", source="synthetic")


def copy_ns(device: DeviceProfile, direction: str, records: int = 1) -> float:
    link = device.link.h2d if direction == "h2d" else device.link.d2h
    return records * link.fixed_ns.value + PAGE * 1e9 / link.bytes_per_s.value


# ---- closed forms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("allocator", ["umadvise", "caching"])
def test_what_fits_does_not_fault_and_takes_the_time_of_its_ops(device: DeviceProfile, allocator: Any) -> None:
    trace = sweep(10, 64 * MIB)
    simulation = simulate_unified(trace, device, capacity_bytes="1GiB", allocator=allocator)
    assert simulation.setup.counters.bytes_h2d.user == 0  # what was nowhere is filled in place, by the host's copy
    for step in simulation.steady:
        assert step.counters.fault_groups == 0
        assert step.duration_ns == step.compute_ns == trace.duration_ns
        assert step.memory.resident_peak_bytes == 640 * MIB


def test_a_cyclic_sweep_of_more_than_there_is_misses_everything_every_time(device: DeviceProfile) -> None:
    # Eviction by last service is first in, first out here (uvm-driver facts, check V8).
    simulation = simulate_unified(sweep(20, 32 * MIB), device, capacity_bytes="512MiB")
    for step in simulation.steps:
        assert step.counters.bytes_h2d.coherence == step.counters.bytes_d2h.eviction == 640 * MIB
        assert step.counters.fault_groups == step.counters.evictions == 320
        assert step.gpu.records_d2h == 320  # every eviction is one copy of 2 MiB (check V7)
        assert step.memory.host_bytes == 128 * MIB


def test_a_fault_costs_what_its_services_copies_and_eviction_do(device: DeviceProfile) -> None:
    costs = device.unified_memory.costs
    simulation = simulate_unified(sweep(3, PAGE), device, capacity_bytes=2 * PAGE, concurrency=SERIAL)
    # A serial walk through a block from the host: 6 services and 12 transfers (uvm-driver facts, section 1.3).
    services = 6 * (costs.batch_ns.value + costs.entry_ns.value + costs.block_ns.value + costs.migrate_ns.value)
    fetch = services + copy_ns(device, "h2d", records=12)
    evict = costs.evict_ns.value + copy_ns(device, "d2h")
    for step in simulation.steady:
        assert step.gpu.fault_groups == step.gpu.batches == step.gpu.faults == 3 * 6
        assert step.gpu.records_h2d == 3 * 12
        assert step.fault_ns == pytest.approx(3 * (fetch + evict), abs=12)
        assert step.duration_ns == step.compute_ns + step.fault_ns
        assert step.counters.fault_service_ns == step.fault_ns


def test_blocks_prefetched_at_creation_do_not_fault(device: DeviceProfile) -> None:
    builder = TraceBuilder()
    builder.begin_op("aten::mul", duration_ns=MS)
    made = builder.allocate(4 * PAGE, Role.INTERMEDIATE)
    builder.access(made, Access.WRITE)
    builder.end_op()
    builder.free(made)
    trace = builder.finish(target="cuda", source="synthetic")
    faulting = simulate_unified(trace, device, iterations=1).steps[0]
    prefetched = simulate_unified(trace, device, iterations=1, advice={Role.INTERMEDIATE: "prefetch"}).steps[0]
    assert (faulting.counters.fault_groups, prefetched.counters.fault_groups) == (4, 0)
    assert faulting.counters.first_touches == prefetched.counters.first_touches == 4
    assert faulting.wait_copy_ns == prefetched.fault_ns == 0
    costs = device.unified_memory.costs
    assert prefetched.wait_copy_ns >= 4 * (costs.prefetch_block_ns.value + costs.first_map_ns.value)
    assert prefetched.call_ns == costs.prefetch_call_ns.value


def there_and_back(trace: Trace, *, back: bool) -> Plan:
    """The last storage leaves at the end of each step, and is asked back for at its beginning."""
    ops, storage = len(trace.ops), len(trace.storages) - 1
    actions = [Action(ActionKind.PREFETCH, ops - 1, storage, after=True, argument=1)]
    if back:
        actions.append(Action(ActionKind.PREFETCH, 0, storage))
    return Plan.from_actions(trace, actions, planner="test", budget_bytes=0)


def test_a_prefetch_in_time_hides_its_copies(device: DeviceProfile) -> None:
    trace = sweep(3, 8 * PAGE, duration_ns=20 * MS)
    late = simulate_unified(trace, device, plan=there_and_back(trace, back=False))
    in_time = simulate_unified(trace, device, plan=there_and_back(trace, back=True))
    for step in late.steady:
        assert step.counters.bytes_h2d.coherence == step.counters.bytes_d2h.user == 8 * PAGE
        assert step.fault_ns > 8 * copy_ns(device, "h2d")
    for step in in_time.steady:
        assert step.counters.fault_groups == 0
        assert step.counters.bytes_h2d.user == step.counters.bytes_d2h.user == 8 * PAGE
        assert step.copy_h2d_ns == pytest.approx(8 * copy_ns(device, "h2d"), rel=0.3)  # both directions may be busy
        assert step.duration_ns == step.compute_ns


def test_a_chunk_is_taken_when_the_copy_that_empties_it_has_ended(device: DeviceProfile) -> None:
    """Two storages that fill the device in turn: each comes block by block, behind the other one that leaves."""
    trace, count = sweep(2, 8 * PAGE), 8
    actions = [
        Action(ActionKind.PREFETCH, op, storage, argument=argument)
        for op in (0, 1)
        for storage, argument in ((1 - op, 1), (op, 0))
    ]
    plan = Plan.from_actions(trace, actions, planner="test", budget_bytes=0)
    tight, ample = (
        simulate_unified(trace, device, capacity_bytes=capacity_bytes, plan=plan)
        for capacity_bytes in (count * PAGE, 2 * count * PAGE)
    )
    for step in tight.steady:
        assert step.counters.evictions == step.counters.fault_groups == 0
        # Of each of two: all that leaves, one after the other, and then the last block that comes.
        least_ns = 2 * (count * copy_ns(device, "d2h") + copy_ns(device, "h2d"))
        assert least_ns <= step.duration_ns - step.compute_ns <= 1.3 * least_ns
    for step in ample.steady:  # nothing has to leave for it
        assert step.duration_ns - step.compute_ns < 2 * (count + 0.9) * copy_ns(device, "h2d")


def test_addresses_are_told(device: DeviceProfile) -> None:
    """Large storages begin on a block, those that live at once share no byte, and a dead one's place is told."""
    trace = sweep(3, PAGE + 4096)
    addresses = simulate_unified(trace, device).addresses.astype(np.int64)
    assert len(addresses) == 3 and (addresses % PAGE == 0).all()
    assert (np.diff(np.sort(addresses)) >= PAGE + 4096).all()
    builder = TraceBuilder()
    builder.begin_op("aten::mul", duration_ns=MS)
    for _ in range(2):
        made = builder.allocate(PAGE, Role.INTERMEDIATE)
        builder.free(made)
    builder.end_op()
    first, second = simulate_unified(builder.finish(target="cuda", source="synthetic"), device).addresses.tolist()
    assert first == second > 0


def test_a_discard_takes_the_hosts_time(device: DeviceProfile) -> None:
    trace, costs = sweep(1, 8 * PAGE), device.unified_memory.costs
    discard = [Action(ActionKind.DISCARD, 0, 0, after=True)]
    plan = Plan.from_actions(trace, discard, planner="test", budget_bytes=0)
    step = simulate_unified(trace, device, plan=plan).steps[0]
    assert step.call_ns == costs.prefetch_call_ns.value + 8 * costs.block_ns.value


def test_an_op_waits_for_the_rest_of_a_prefetch(device: DeviceProfile) -> None:
    trace = sweep(1, 8 * PAGE, duration_ns=MS)
    simulation = simulate_unified(trace, device, plan=there_and_back(trace, back=True))
    for step in simulation.steady:
        assert step.wait_copy_ns >= 8 * copy_ns(device, "h2d") - 8 * device.link.h2d.fixed_ns.value
        assert step.duration_ns == step.compute_ns + step.wait_copy_ns
    assert simulation.timeline.busy_ns(Track.COMPUTE, SpanKind.WAIT_COPY) == sum(
        step.wait_copy_ns for step in (simulation.setup, *simulation.steps)
    )


def test_memory_that_is_accessed_over_the_link_stays_where_it_is(device: DeviceProfile) -> None:
    simulation = simulate_unified(
        sweep(20, 32 * MIB), device, capacity_bytes="512MiB", advice={Role.PARAMETER: Advice.ACCESSED_BY}
    )
    bytes_per_s = device.link.h2d.bytes_per_s.value * device.unified_memory.costs.remote_share.value
    for step in simulation.steps:
        assert step.counters.fault_groups == step.counters.evictions == 0
        assert step.remote_bytes == 128 * MIB
        # Four of the storages; their ops take 1 ms each while the link is busy.
        assert step.remote_ns == pytest.approx(128 * MIB * 1e9 / bytes_per_s - 4 * MS, rel=1e-6)


def test_discarded_contents_leave_without_a_copy(device: DeviceProfile) -> None:
    trace = sweep(20, 32 * MIB)
    every = [Action(ActionKind.DISCARD, op, op, after=True) for op in range(20)]
    plan = Plan.from_actions(trace, every, planner="test", budget_bytes=0)
    kept = simulate_unified(trace, device, capacity_bytes="512MiB").steady[-1].counters
    discarded = simulate_unified(trace, device, capacity_bytes="512MiB", plan=plan).steady[-1].counters
    assert (kept.evictions, kept.evictions_dropped) == (320, 0)
    assert discarded.evictions == discarded.bytes_d2h.eviction == 0
    assert discarded.evictions_dropped > 0


def test_the_guard_keeps_a_budget_below_the_capacity(device: DeviceProfile) -> None:
    simulation = simulate_unified(sweep(20, 32 * MIB), device, capacity_bytes="1GiB", budget_bytes="256MiB")
    for step in simulation.steps:
        assert step.memory.resident_peak_bytes <= 256 * MIB + 32 * MIB
        assert step.counters.bytes_d2h.user == 640 * MIB
        assert step.counters.evictions == 0


@pytest.mark.parametrize("allocator", ["umadvise", "caching"])
def test_a_repeated_trace_goes_on_with_what_outlives_it(device: DeviceProfile, allocator: Any) -> None:
    builder = TraceBuilder()
    weight = builder.allocate(4 * PAGE, Role.PARAMETER)
    old = builder.allocate(4 * PAGE, Role.GRADIENT)
    builder.begin_op("aten::zero_")
    builder.end_op()
    builder.free(old)
    builder.begin_op("aten::mm")
    new = builder.allocate(4 * PAGE, Role.GRADIENT)
    builder.access(weight, Access.READ)
    builder.access(new, Access.WRITE)
    builder.end_op()
    builder.set_successor(old, new)
    builder.begin_op("aten::rand")
    left = builder.allocate(PAGE, Role.INTERMEDIATE)  # nobody frees it: it ends with the trace
    builder.access(left, Access.WRITE)
    builder.end_op()
    simulation = simulate_unified(
        builder.finish(target="cuda", source="synthetic"), device, allocator=allocator, iterations=5
    )
    requested = [step.memory.requested_bytes for step in simulation.steps]
    if allocator == "umadvise":
        assert requested == [9 * PAGE] * 5
    assert len(set(requested[1:])) == 1  # nothing is lost from one iteration to the next


# ---- any trace -------------------------------------------------------------------------------------------------------


def check_timeline(simulation: UnifiedSimulation) -> None:
    timeline = simulation.timeline
    for track in Track:
        rows = np.flatnonzero(timeline.track == track)
        rows = rows[np.argsort(timeline.start_ns[rows], kind="stable")]
        ends = timeline.start_ns[rows] + timeline.duration_ns[rows]
        assert (timeline.start_ns[rows[1:]] >= ends[:-1]).all(), f"spans of {track.name} overlap"
    runs = (simulation.setup, *simulation.steps)
    kinds = {
        SpanKind.OP: "compute_ns",
        SpanKind.FAULT: "fault_ns",
        SpanKind.WAIT_COPY: "wait_copy_ns",
        SpanKind.WAIT_ROOM: "wait_room_ns",
        SpanKind.REMOTE: "remote_ns",
    }
    for kind, field in kinds.items():
        assert timeline.busy_ns(Track.COMPUTE, kind) == sum(getattr(step, field) for step in runs)
    for track, field in ((Track.H2D, "copy_h2d_ns"), (Track.D2H, "copy_d2h_ns")):
        assert timeline.busy_ns(track) == sum(getattr(step, field) for step in runs)
    for step, later in pairwise(runs):
        assert later.start_ns == step.start_ns + step.duration_ns
    for step in runs:
        busy = sum(getattr(step, field) for field in kinds.values())
        assert busy <= step.duration_ns


@settings(max_examples=60, deadline=None)
@given(
    trace=traces(),
    advice=st.dictionaries(
        st.sampled_from([Role.PARAMETER, Role.INPUT, Role.INTERMEDIATE]), st.sampled_from(list(Advice))
    ),
    capacity=st.integers(2, 24),
    budget=st.none() | st.integers(2, 12),
    allocator=st.sampled_from(["umadvise", "caching"]),
)
def test_any_trace_can_be_repeated(trace: Trace, advice: Any, capacity: int, budget: int, allocator: Any) -> None:
    def run() -> UnifiedSimulation:
        return simulate_unified(
            trace,
            "v100-pcie-16gb",
            capacity_bytes=capacity * PAGE,
            budget_bytes=None if budget is None else budget * PAGE,
            advice=advice,
            allocator=allocator,
            iterations=3,
        )

    simulation, again = run(), run()
    check_timeline(simulation)
    assert simulation.steps == again.steps
    assert all(step.counters.op_count == len(trace.ops) for step in simulation.steps)
    assert all(step.memory.resident_peak_bytes <= capacity * PAGE for step in simulation.steps)


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_a_device_without_page_faults_is_refused() -> None:
    with pytest.raises(PolicyError, match="cannot page unified memory"):
        simulate_unified(sweep(1, PAGE), "k40")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"capacity_bytes": PAGE}, UsageError, "at least two blocks"),
        ({"capacity_bytes": "2TiB"}, UsageError, "no machine has more"),
        ({"budget_bytes": 1}, UsageError, "below two blocks"),
        ({"host_bytes": PAGE}, BudgetError, "too small"),
        ({"iterations": 0}, UsageError, "0 iterations"),
        ({"allocator": "slab"}, UsageError, "umadvise, caching"),
        ({"advice": {Role.GRADIENT: Advice.NONE}}, UsageError, "PARAMETER, INPUT, INTERMEDIATE"),
        ({"advice": {Role.INPUT: "fast"}}, InvalidAdviceError, "unknown advice 'fast'"),
        ({"concurrency": Concurrency(0, 1, 1)}, UsageError, "touches no pages"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    device: DeviceProfile, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        simulate_unified(sweep(2, 3 * PAGE), device, **arguments)


def test_a_plan_of_swaps_is_refused(device: DeviceProfile) -> None:
    trace = sweep(2, PAGE)
    plan = Plan.from_actions(trace, [Action(ActionKind.SWAP_OUT, 0, 0, after=True)], planner="swapper", budget_bytes=0)
    with pytest.raises(UsageError, match="'swapper' swaps or recomputes"):
        simulate_unified(trace, device, plan=plan)


def corrupted(table: str, column: str, value: int) -> Callable[[Trace], Trace]:
    def change(trace: Trace) -> Trace:
        rows = getattr(trace, table)
        changed = getattr(rows, column).copy()
        changed[-1] = value
        return dataclasses.replace(trace, **{table: dataclasses.replace(rows, **{column: changed})})

    return change


@pytest.mark.parametrize(
    "corrupt",
    [
        corrupted("storages", "bytes", -1),
        corrupted("storages", "bytes", 1 << 62),
        corrupted("storages", "successor", 99),
        corrupted("ops", "duration_ns", 1 << 62),
        corrupted("ops", "duration_ns", -5),
        corrupted("ops", "window_pages", -1),
        corrupted("accesses", "op", 99),
        corrupted("accesses", "storage", 99),
        corrupted("accesses", "storage", -1),
        corrupted("accesses", "offset_bytes", PAGE),
        corrupted("accesses", "bytes", 1 << 62),
        corrupted("events", "kind", 9),
        corrupted("events", "op", 99),
        corrupted("events", "storage", 99),
        corrupted("events", "bytes", 1 << 62),
    ],
)
def test_damaged_traces_are_refused_here_and_in_the_core(
    device: DeviceProfile, corrupt: Callable[[Trace], Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = corrupt(sweep(2, PAGE))
    with pytest.raises(UsageError):
        simulate_unified(trace, device)
    monkeypatch.setattr("umadvise.simulator.unified._check", lambda *_: None)
    with pytest.raises((UsageError, BudgetError, NativeError)):
        simulate_unified(trace, device)


def test_no_simulation_leaves_a_device_behind(device: DeviceProfile) -> None:
    for _ in range(100):  # more than can be open at once, every other one failing
        simulate_unified(sweep(1, PAGE), device, iterations=1)
        with pytest.raises(BudgetError):
            simulate_unified(sweep(1, 4 * PAGE), device, iterations=1, host_bytes=PAGE)
    assert _native.string(0) == ""


# ---- plain memory ----------------------------------------------------------------------------------------------------


def test_plain_memory_holds_what_it_has_room_for(device: DeviceProfile) -> None:
    trace = sweep(10, 64 * MIB)
    simulation = simulate_plain(trace, device, capacity_bytes=640 * MIB)
    assert simulation.steps[-1].memory.reserved_peak_bytes == 640 * MIB
    assert simulation.counters[-1].fault_groups == 0
    with pytest.raises(BudgetError, match="out of device memory: tried to allocate 64 MiB"):
        simulate_plain(trace, device, capacity_bytes=638 * MIB)


def test_plain_memory_needs_no_page_faults() -> None:
    kepler = load_device("k40")
    assert simulate_plain(sweep(2, 64 * MIB), kepler, capacity_bytes=128 * MIB).steps[-1].compute_ns == 2 * MS


def test_what_runs_beside_the_ops_is_counted_alike_and_waited_for_less() -> None:
    """The guard's budget on a larger device sends pages away: in the ops' order they wait for it, beside them not."""
    trace = sweep(20, 32 * MIB)
    in_order, beside = (
        simulate_unified(trace, "v100-16gb", capacity_bytes="2GiB", budget_bytes="256MiB", beside=each).steps[-1]
        for each in (False, True)
    )
    for name in ("fault_groups", "bytes_h2d", "bytes_d2h"):
        assert getattr(in_order.counters, name) == getattr(beside.counters, name)
    assert in_order.counters.bytes_d2h is not None
    assert in_order.counters.bytes_d2h.user > 0
    assert beside.duration_ns < in_order.duration_ns
    assert beside.wait_copy_ns < in_order.wait_copy_ns
