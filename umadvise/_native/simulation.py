"""Simulations in the core."""

import ctypes
from typing import Any

from umadvise._native.abi import Link, SimulatedStep, Status, SwapOptions, SwapResult, UnifiedOptions
from umadvise._native.columns import plan_columns, trace_columns
from umadvise._native.library import core_library
from umadvise._native.mirrors import mirror, to_c
from umadvise._native.prototypes import POINTER, U64
from umadvise.errors import NativeError

_SPAN_BYTES = 40
"""Size of um_span."""


class Simulation:
    """What a simulation gave (um_simulation), read out of the core."""

    def __init__(self, handle: int) -> None:
        """Reads and destroys it."""
        core, step_mirror = core_library(), mirror(SimulatedStep)
        try:
            count = int(core.um_simulation_steps(handle, None, 0))
            steps = (step_mirror.structure * count)()
            core.um_simulation_steps(handle, steps, count)
            self.steps: list[SimulatedStep] = [step_mirror.read(step) for step in steps]
            spans = int(core.um_simulation_spans(handle, None, 0))
            self.spans = bytearray(spans * _SPAN_BYTES)
            core.um_simulation_spans(handle, (ctypes.c_char * len(self.spans)).from_buffer(self.spans), spans)
            storages = int(core.um_simulation_addresses(handle, None, 0))
            self.addresses = bytearray(8 * storages)
            core.um_simulation_addresses(handle, (U64 * storages).from_buffer(self.addresses), storages)
        finally:
            core.um_simulation_destroy(handle)


def simulate_unified(trace: Any, actions: Any, options: UnifiedOptions) -> Simulation:
    """Runs a trace under unified memory: see um_simulate_unified.

    Args:
        trace: `umadvise.records.trace.Trace`.
        actions: `umadvise.records.plan.Actions`, or None.
        options: everything else.

    Raises:
        NativeError: trace, plan or options contradict themselves, or memory is out; the message says where.
    """
    columns, plan = trace_columns(trace), plan_columns(actions)
    handle = POINTER()
    core_library().um_simulate_unified(ctypes.byref(columns), plan, ctypes.byref(to_c(options)), ctypes.byref(handle))
    return Simulation(handle.value or 0)


def simulate_swap(
    trace: Any, actions: Any, link: Link, options: SwapOptions
) -> tuple[SwapResult, Simulation | NativeError]:
    """Executes a trace with explicit swaps: see um_simulate_swap.

    Args:
        trace: `umadvise.records.trace.Trace`.
        actions: `umadvise.records.plan.Actions`, or None.
        link: to the host.
        options: everything else.

    Returns:
        The result, and the simulation; where something found no room, its error instead.

    Raises:
        NativeError: trace, plan, link or options contradict themselves.
    """
    columns, plan = trace_columns(trace), plan_columns(actions)
    result_mirror, handle = mirror(SwapResult), POINTER()
    result = result_mirror.structure()
    arguments = [ctypes.byref(columns), plan, ctypes.byref(to_c(link)), ctypes.byref(to_c(options))]
    try:
        core_library().um_simulate_swap(*arguments, ctypes.byref(result), ctypes.byref(handle))
    except NativeError as error:
        if error.code != Status.OUT_OF_DEVICE_MEMORY:
            raise
        return result_mirror.read(result), error
    return result_mirror.read(result), Simulation(handle.value or 0)
