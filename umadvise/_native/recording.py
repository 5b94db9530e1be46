"""What a device of the core recorded."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Recording:
    """What a device recorded: structured arrays of um_recorded_op and its kin; names are interned numbers.

    Attributes:
        ops: um_recorded_op rows, in the order in which the ops began.
        accesses: um_recorded_access rows of all ops; each op names its first row and how many it has.
        outputs: serial numbers of the allocations that ops returned; 0 stands for memory that is not the device's.
        allocations: um_recorded_allocation rows, one for each allocation that the recording has seen.
        events: um_recorded_event rows (allocations, frees, copies, fault services), in the order in which they
            happened.
        edges: um_recorded_edge rows: where steps began and ended, as places among the events.
        lost: number of rows that there was no room for; above 0 the recording is not whole.
    """

    ops: NDArray[Any]
    accesses: NDArray[Any]
    outputs: NDArray[Any]
    allocations: NDArray[Any]
    events: NDArray[Any]
    edges: NDArray[Any]
    lost: int
