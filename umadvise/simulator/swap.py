"""Simulates a step with explicit swapping: whole storages are copied between device and host, by a plan or on demand.

One compute queue, the copy engines of the device's link, and a host thread that runs ahead (csrc/replay/swap_*).
A swap-out starts when its anchor has ended on the compute queue and frees its bytes when the copy ends. A swap-in
starts not before its anchor, and waits in its queue until there is room; ops that do not need it go on. An op waits for
all that it touches. What no plan brought comes on demand: slow, never wrong, and counted. A storage that the host
still has unchanged leaves without a copy.

That is a plan to the letter, as its paper means it. A session's device loses no contents, and takes memory for copies
when they are asked for: `umadvise.simulator.gpu` runs the engine itself.
"""

import os
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from umadvise import _native
from umadvise._native.abi import SwapResult
from umadvise.devices.catalogue import load_device
from umadvise.devices.link import native_link
from umadvise.errors import NativeError, NoRoomError, UsageError
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Plan, check
from umadvise.records.timeline import SpanKind, Timeline, Track
from umadvise.records.trace import Trace

AllocatorModel: TypeAlias = Literal["exact", "caching", "best_fit", "va_chunks"]
"""Models of allocators: "exact" takes the sum of the bytes; "caching" is torch's caching allocator
(c10/cuda/CUDACachingAllocator.cpp, torch 2.13, default settings); "best_fit" is one pool; "va_chunks" has physical
chunks behind contiguous addresses (Hayakawa and Narihira 2020, section 4).
"""
ALLOCATOR_MODELS: tuple[AllocatorModel, ...] = get_args(AllocatorModel)
Eviction: TypeAlias = Literal["never", "belady", "lru"]
"""What leaves unplanned where an op finds no room: nothing (an error), what is used again furthest ahead (Belady 1966),
or what was used longest ago."""
EVICTIONS: tuple[Eviction, ...] = get_args(Eviction)

CHUNK_BYTES = 20 << 20
"""Default physical chunk: that of nnabla's virtual allocator. A session's chunks have 2 MiB."""
MOST_ITERATIONS = 10_000
WITHOUT_END = 1 << 61


@dataclass(frozen=True, slots=True)
class SwapSimulation:
    """A simulated step.

    Attributes:
        result: length of the step by cause, what moved, peaks; see um_swap_result in csrc/include/umadvise.h.
        timeline: spans of the last iteration; None where they were not asked for.
        live_bytes: most bytes of storages on the device at once during each op, those of running copies included.
        reserved_bytes: most bytes that the allocator takes of the budget during each op.
    """

    result: SwapResult
    timeline: Timeline | None
    live_bytes: NDArray[np.int64]
    reserved_bytes: NDArray[np.int64]

    @property
    def step_ns(self) -> int:
        """Nanoseconds of the last iteration, in which a step is like the one before."""
        return self.result.step_ns

    def op_starts_ns(self) -> NDArray[np.int64]:
        """Nanoseconds from the first op's beginning to that of each op, in the last iteration of a timeline."""
        assert self.timeline is not None
        rows = (self.timeline.track == Track.COMPUTE) & (self.timeline.kind == SpanKind.OP)
        result = np.zeros(len(self.live_bytes), np.int64)
        result[self.timeline.op[rows]] = self.timeline.start_ns[rows]
        return result - result[:1]


@dataclass(frozen=True, slots=True)
class Residence:
    """Whether a step runs with everything on the device.

    Attributes:
        fits: whether the step runs in the bytes that the device leaves to programs.
        simulation: simulation of the step; where it does not fit, on a device with more memory.
    """

    fits: bool
    simulation: SwapSimulation

    @property
    def needed_bytes(self) -> int:
        """Bytes that the allocator takes of the device at the peak."""
        return self.simulation.result.peak_reserved_bytes


def simulate_swap(
    trace: Trace,
    device: str | os.PathLike[str] | DeviceProfile,
    plan: Plan | None,
    *,
    budget_bytes: int | None = None,
    allocator: AllocatorModel = "exact",
    eviction: Eviction = "never",
    chunk_bytes: int = CHUNK_BYTES,
    map_ns_per_chunk: int = 0,
    op_issue_ns: int = 0,
    op_sync_ns: int = 0,
    iterations: int = 4,
    spans: bool = True,
) -> SwapSimulation:
    """Executes a trace with a plan, again and again until a step is like the one before.

    Storages whose first action is a swap-in begin on the host, all others on the device: so a plan's steady state is
    reached at once, or nearly.

    Args:
        trace: trace of the step.
        device: name in the catalogue, profile's file, or profile of the device whose link makes the copies.
        plan: plan of swaps, waits, drops and recomputations; None for none.
        budget_bytes: bytes that tensors may take on the device; None is the plan's budget, without a plan all that the
            device leaves to programs.
        allocator: model of the allocator that gives memory out.
        eviction: what leaves unplanned; "never" makes a plan that runs out of room an error.
        chunk_bytes: size of a physical chunk for the allocator "va_chunks": a multiple of 512.
        map_ns_per_chunk: nanoseconds that the compute queue stands still while the allocator "va_chunks" maps a chunk:
            unmapping and access rights synchronise with the device (nnabla-ext-cuda). docs/fidelity.md says which time
            fits a published row.
        op_issue_ns: nanoseconds that the host thread, which runs ahead, takes for each op.
        op_sync_ns: nanoseconds that the compute queue stands still before each op, as with a scheduler that
            synchronises.
        iterations: most repetitions of the step.
        spans: whether the timeline is wanted.

    Raises:
        NoRoomError: something finds no room, and nothing will leave.
        UsageError: the plan or an option is wrong.
    """
    _check_options(allocator, eviction)
    if not 1 <= iterations <= MOST_ITERATIONS:
        raise UsageError(f"{iterations} iterations: expected 1 to {MOST_ITERATIONS}")
    profile = load_device(device)
    if plan is not None:
        try:
            check(plan, trace)
        except ValueError as error:
            raise UsageError(str(error)) from None
    if budget_bytes is None:
        budget_bytes = profile.usable_bytes if plan is None else plan.budget_bytes
    live_bytes, reserved_bytes = np.zeros(len(trace.ops), np.int64), np.zeros(len(trace.ops), np.int64)
    try:
        result, outcome = _native.simulate_swap(
            trace,
            None if plan is None else plan.actions,
            native_link(profile),
            budget_bytes=budget_bytes,
            chunk_bytes=chunk_bytes,
            op_issue_ns=op_issue_ns,
            op_sync_ns=op_sync_ns,
            map_ns_per_chunk=map_ns_per_chunk,
            allocator=ALLOCATOR_MODELS.index(allocator),
            eviction=EVICTIONS.index(eviction),
            iterations=iterations,
            spans=spans,
            op_live_bytes=live_bytes.ctypes.data,
            op_reserved_bytes=reserved_bytes.ctypes.data,
        )
    except NativeError as error:
        raise UsageError(error.message) from None
    if isinstance(outcome, NativeError):
        raise _no_room(trace, result, outcome.message)
    timeline = None
    if spans:
        timeline = Timeline.from_spans(outcome.spans, result.peak_reserved_bytes)
    return SwapSimulation(result, timeline, live_bytes, reserved_bytes)


def simulate_resident(
    trace: Trace,
    device: str | os.PathLike[str] | DeviceProfile,
    *,
    allocator: AllocatorModel = "caching",
    op_issue_ns: int = 0,
    spans: bool = False,
) -> Residence:
    """Executes a trace with everything on the device, and says whether the device has the memory.

    Args:
        trace: trace of the step.
        device: name in the catalogue, profile's file, or profile of the device.
        allocator: model of the allocator that gives memory out.
        op_issue_ns: nanoseconds that the host thread, which runs ahead, takes for each op.
        spans: whether the timeline is wanted.

    Raises:
        UsageError: an option is wrong.
    """
    run = partial(simulate_swap, trace, device, None, allocator=allocator, op_issue_ns=op_issue_ns, spans=spans)
    try:
        return Residence(True, run())
    except NoRoomError:
        return Residence(False, run(budget_bytes=WITHOUT_END))


def _check_options(allocator: str, eviction: str) -> None:
    for what, given, known in (("allocator", allocator, ALLOCATOR_MODELS), ("eviction", eviction, EVICTIONS)):
        if given not in known:
            raise UsageError(f"unknown {what} {given!r}: expected one of {', '.join(known)}")


def _no_room(trace: Trace, result: SwapResult, message: str) -> NoRoomError:
    op = result.failed_op
    if op is not None:
        row = trace.op(op)
        message += f" ({row.name}{f' of {row.module}' if row.module else ''}, {row.phase.name.lower()})"
    return NoRoomError(message, op, result.working_set_bytes, result.budget_needed_bytes)
