"""The device memory that a plan may use: what of a step never leaves it, and what the rest takes in chunks.

A storage of more than half a chunk has chunks of its own: it takes whole ones. From 64 KiB on smaller ones share
chunks, and take parts of them. Still smaller ones stay on the device, unless they are too many: then they take parts as
well. What stays takes no bytes here, and what it takes on the device is no part of the budget. So a plan that keeps
this capacity keeps the device's, but for chunks that are shared and not full.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from umadvise.errors import BudgetError
from umadvise.planners.capacity import Capacity
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records.enums import Role
from umadvise.records.trace import Trace
from umadvise.records.units import PART_BYTES, format_bytes, part_bytes

CHUNK_BYTES = 2 << 20
"""Size of a chunk where nothing else is said: the default of um_chunks_set, and the least that a GPU maps."""
_LARGEST_CHUNK_BYTES = 8 << 20
_MANY_CHUNKS = 2048
"""Mapping a chunk takes an H100 36 us, and unmapping it 22, whatever its size and however many a call is about
(`profiles/measured`), and a layout maps each chunk some ten times. With chunks of 2 MiB half of BERT-Large's 25 GiB
took 30 s to settle. Chunks of 8 MiB give steps as long by simulation, those of 16 MiB longer ones."""
MOST_STAYING_BYTES = 12 << 20
"""The most that small tensors take which never leave (`csrc/memory/movable_memory.h`)."""
_SPARE_CHUNKS = 3
"""Small tensors of each kind share chunks with their own kind: the last one of each is not full."""
_SPARE_SHARE = 200
"""One part of the budget in so many: arenas of small tensors are kept while they are empty. With three chunks alone
ResNet-50 at a third of its peak evicted a tensor in each step (`tools/benchmark_async.py`)."""
_BLOCK_BYTES = 512


def chunk_bytes_of(budget_bytes: int) -> int:
    """The size of the chunks of a budget, in bytes: the least of which there are not many, and 8 MiB at most.

    Args:
        budget_bytes: device memory for chunks, in bytes.
    """
    size = CHUNK_BYTES
    while size < _LARGEST_CHUNK_BYTES and budget_bytes > _MANY_CHUNKS * size:
        size *= 2
    return size


def spare_bytes(budget_bytes: int, chunk_bytes: int) -> int:
    """The part of a budget for chunks that plans leave to small tensors, beside what these take at once.

    Args:
        budget_bytes: device memory for chunks, in bytes.
        chunk_bytes: size of a chunk in bytes.
    """
    return max(_SPARE_CHUNKS * chunk_bytes, unfilled_bytes(budget_bytes, chunk_bytes))


def unfilled_bytes(budget_bytes: int, chunk_bytes: int) -> int:
    """The part of a budget, in whole chunks, that tensors which share chunks leave unfilled.

    Without it BERT-Large in half of 46 GiB evicted 60 tensors in each step, and brought a tenth more than planned
    (chunks of 8 MiB).

    Args:
        budget_bytes: device memory for chunks, in bytes.
        chunk_bytes: size of a chunk in bytes.
    """
    return budget_bytes // _SPARE_SHARE // chunk_bytes * chunk_bytes


@dataclass(frozen=True)
class PlanMemory:
    """The device memory that a plan may use.

    Attributes:
        budget_bytes: bytes of device memory.
        chunk_bytes: size of a chunk; 0 where the driver pages.
        staying_bytes: bytes of the budget that memory took at most in the step that never leaves its chunks.
        elsewhere: serial numbers of allocations that lie in no chunks.
        device_bytes: bytes of the whole device, where the driver pages and the guard keeps the budget; 0 where the
            driver has no more memory than that.
    """

    budget_bytes: int
    chunk_bytes: int = 0
    staying_bytes: int = 0
    elsewhere: frozenset[int] = field(default_factory=frozenset)
    device_bytes: int = 0


def capacity_of(trace: Trace, memory: PlanMemory, movable: NDArray[np.bool_]) -> Capacity:
    """Returns what planners of swaps are given for a step in a session's chunks.

    Args:
        trace: trace of the step.
        memory: device memory that the step has.
        movable: whether each storage of the trace may leave the device, from `movable_storages`.

    Raises:
        BudgetError: storages that never leave take all of the budget.
    """
    least = staying_bytes(trace) + spare_bytes(memory.budget_bytes, memory.chunk_bytes)
    seen_bytes = memory.staying_bytes + unfilled_bytes(memory.budget_bytes, memory.chunk_bytes)
    return chunk_capacity(
        trace,
        budget_bytes=memory.budget_bytes,
        chunk_bytes=memory.chunk_bytes,
        staying_bytes=min(least, seen_bytes) if memory.staying_bytes else least,
        movable=movable,
        least_bytes=_least_leaving_bytes(trace),
    )


def chunk_capacity(
    trace: Trace,
    *,
    budget_bytes: int,
    chunk_bytes: int,
    staying_bytes: int = 0,
    movable: NDArray[np.bool_] | None = None,
    least_bytes: int = PART_BYTES,
) -> Capacity:
    """Returns the capacity of a budget in chunks, and what each storage of a step takes of it.

    Args:
        trace: trace of the step.
        budget_bytes: device memory for chunks, in bytes.
        chunk_bytes: size of a chunk in bytes.
        staying_bytes: part of the budget, in bytes, that chunks take which never leave the device.
        movable: whether each storage of the trace lies in chunks or will; None: all do.
        least_bytes: size in bytes of the least storages that leave.

    Raises:
        BudgetError: storages that never leave take all of the budget.
    """
    room_bytes = (budget_bytes // chunk_bytes - -(-staying_bytes // chunk_bytes)) * chunk_bytes
    if room_bytes <= 0:
        raise BudgetError(
            f"what never leaves the device takes {format_bytes(staying_bytes)}, and the budget is "
            f"{format_bytes(budget_bytes)}: give more"
        )
    sizes = trace.storages.bytes
    own = sizes * 2 > chunk_bytes  # chunks of its own
    takes = (sizes >= least_bytes) | own
    if movable is not None:
        takes &= movable
    units = np.where(own, chunk_bytes, part_bytes(chunk_bytes))
    return Capacity(room_bytes, np.where(takes, -(-sizes // units) * units, 0))


def movable_storages(step: RecordedStep, memory: PlanMemory) -> NDArray[np.bool_]:
    """Which storages of a step may leave the device when they are large enough.

    What is no tensor's storage stays where it is, and so does what lies in no chunks.
    """
    trace = step.trace
    fleeting = trace.births == trace.deaths  # inside one op: it counts there, and no plan is about it
    movable: NDArray[np.bool_] = (trace.storages.role != Role.WORKSPACE) | fleeting
    return _as_the_next_time(trace, movable) & storages_in_chunks(step, memory)


def storages_in_chunks(step: RecordedStep, memory: PlanMemory) -> NDArray[np.bool_]:
    """Which storages of a step lie in chunks, or will."""
    return _as_the_next_time(step.trace, ~np.isin(step.serials, np.array(sorted(memory.elsewhere), np.uint64)))


def _as_the_next_time(trace: Trace, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """What has been replaced in the step is next time what its successor is now."""
    replaced = np.flatnonzero(trace.storages.successor >= 0)
    flags[replaced] = flags[trace.storages.successor[replaced]]
    return flags


def staying_bytes(trace: Trace) -> int:
    """The most at once of what never leaves: what is small, and scratch memory that outlives its op."""
    scratch = (trace.storages.role == Role.WORKSPACE) & (trace.births != trace.deaths)
    small_bytes = _most_at_once(trace, (trace.storages.bytes < PART_BYTES) & ~scratch)
    return min(small_bytes, MOST_STAYING_BYTES) + _most_at_once(trace, scratch)


def _least_leaving_bytes(trace: Trace) -> int:
    """Size in bytes of the least storages of a step that leave: where there are too many small ones, they do too."""
    return PART_BYTES if _most_at_once(trace, trace.storages.bytes < PART_BYTES) <= MOST_STAYING_BYTES else 1


def _most_at_once(trace: Trace, chosen: NDArray[np.bool_]) -> int:
    events = trace.events
    sizes = np.where(chosen, -(-trace.storages.bytes // _BLOCK_BYTES) * _BLOCK_BYTES, 0)
    sign = (events.kind == 0).astype(np.int64) - (events.kind == 1)
    return int(np.cumsum(sign * sizes[events.storage]).max(initial=0))
