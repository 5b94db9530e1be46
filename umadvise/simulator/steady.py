"""What one step takes once the warm-up is over; the same record for unified memory and for swapping."""

from collections.abc import Iterable

from umadvise._native.abi import SwapResult
from umadvise.records.counters import Count, Record
from umadvise.simulator.stalls import Stalls
from umadvise.simulator.unified import UnifiedSimulation


class SteadyStep(Record, frozen=True):
    """What a step takes once the warm-up is over.

    Attributes:
        step_ns: length of the step.
        compute_ns: nanoseconds of its ops, each once.
        stalls: nanoseconds that the compute queue stood still, by cause.
        bytes_h2d: bytes paged or swapped in, whatever the cause; not what the program itself copies.
        bytes_d2h: bytes paged or swapped out.
        fault_groups: number of 2 MiB blocks served; None where nothing pages.
        evictions: number of storages, or of blocks with a copy to the host, that had to leave unplanned.
    """

    step_ns: Count
    compute_ns: Count
    stalls: Stalls
    bytes_h2d: Count
    bytes_d2h: Count
    fault_groups: Count | None
    evictions: Count


def mean_step(simulation: UnifiedSimulation) -> SteadyStep:
    """The mean of the steps after the warm-up, rounded. What is not counted is 0."""
    steps = simulation.steady

    def mean(values: Iterable[int | None]) -> int:
        return round(sum(value or 0 for value in values) / len(steps))

    moved = [(step.counters.bytes_h2d, step.counters.bytes_d2h) for step in steps]
    stalls = {name: mean(getattr(step, name) for step in steps) for name in Stalls.__struct_fields__}
    return SteadyStep(
        step_ns=mean(step.duration_ns for step in steps),
        compute_ns=mean(step.compute_ns for step in steps),
        stalls=Stalls(**stalls),
        bytes_h2d=mean(None if h2d is None else h2d.total for h2d, _ in moved),
        bytes_d2h=mean(None if d2h is None else d2h.total for _, d2h in moved),
        fault_groups=mean(step.counters.fault_groups for step in steps),
        evictions=mean(step.counters.evictions for step in steps),
    )


def swapped_step(result: SwapResult) -> SteadyStep:
    """The last step of a simulation of explicit swapping."""
    return SteadyStep(
        step_ns=result.step_ns,
        compute_ns=result.compute_ns,
        stalls=Stalls(wait_copy_ns=result.wait_copy_ns, wait_room_ns=result.wait_room_ns),
        bytes_h2d=result.swap_in_bytes,
        bytes_d2h=result.swap_out_bytes,
        fault_groups=None,
        evictions=result.evictions,
    )
