"""The device memory that a planner may use, where a storage takes other bytes of it than its own.

A device model, such as a session's chunks, says what each storage takes: a `Capacity`. `umadvise.planners.run` is given
that and the step. It has the planner plan the step with each storage charged what it takes, and returns a plan of the
step itself. So no caller meets another trace than the step's, and every plan has its numbers and bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Plan
from umadvise.records.trace import Access, Accesses, EventKind, Events, Trace

Ranges = TypeVar("Ranges", Accesses, Events)
_HOST = (EventKind.HOST_WRITE, EventKind.HOST_READ)


@dataclass(frozen=True, eq=False)
class Capacity:
    """Device memory for a step, and what each storage takes of it.

    Attributes:
        budget_bytes: bytes that the storages of the step may take on the device at once.
        taken_bytes: array with the bytes that each storage of the trace takes while it is on the device, at least its
            size; 0 for a storage that takes none of the budget and that plans leave alone. None: each takes its size.
    """

    budget_bytes: int
    taken_bytes: NDArray[np.int64] | None = None

    def planned(self, make: Callable[..., Plan], trace: Trace, device: DeviceProfile, **options: Any) -> Plan:
        """Has a planner plan a step in this capacity, and returns a plan of the step.

        Args:
            make: planner, a function `(trace, device, budget_bytes, **options) -> Plan`.
            trace: trace of the step.
            device: profile of the device that the plan is for.
            options: options of the planner; `plans` are some of the step.

        Raises:
            BudgetError: no plan of this kind keeps the budget.
            UsageError: an option is wrong.
        """
        charged = self.charged(trace)
        if "plans" in options:
            options["plans"] = [each.fitted(charged) for each in options["plans"]]
        return make(charged, device, self.budget_bytes, **options).fitted(trace)

    def charged(self, trace: Trace) -> Trace:
        """Returns the step as planners and the simulator of swaps charge it: each storage has the size that it takes.

        A storage that was made between two steps, such as a batch, has its contents from there: the host writes it. A
        storage that the step finds and never touches takes no bytes, and none is its successor: it is evicted first
        when memory is short, and is not swapped in again. Such is a gradient that the next backward replaces.
        """
        if self.taken_bytes is None:
            return trace
        idle = _idle(trace)
        charged = resized(_with_contents(trace), np.where(idle, 0, self.taken_bytes))
        successor = np.where(idle, -1, trace.storages.successor)
        return replace(charged, storages=replace(charged.storages, successor=successor))


def _idle(trace: Trace) -> NDArray[np.bool_]:
    """Whether each storage is there when the step begins, and neither an op nor the host reads or writes it."""
    result = trace.births < 0
    result[trace.accesses.storage] = False
    result[trace.events.storage[np.isin(trace.events.kind, _HOST)]] = False
    return result


def _with_contents(trace: Trace) -> Trace:
    """The host writes what is continued in the next step and what nothing in this one writes, when it is allocated."""
    events = trace.events
    written = np.zeros(len(trace.storages), bool)
    written[trace.accesses.storage[(trace.accesses.flags & Access.WRITE) != 0]] = True
    written[events.storage[events.kind == EventKind.HOST_WRITE]] = True
    goes_on = np.isin(np.arange(len(trace.storages)), trace.storages.successor)
    made = (events.kind == EventKind.ALLOCATE) & (events.op >= 0) & (goes_on & ~written)[events.storage]
    rows = np.flatnonzero(made)
    if not len(rows):
        return trace
    new: dict[str, Any] = {
        "kind": EventKind.HOST_WRITE,
        "offset_bytes": 0,
        "bytes": trace.storages.bytes[events.storage[rows]],
    }
    columns = {name: getattr(events, name) for name in events.DTYPES}
    filled = {name: np.insert(each, rows + 1, new.get(name, each[rows])) for name, each in columns.items()}
    return replace(trace, events=Events(**filled))


def resized(trace: Trace, sizes: NDArray[np.int64]) -> Trace:
    """Returns the step with storages of other sizes: a range that was all of a storage still is.

    Args:
        trace: trace of the step.
        sizes: array with the bytes of each storage; 0 for a storage that takes no memory of the step.
    """
    before = trace.storages.bytes

    def ranges(table: Ranges) -> Ranges:
        storage = table.storage
        whole = (table.offset_bytes == 0) & (table.bytes == before[storage])
        bytes_ = np.where(whole | (sizes[storage] == 0), sizes[storage], table.bytes)
        return replace(table, offset_bytes=np.where(sizes[storage] == 0, 0, table.offset_bytes), bytes=bytes_)

    storages = replace(trace.storages, bytes=sizes)
    return replace(trace, storages=storages, accesses=ranges(trace.accesses), events=ranges(trace.events))
