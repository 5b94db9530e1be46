"""Simulations in the core."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umadvise._native.abi import CallCount, GpuStep, Status, SwapResult
from umadvise._native.columns import plan_columns, trace_columns
from umadvise._native.library import core_library, intern
from umadvise._native.structures import each, layout, make, read, rows, structure
from umadvise.errors import NativeError


@dataclass(frozen=True, slots=True)
class SimulatedRows:
    """What a simulation gave (um_simulation).

    Attributes:
        steps: a um_simulated_step structure for each iteration.
        spans: array of um_span structures: what the simulated device did, and when.
        addresses: simulated address of each storage of the trace.
    """

    steps: list[ctypes.Structure]
    spans: NDArray[np.void]
    addresses: NDArray[np.uint64]


def _taken(handle: ctypes.c_void_p) -> SimulatedRows:
    """Reads a simulation out of the core, and destroys it."""
    core = core_library()
    try:
        return SimulatedRows(
            each("um_simulated_step", partial(core.um_simulation_steps, handle)),
            rows(layout("um_span"), partial(core.um_simulation_spans, handle)),
            rows(np.dtype(np.uint64), partial(core.um_simulation_addresses, handle)),
        )
    finally:
        core.um_simulation_destroy(handle)


def simulate_unified(trace: Any, actions: Any, **options: Any) -> SimulatedRows:
    """Runs a trace under unified memory: see um_simulate_unified.

    Args:
        trace: the step to simulate, a `umadvise.records.trace.Trace`.
        actions: the plan's actions, a `umadvise.records.plan.Actions`; None is no plan.
        options: the fields of um_unified_options.

    Raises:
        NativeError: trace, plan or options contradict themselves, or memory is out; the message says where.
    """
    handle = ctypes.c_void_p()
    given = [trace_columns(trace), plan_columns(actions), make("um_unified_options", **options), handle]
    core_library().um_simulate_unified(*map(_reference, given))
    return _taken(handle)


def simulate_swap(
    trace: Any, actions: Any, link: ctypes.Structure, **options: Any
) -> tuple[SwapResult, SimulatedRows | NativeError]:
    """Executes a trace with explicit swaps: see um_simulate_swap.

    Args:
        trace: the step to simulate, a `umadvise.records.trace.Trace`.
        actions: the plan's actions, a `umadvise.records.plan.Actions`; None is no plan.
        link: the um_link structure: fixed time and bandwidth of copies in each direction.
        options: the fields of um_swap_options.

    Returns:
        The result, and the simulation; where something found no room, its error instead.

    Raises:
        NativeError: trace, plan, link or options contradict themselves.
    """
    result, handle = structure("um_swap_result")(), ctypes.c_void_p()
    given = [trace_columns(trace), plan_columns(actions), link, make("um_swap_options", **options), result, handle]
    try:
        core_library().um_simulate_swap(*map(_reference, given))
    except NativeError as error:
        if error.code != Status.OUT_OF_DEVICE_MEMORY:
            raise
        return read(SwapResult, result), error
    return read(SwapResult, result), _taken(handle)


@dataclass(frozen=True, slots=True)
class GpuRows:
    """What a simulation of a GPU gave.

    Attributes:
        steps: each iteration; the plan applies from the second on.
        calls: calls of the driver in all iterations but those of warm-up, by function.
        spans: array of um_span structures: what the simulated device did, and when.
    """

    steps: list[GpuStep]
    calls: list[CallCount]
    spans: NDArray[np.void]


def simulate_gpu(trace: Any, actions: Any, call_costs: Mapping[str, tuple[int, int]], **options: Any) -> GpuRows:
    """Runs a trace by the engine on a simulated GPU: see um_simulate_gpu.

    Args:
        trace: the step to simulate, a `umadvise.records.trace.Trace`.
        actions: the plan's actions, a `umadvise.records.plan.Actions`; None is no plan.
        call_costs: nanoseconds of a call of the driver, and more of them for each MiB, by function.
        options: the other fields of um_gpu_options.

    Raises:
        NativeError: trace, plan or options contradict themselves, or an op finds no room; the message says where.
    """
    core, handle = core_library(), ctypes.c_void_p()
    costs = [
        make("um_call_cost", function=intern(name), ns=ns, ns_per_mib=more) for name, (ns, more) in call_costs.items()
    ]
    table = (structure("um_call_cost") * len(costs))(*costs)
    given = make("um_gpu_options", call_costs=ctypes.addressof(table), call_cost_count=len(costs), **options)
    core.um_simulate_gpu(*map(_reference, [trace_columns(trace), plan_columns(actions), given, handle]))
    try:
        return GpuRows(
            [read(GpuStep, step) for step in each("um_gpu_step", partial(core.um_simulation_gpu_steps, handle))],
            [read(CallCount, count) for count in each("um_call_count", partial(core.um_simulation_calls, handle))],
            rows(layout("um_span"), partial(core.um_simulation_spans, handle)),
        )
    finally:
        core.um_simulation_destroy(handle)


def _reference(value: Any) -> Any:
    return None if value is None else ctypes.byref(value)
