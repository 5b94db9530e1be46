"""The mean step of a simulation under unified memory, once the warm-up is over."""

from collections.abc import Iterable
from dataclasses import dataclass

from umadvise.simulator.stalls import Stalls
from umadvise.simulator.unified import Simulation


@dataclass(frozen=True, slots=True)
class MeanStep:
    """Means over the steady iterations, rounded.

    Attributes:
        step_ns: length of the step.
        compute_ns: of its ops.
        stalls: when the compute queue stood still.
        bytes_h2d: paged in, whatever the cause; not what the program itself copies.
        bytes_d2h: likewise, out.
        fault_groups: 2 MiB blocks served.
        evictions: with a copy to the host.
    """

    step_ns: int
    compute_ns: int
    stalls: Stalls
    bytes_h2d: int
    bytes_d2h: int
    fault_groups: int
    evictions: int


def mean_step(simulation: Simulation) -> MeanStep:
    """What one step is like. What is not counted is 0."""
    steps = simulation.steady

    def mean(values: Iterable[int | None]) -> int:
        return round(sum(value or 0 for value in values) / len(steps))

    moved = [(step.counters.bytes_h2d, step.counters.bytes_d2h) for step in steps]
    return MeanStep(
        step_ns=mean(step.duration_ns for step in steps),
        compute_ns=mean(step.compute_ns for step in steps),
        stalls=Stalls(
            fault_ns=mean(step.fault_ns for step in steps),
            wait_copy_ns=mean(step.wait_copy_ns for step in steps),
            wait_room_ns=mean(step.wait_room_ns for step in steps),
            remote_ns=mean(step.remote_ns for step in steps),
        ),
        bytes_h2d=mean(None if h2d is None else h2d.total for h2d, _ in moved),
        bytes_d2h=mean(None if d2h is None else d2h.total for _, d2h in moved),
        fault_groups=mean(step.counters.fault_groups for step in steps),
        evictions=mean(step.counters.evictions for step in steps),
    )
