"""Simulates unified memory: replays a trace through the allocator, the guard and the page rules of a real run.

The engine is the one that runs on the emulated device and on CUDA; only the driver below it has no bytes
(csrc/replay/unified_*). So the counters are those that ordered counting observes, exactly. Times follow from the
device's profile and are as uncertain as that says.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from umadvise import _native
from umadvise._native.abi import Concurrency, Memory, Service, Status
from umadvise._native.structures import Structure, layout, read, to_c
from umadvise.devices.catalogue import load_device
from umadvise.devices.link import native_link, page_costs
from umadvise.devices.rungs import ARENA_ROLES
from umadvise.errors import BudgetError, NativeError, UsageError
from umadvise.records.advice import parse_advice
from umadvise.records.counters import Counters, MemoryStats
from umadvise.records.device import DeviceProfile
from umadvise.records.enums import Advice, Role
from umadvise.records.plan import OF_UNIFIED_MEMORY, Plan
from umadvise.records.plan import check as check_plan
from umadvise.records.timeline import Timeline
from umadvise.records.trace import Trace
from umadvise.records.trace_check import check as check_trace
from umadvise.records.units import parse_bytes

WARM_UP = 2
"""Iterations after which it no longer matters what was where at the beginning. Eviction in order of service is chaotic,
so averages go over several iterations after these."""

Allocator = Literal["umadvise", "caching"]

_MOST_ITERATIONS = 10_000


@dataclass(frozen=True, slots=True)
class GpuCounters:
    """What a profiler of the device would count (CUPTI, nsys).

    There a kernel faults page by page, in several services a block, and the density prefetcher brings what is near in
    transfers of their own; how many depends on the kernel. In the counters of a step a block is one fault and one
    transfer.

    Attributes:
        fault_groups: number of services of a 2 MiB block in one fault batch.
        batches: number of fault batches.
        faults: number of entries in the fault buffer.
        records_h2d: number of transfers to the device.
        records_d2h: number of transfers to the host.
    """

    fault_groups: int
    batches: int
    faults: int
    records_h2d: int
    records_d2h: int


@dataclass(frozen=True, slots=True)
class UnifiedStep:
    """One iteration, or what lies before the trace's first op.

    Attributes:
        counters: what the device counts, in blocks of 2 MiB: the record that the emulated device gives.
        memory: state of memory when the iteration ends, with the iteration's own peaks.
        gpu: counts of the same at the granularity of the device's pages.
        start_ns: beginning of the iteration on the simulation's clock.
        duration_ns: time until the compute track has ended its last op.
        compute_ns: total nanoseconds of the ops.
        fault_ns: time that the compute track stood still while faults were served.
        wait_copy_ns: time that it waited for copies: prefetches, and copies from and to the host.
        wait_room_ns: time that it waited for evictions of a prefetch.
        remote_ns: time by which accesses over the link took longer than the ops that made them.
        call_ns: time of the host thread, which runs ahead of the device, in driver calls.
        copy_h2d_ns: time of copies to the device, by faults and prefetches.
        copy_d2h_ns: time of copies to the host.
        remote_bytes: number of bytes accessed over the link.
    """

    counters: Counters
    memory: MemoryStats
    gpu: GpuCounters
    start_ns: int
    duration_ns: int
    compute_ns: int
    fault_ns: int
    wait_copy_ns: int
    wait_room_ns: int
    remote_ns: int
    call_ns: int
    copy_h2d_ns: int
    copy_d2h_ns: int
    remote_bytes: int


@dataclass(frozen=True, eq=False)
class UnifiedSimulation:
    """A trace's iterations on a simulated device.

    Attributes:
        setup: what lies before the first op of the first iteration.
        steps: iterations in order, the warm-up included.
        timeline: what happened when, in all iterations.
        addresses: address of each of the trace's storages in the last iteration; 0 where it had no memory.
    """

    setup: UnifiedStep
    steps: tuple[UnifiedStep, ...]
    timeline: Timeline
    addresses: NDArray[np.uint64]

    @property
    def step_ns(self) -> tuple[int, ...]:
        """Duration of each iteration."""
        return tuple(step.duration_ns for step in self.steps)

    @property
    def counters(self) -> tuple[Counters, ...]:
        """Counters of each iteration."""
        return tuple(step.counters for step in self.steps)

    @property
    def steady(self) -> tuple[UnifiedStep, ...]:
        """The iterations after the warm-up; the last one where there are no more."""
        return self.steps[WARM_UP:] or self.steps[-1:]

    @property
    def mean_step_ns(self) -> float:
        """Mean duration of the iterations after the warm-up."""
        return float(np.mean([step.duration_ns for step in self.steady]))


def simulate_unified(
    trace: Trace,
    device: str | os.PathLike[str] | DeviceProfile,
    *,
    capacity_bytes: int | str | None = None,
    budget_bytes: int | str | None = None,
    host_bytes: int | str | None = None,
    advice: Mapping[Role, Advice | str] | None = None,
    plan: Plan | None = None,
    iterations: int = WARM_UP + 5,
    service: Service = Service.GUARD,
    concurrency: Concurrency | None = None,
    allocator: Allocator = "umadvise",
    beside: bool = False,
) -> UnifiedSimulation:
    """Repeats a trace under unified memory with advice by role.

    Args:
        trace: one or more steps. A step that is repeated goes on with what outlives it, see `Storages.successor`.
        device: a name of the catalogue, a profile's file, or a profile.
        capacity_bytes: bytes of device memory; None takes what the profile leaves to programs.
        budget_bytes: bytes that the guard lets managed memory keep on the device; None is no budget: the driver evicts
            when the memory is full.
        host_bytes: most bytes that managed memory may take on the host; None is no limit.
        advice: advice for memory of the roles PARAMETER, INPUT and INTERMEDIATE; none for a role that is left out. The
            optimizer's state goes with the parameters when it is there before the trace begins, else with the
            intermediates, as in a session.
        plan: plan of advice, prefetches and discards, each before or after an op; None for none.
        iterations: number of repetitions of the trace, the warm-up of `WARM_UP` included.
        service: what touches memory: the guard before each op, or, of a raw run's trace, the recorded services.
        concurrency: how kernels walk through memory, for ops that the trace does not say it of; None takes the
            device's.
        allocator: what gives managed memory out: "umadvise" as a session does, where an arena that is empty goes back;
            "caching" is torch's allocator with managed segments, as in programs that only replace its cudaMalloc: what
            is freed there stays, is evicted with a copy, and comes back with one.
        beside: whether no op waits for a prefetch of which it uses nothing, as on the emulated device in virtual time;
            else those of the guard and of new memory are in the ops' order, as in a stream.

    Raises:
        PolicyError: the device cannot page unified memory.
        UsageError: an argument is wrong, or the trace or plan is none.
        BudgetError: the host's memory does not hold what has to be there.
    """
    profile = load_device(device)
    profile.require_unified_memory()
    return _simulate(
        trace,
        profile,
        _placements(trace, advice or {}),
        capacity_bytes=profile.usable_bytes if capacity_bytes is None else parse_bytes(capacity_bytes),
        budget_bytes=0 if budget_bytes is None else parse_bytes(budget_bytes),
        host_bytes=0 if host_bytes is None else parse_bytes(host_bytes),
        plan=plan,
        iterations=iterations,
        service=service,
        concurrency=concurrency,
        allocator=allocator,
        beside=beside,
    )


def simulate_plain(
    trace: Trace, device: str | os.PathLike[str] | DeviceProfile, *, capacity_bytes: int, iterations: int = 1
) -> UnifiedSimulation:
    """Runs a trace in plain device memory, as sessions on the rung `resident` have it: everything must fit.

    Memory comes from the heaps of a session, one for each role, and not from torch's caching allocator.

    Args:
        trace: steps from a training's first one on: what lies where, and so what fits, depends on them.
        device: a name of the catalogue, a profile's file, or a profile.
        capacity_bytes: bytes of device memory.
        iterations: number of repetitions of the trace.

    Raises:
        BudgetError: it does not fit.
        UsageError: the trace is none.
    """
    placements = _placements(trace, {})
    placements["memory"] = Memory.DEVICE
    return _simulate(trace, load_device(device), placements, capacity_bytes=capacity_bytes, iterations=iterations)


def _simulate(
    trace: Trace,
    profile: DeviceProfile,
    placements: NDArray[np.void],
    *,
    capacity_bytes: int,
    budget_bytes: int = 0,
    host_bytes: int = 0,
    plan: Plan | None = None,
    iterations: int,
    service: Service = Service.GUARD,
    concurrency: Concurrency | None = None,
    allocator: Allocator = "umadvise",
    beside: bool = False,
) -> UnifiedSimulation:
    if not 1 <= iterations <= _MOST_ITERATIONS:
        raise UsageError(f"{iterations} iterations: expected 1 to {_MOST_ITERATIONS}")
    if allocator not in get_args(Allocator):
        raise UsageError(f"unknown allocator {allocator!r}: expected one of {', '.join(get_args(Allocator))}")
    _check(trace, plan)
    costs = profile.unified_memory.costs
    options: dict[str, Any] = {
        "capacity_bytes": capacity_bytes,
        "host_bytes": host_bytes,
        "budget_bytes": budget_bytes,
        "placements": placements.ctypes.data,
        "link": native_link(profile),
        "costs": page_costs(profile),
        "launch_ns": profile.launch_ns.value,
        "concurrency": to_c(
            concurrency or Concurrency(costs.window_pages.value, costs.run_pages.value, costs.faults_per_service.value)
        ),
        "service": service,
        "iterations": iterations,
        "caching": allocator == "caching",
        "beside": beside,
    }
    try:
        simulation = _native.simulate_unified(trace, plan.actions if plan is not None else None, **options)
    except NativeError as error:
        raise _in_words(error) from error
    setup, *steps = map(_step, simulation.steps)
    peak_bytes = max(step.memory.resident_peak_bytes or 0 for step in (setup, *steps))
    timeline = Timeline.from_spans(simulation.spans, peak_bytes)
    return UnifiedSimulation(setup, tuple(steps), timeline, simulation.addresses)


def _check(trace: Trace, plan: Plan | None) -> None:
    try:
        check_trace(trace)
        if plan is not None:
            check_plan(plan, trace)
    except ValueError as error:
        raise UsageError(f"cannot simulate this: {error}") from error
    if plan is not None and not np.isin(plan.actions.kind, OF_UNIFIED_MEMORY).all():
        raise UsageError(
            f"the plan of {plan.planner!r} swaps or recomputes: expected advice, prefetches and discards; "
            "simulate it as explicit swapping"
        )


def _in_words(error: NativeError) -> Exception:
    if error.code == Status.INVALID_ARGUMENT:
        return UsageError(f"cannot simulate this: {error.message}")
    if error.code in (Status.OUT_OF_DEVICE_MEMORY, Status.OUT_OF_HOST_MEMORY):
        return BudgetError(f"the simulated machine is too small: {error.message}")
    return error


def arenas(trace: Trace) -> NDArray[np.uint32]:
    """The role, one of `ARENA_ROLES`, by which a session would choose each storage's memory."""
    arena = np.full(len(trace.storages), Role.INTERMEDIATE, np.uint32)
    role = trace.storages.role
    arena[role == Role.INPUT] = Role.INPUT
    arena[(role == Role.PARAMETER) | ((role == Role.OPTIMIZER_STATE) & (trace.births < 0))] = Role.PARAMETER
    return arena


def _placements(trace: Trace, advice: Mapping[Role, Advice | str]) -> NDArray[np.void]:
    """um_placement of each storage: which arena a session would put it into."""
    unknown = [role for role in advice if role not in ARENA_ROLES]
    if unknown:
        raise UsageError(
            f"advice for {unknown[0]!r}: expected one of the roles that choose where memory comes from, "
            f"{', '.join(role.name for role in ARENA_ROLES)}"
        )
    arena = arenas(trace)
    by_arena = np.array([parse_advice(advice.get(each, Advice.NONE)) for each in ARENA_ROLES], np.uint32)
    placements = np.zeros(len(trace.storages), layout("um_placement"))
    placements["memory"] = Memory.MANAGED
    placements["role"] = arena
    placements["advice"] = by_arena[arena]
    return placements


def _step(native: Structure) -> UnifiedStep:
    records_h2d, records_d2h = native.gpu_records
    copy_h2d_ns, copy_d2h_ns = native.copy_ns
    gpu = GpuCounters(native.gpu_fault_groups, native.gpu_batches, native.gpu_faults, records_h2d, records_d2h)
    return read(UnifiedStep, native, gpu=gpu, copy_h2d_ns=copy_h2d_ns, copy_d2h_ns=copy_d2h_ns)
