"""The engine on a simulated GPU; what the GPU itself does is tested in csrc/tests/devices/simulated/gpu.cpp."""

from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import pytest
from networks import NETWORKS
from random_traces import random_step
from traces import layers

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.errors import NativeError
from umadvise.recording.dry import recorder as dry
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.timeline import SpanKind, Track
from umadvise.records.trace import Trace
from umadvise.simulator.gpu import CALL_COSTS, CallCost, GpuSimulation, simulate_gpu

MIB = 1 << 20
COUNT, KEPT = 10, 4
BYTES = 40 * MIB
CHUNK_BYTES = 4 * MIB


@pytest.fixture(scope="module")
def device() -> DeviceProfile:
    return load_device("h100-sxm-80gb")


@pytest.fixture(scope="module")
def trace() -> Trace:
    return layers(COUNT, bytes_=BYTES, op_ns=2 * 10**6)


@pytest.fixture(scope="module")
def plan(trace: Trace) -> Plan:
    """All maps but the last leave behind their op, and come back two ops ahead."""
    actions = []
    for layer in range(COUNT - KEPT):
        actions.append(Action(ActionKind.SWAP_OUT, layer, layer, after=True))
        actions.append(Action(ActionKind.SWAP_IN, 2 * COUNT - 1 - layer - 2, layer))
    return Plan.from_actions(trace, actions, planner="test", budget_bytes=(KEPT + 3) * BYTES)


def simulated(trace: Trace, device: DeviceProfile, plan: Plan | None, maps: int, factor: float = 1.0) -> GpuSimulation:
    budget_bytes = maps * BYTES + CHUNK_BYTES
    return simulate_gpu(trace, device, plan, budget_bytes=budget_bytes, chunk_bytes=CHUNK_BYTES, call_factor=factor)


def test_a_step_that_fits_takes_the_time_of_its_kernels(trace: Trace, device: DeviceProfile) -> None:
    run = simulated(trace, device, None, COUNT)
    assert run.mean_step_ns == trace.duration_ns
    assert run.host_waits == 0 and not {"cuMemMap", "cuMemcpyHtoDAsync"} & run.calls.keys()
    assert run.steps[-1].swaps.used_peak_bytes == COUNT * BYTES


def test_a_plan_is_followed_from_the_second_step_on(trace: Trace, device: DeviceProfile, plan: Plan) -> None:
    run = simulated(trace, device, plan, KEPT + 3)
    assert [step.swaps.programs_followed for step in run.steps[1:]] == [1] * (len(run.steps) - 1)
    step, count = run.steps[-1], len(run.steady)
    swaps = step.swaps
    assert swaps.swap_outs + swaps.clean_drops + swaps.cancelled >= COUNT - KEPT
    assert (swaps.on_demand_swap_ins, swaps.evictions, swaps.skipped_actions) == (0, 0, 0)
    link = device.link
    for direction, way, copied in ((0, link.h2d, swaps.swap_in_bytes), (1, link.d2h, swaps.swap_out_bytes)):
        assert step.copy_ns[direction] >= copied / way.bytes_per_s.value * 1e9
    assert run.calls["cuMemcpyHtoDAsync"].calls == count * swaps.swap_ins


@pytest.mark.parametrize("chunk_mib, iterations", [(8, 24), (2, 4)])
def test_a_steady_step_maps_nothing(device: DeviceProfile, chunk_mib: int, iterations: int) -> None:
    """On an H100 the small storages of BERT-Large, which share chunks of 8 MiB, made each step unlike the one before,
    and it mapped all of its memory in each: 4 s (docs/gpu.md). Before there is a layout, storages are where they were.
    """
    step = dry.record(partial(NETWORKS["gpt2"], 8, layers=24, width=1024, heads=16), device=device)
    budget_bytes = step.peak_bytes // 2
    plan = planners.run("belady", step, device, int(0.9 * budget_bytes))
    chunk_bytes = chunk_mib * MIB
    run = simulate_gpu(
        step, device, plan, budget_bytes=budget_bytes, chunk_bytes=chunk_bytes, iterations=iterations, jitter=0.2
    )
    assert run.steps[-1].swaps.swap_ins > 0 and not {"cuMemMap", "cuMemUnmap"} & run.calls.keys()


def test_jitter_makes_each_step_another_one_and_a_run_the_same(trace: Trace, device: DeviceProfile) -> None:
    budget_bytes = (COUNT + 1) * BYTES
    runs = [simulate_gpu(trace, device, None, budget_bytes=budget_bytes, jitter=0.5) for _ in range(2)]
    durations = [step.duration_ns for step in runs[0].steps]
    assert durations == [step.duration_ns for step in runs[1].steps]
    assert len(set(durations)) == len(durations)
    assert all(trace.duration_ns < duration < 1.5 * trace.duration_ns for duration in durations[1:])


def test_calls_take_the_host_s_time_by_the_table(trace: Trace, device: DeviceProfile, plan: Plan) -> None:
    for factor in (0.5, 1.0, 2.0):
        run = simulated(trace, device, plan, KEPT + 3, factor)
        for name, call in run.calls.items():
            assert call.ns >= call.calls * CALL_COSTS[name].times(factor)[0]
        assert sum(step.call_ns for step in run.steady) == sum(call.ns for call in run.calls.values())
    assert all(step.call_ns == 0 for step in simulated(trace, device, plan, KEPT + 3, 0.0).steps)


@pytest.mark.parametrize("seed", range(8))
def test_a_run_repeats_exactly_and_its_times_add_up(seed: int, device: DeviceProfile) -> None:
    trace = random_step(Random(seed))
    least, most = int(trace.working_set_bytes().max()), trace.peak_bytes
    budget_bytes = most if seed == 0 else least * 2 + (most - least) // 2

    def run() -> GpuSimulation:
        return simulate_gpu(trace, device, None, budget_bytes=budget_bytes + 32 * MIB, chunk_bytes=2 * MIB)

    once, again = run(), run()
    assert once.steps == again.steps and once.calls == again.calls
    for step in once.steps:
        assert step.duration_ns == step.compute_ns + step.wait_ns + step.host_late_ns
        assert step.compute_ns == trace.duration_ns
        assert step.swaps.used_peak_bytes <= step.swaps.budget_bytes


def test_no_copies_of_one_engine_and_no_ops_overlap(trace: Trace, device: DeviceProfile, plan: Plan) -> None:
    timeline = simulated(trace, device, plan, KEPT + 3).timeline
    for track in (Track.COMPUTE, Track.H2D, Track.D2H):
        rows = timeline.track == track
        order = np.argsort(timeline.start_ns[rows], kind="stable")
        starts = timeline.start_ns[rows][order]
        ends = (timeline.start_ns + timeline.duration_ns)[rows][order]
        assert len(starts) and (starts[1:] >= ends[:-1]).all()
    copied = timeline.bytes[timeline.kind == SpanKind.COPY]
    assert copied.min() >= CHUNK_BYTES


@pytest.mark.parametrize("seed", range(4))
def test_on_the_emulated_device_the_host_waits_with_the_ops(seed: int, device: DeviceProfile) -> None:
    trace = random_step(Random(seed))
    budget_bytes = int(trace.working_set_bytes().max()) * 2 + 32 * MIB

    def run(*, until_steady: bool) -> GpuSimulation:
        return simulate_gpu(
            trace,
            device,
            None,
            budget_bytes=budget_bytes,
            chunk_bytes=2 * MIB,
            synchronous=True,
            until_steady=until_steady,
        )

    whole, short = run(until_steady=False), run(until_steady=True)
    assert short.steps == whole.steps[: len(short.steps)]
    for step in whole.steps:
        assert step.duration_ns == step.compute_ns + step.wait_ns
        assert step.call_ns == step.host_late_ns == 0
        assert step.compute_ns == trace.duration_ns
        assert step.swaps.wait_copy_ns + step.swaps.wait_room_ns <= step.wait_ns


def test_an_op_that_finds_no_room_is_named(trace: Trace, device: DeviceProfile) -> None:
    with pytest.raises(NativeError, match=r"at op 0 of the trace: .*no room"):
        simulate_gpu(trace, device, None, budget_bytes=BYTES // 2, chunk_bytes=CHUNK_BYTES)


def test_what_cannot_be_is_refused(trace: Trace, device: DeviceProfile, plan: Plan) -> None:
    with pytest.raises(NativeError, match="at least three iterations"):
        simulate_gpu(trace, device, None, budget_bytes=COUNT * BYTES, iterations=2)
    for _ in range(70):  # there may be 64 simulated devices at a time
        with pytest.raises(NativeError, match="chunks of 1000 bytes"):
            simulate_gpu(trace, device, None, budget_bytes=COUNT * BYTES, chunk_bytes=1000)
    other = replace(plan, actions=replace(plan.actions, op=plan.actions.op + 1000))
    with pytest.raises(NativeError, match="the trace has no such op"):
        simulate_gpu(trace, device, other, budget_bytes=COUNT * BYTES)


def test_costs_are_of_functions_that_are_called(
    trace: Trace, device: DeviceProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("umadvise.simulator.gpu.CALL_COSTS", {"cuLaunchKernel": CallCost(4_000, "none")})
    with pytest.raises(NativeError, match="cuLaunchKernel: no function of the driver"):
        simulate_gpu(trace, device, None, budget_bytes=COUNT * BYTES)
