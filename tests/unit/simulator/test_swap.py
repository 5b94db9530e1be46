"""The simulator of explicit swapping from Python; what the executor does is tested in csrc/tests/replay/swap_*.cpp."""

import pickle

import numpy as np
import pytest

from umadvise.devices.catalogue import load_device
from umadvise.errors import NoRoomError, UsageError
from umadvise.recording.builder import TraceBuilder
from umadvise.records.device import DeviceProfile
from umadvise.records.enums import Phase, Role
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Access, Trace
from umadvise.simulator import SpanKind, Track, simulate_resident, simulate_swap
from umadvise.simulator.swap import CHUNK_BYTES

MIB = 1 << 20
GIB = 1 << 30
MS = 1_000_000


@pytest.fixture(scope="module")
def device() -> DeviceProfile:
    return load_device("v100-16gb")


def forward_backward(layers: int, bytes_: int) -> Trace:
    """Each layer makes an activation of `bytes_`; backward uses them in the opposite order and frees them."""
    builder = TraceBuilder()
    activations = []
    for layer in range(layers):
        builder.begin_op("aten::mm", phase=Phase.FORWARD, module=f"layers.{layer}", duration_ns=100 * MS)
        if activations:
            builder.access(activations[-1], Access.READ)
        activations.append(builder.allocate(bytes_, Role.INTERMEDIATE))
        builder.access(activations[-1], Access.WRITE | Access.WHOLE)
        builder.end_op()
    for layer, activation in reversed(list(enumerate(activations))):
        builder.begin_op("aten::mm", phase=Phase.BACKWARD, module=f"layers.{layer}", duration_ns=200 * MS)
        builder.access(activation, Access.READ)
        builder.end_op()
        builder.free(activation)
    return builder.finish(target="cuda", source="synthetic")


def swaps(trace: Trace, layers: int, keep: int, budget_bytes: int) -> Plan:
    """All activations but the last `keep` leave behind their last forward op, and come back one op ahead."""
    actions = []
    for layer in range(layers - keep):
        actions.append(Action(ActionKind.SWAP_OUT, layer + 1, layer, after=True))
        actions.append(Action(ActionKind.SWAP_IN, 2 * layers - 1 - layer - 1, layer))
    return Plan.from_actions(trace, actions, planner="test", budget_bytes=budget_bytes)


def test_a_step_that_fits_takes_the_time_of_its_ops(device: DeviceProfile) -> None:
    trace = forward_backward(4, 100 * MIB)
    residence = simulate_resident(trace, device, allocator="exact", spans=True)
    assert residence.fits
    assert residence.needed_bytes == trace.peak_bytes == 400 * MIB
    assert residence.simulation.step_ns == trace.duration_ns
    timeline = residence.simulation.timeline
    assert timeline is not None
    assert timeline.busy_ns(Track.COMPUTE, SpanKind.OP) == trace.duration_ns
    assert timeline.op.tolist() == list(range(8))


def test_a_step_that_does_not_fit_says_what_it_needs(device: DeviceProfile) -> None:
    trace = forward_backward(20, GIB)
    residence = simulate_resident(trace, device)
    assert not residence.fits
    assert residence.needed_bytes == 20 * GIB
    assert residence.simulation.timeline is None


def test_swapping_makes_it_fit_and_the_timeline_accounts_for_every_byte(device: DeviceProfile) -> None:
    trace = forward_backward(20, GIB)
    made = simulate_swap(trace, device, swaps(trace, 20, 2, 8 * GIB))
    result, timeline = made.result, made.timeline
    assert result.peak_reserved_bytes <= 8 * GIB
    assert result.swap_in_bytes == result.swap_out_bytes == 18 * GIB
    assert timeline is not None
    assert timeline.moved_bytes(Track.H2D) == timeline.moved_bytes(Track.D2H) == 18 * GIB
    assert made.step_ns == trace.duration_ns  # a copy of 1 GiB takes 90 ms: less than any op


def test_what_the_ops_cannot_hide_is_a_stall_with_a_cause(device: DeviceProfile) -> None:
    trace = forward_backward(20, 4 * GIB)
    made = simulate_swap(trace, device, swaps(trace, 20, 1, 12 * GIB), eviction="belady")
    timeline = made.timeline
    assert timeline is not None
    stalls_ns = timeline.busy_ns(Track.COMPUTE, SpanKind.WAIT_COPY) + timeline.busy_ns(
        Track.COMPUTE, SpanKind.WAIT_ROOM
    )
    assert stalls_ns > 0
    assert made.step_ns == trace.duration_ns + stalls_ns
    assert made.step_ns > made.result.swap_in_bytes / device.bandwidth_h2d * 1e9  # nothing beats the link


def test_copies_take_what_the_device_file_says(device: DeviceProfile) -> None:
    trace = forward_backward(3, 64 * MIB)
    plan = swaps(trace, 3, 2, GIB)
    timeline = simulate_swap(trace, device, plan).timeline
    assert timeline is not None
    for track, direction in ((Track.D2H, "d2h"), (Track.H2D, "h2d")):
        (row,) = np.flatnonzero(timeline.track == track)
        assert abs(int(timeline.duration_ns[row]) - device.transfer_ns(direction, 64 * MIB)) <= 2  # type: ignore[arg-type]


def test_evictions_on_demand_run_without_a_plan(device: DeviceProfile) -> None:
    trace = forward_backward(20, GIB)
    for eviction in ("belady", "lru"):
        made = simulate_swap(trace, device, None, budget_bytes=3 * GIB, eviction=eviction)  # type: ignore[arg-type]
        assert made.result.on_demand_swap_ins == made.result.swap_ins > 0
        assert made.result.evictions >= made.result.swap_outs > 0
        assert made.result.peak_live_bytes <= 3 * GIB


def test_a_budget_that_would_do_counts_what_the_allocator_rounds(device: DeviceProfile) -> None:
    trace = forward_backward(4, MIB)
    with pytest.raises(NoRoomError) as caught:
        simulate_swap(trace, device, None, budget_bytes=16 * MIB, allocator="va_chunks", eviction="belady")
    assert caught.value.budget_needed_bytes == CHUNK_BYTES
    simulate_swap(trace, device, None, budget_bytes=CHUNK_BYTES, allocator="va_chunks", eviction="belady")


def test_times_that_no_clock_holds_are_refused(device: DeviceProfile) -> None:
    builder = TraceBuilder()
    for _ in range(2):
        builder.begin_op("aten::mm", duration_ns=1 << 62)
        builder.end_op()
    with pytest.raises(UsageError, match="a hundred years"):
        simulate_swap(builder.finish(target="cuda", source="synthetic"), device, None)


def test_no_room_names_the_op_its_working_set_and_a_budget_that_would_do(device: DeviceProfile) -> None:
    trace = forward_backward(4, GIB)
    with pytest.raises(NoRoomError, match=r"op 2: .*aten::mm of layers\.2, forward") as caught:
        simulate_swap(trace, device, None, budget_bytes=2 * GIB)
    assert (caught.value.op, caught.value.working_set_bytes, caught.value.budget_needed_bytes) == (2, 2 * GIB, 3 * GIB)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), copied.budget_needed_bytes) == (str(caught.value), 3 * GIB)
    simulate_swap(trace, device, None, budget_bytes=2 * GIB, eviction="belady")  # its working set is enough


def test_fragmentation_is_what_the_allocator_takes_beyond_what_is_live(device: DeviceProfile) -> None:
    trace = forward_backward(4, 11 * MIB)
    taken = {"exact": 44, "best_fit": 44, "caching": 48, "va_chunks": 80}  # MiB: none, none, 12 each, 20 each
    for allocator, expected in taken.items():
        result = simulate_swap(trace, device, None, allocator=allocator).result  # type: ignore[arg-type]
        assert result.peak_reserved_bytes == expected * MIB
        assert result.fragmentation_bytes == (expected - 44) * MIB
        assert result.peak_live_bytes == 44 * MIB


def test_memory_is_told_op_by_op(device: DeviceProfile) -> None:
    trace = forward_backward(3, MIB)
    made = simulate_swap(trace, device, None)
    assert (made.live_bytes // MIB).tolist() == [1, 2, 3, 3, 2, 1]
    assert (made.reserved_bytes == made.live_bytes).all()
    synchronous = simulate_swap(trace, device, None, op_sync_ns=33_000)
    assert synchronous.step_ns == trace.duration_ns + 6 * 33_000


def test_wrong_options_and_plans_are_refused(device: DeviceProfile) -> None:
    trace = forward_backward(4, MIB)
    with pytest.raises(UsageError, match="unknown allocator 'buddy': expected one of exact"):
        simulate_swap(trace, device, None, allocator="buddy")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unknown eviction"):
        simulate_swap(trace, device, None, eviction="fifo")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="another trace"):
        simulate_swap(forward_backward(3, MIB), device, swaps(trace, 4, 1, GIB))
    with pytest.raises(UsageError, match="multiple of 512"):
        simulate_swap(trace, device, None, chunk_bytes=1000)
    advice = Plan.from_actions(trace, [Action(ActionKind.PREFETCH, 0, 0, after=True)], planner="test", budget_bytes=GIB)
    with pytest.raises(UsageError, match="for unified memory"):
        simulate_swap(trace, device, advice)


def test_a_device_may_be_named_and_iterations_are_counted() -> None:
    trace = forward_backward(3, 1 << 20)
    assert simulate_resident(trace, "v100-16gb").fits
    with pytest.raises(UsageError, match="-1 iterations: expected 1 to"):
        simulate_swap(trace, "v100-16gb", None, iterations=-1)
