"""A step as planners see it that is going to be swapped in chunks.

A storage of more than half a chunk has chunks of its own: planners see it in whole ones. From 64 KiB on smaller ones
share chunks, and planners see the parts that they take. What is smaller still stays on the device, unless there is too
much of that: then it takes parts as well. What stays takes no bytes here, and what it takes there is no part of the
budget. So a plan that keeps the view's budget keeps the device's, but for chunks that are shared and not full.

What the step finds and never touches, such as gradients that the next backward replaces, takes no bytes either: it is
the first to leave when room is needed, and does not come back. What is made between two steps, such as a batch, has its
contents from there: here the host writes it.
"""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from umadvise.errors import BudgetError
from umadvise.planners.step_graph import step_graph
from umadvise.records.plan import OF_UNIFIED_MEMORY, Actions, Plan, alive
from umadvise.records.trace import Access, Accesses, EventKind, Events, Trace
from umadvise.records.units import PART_BYTES, format_bytes, part_bytes

Ranges = TypeVar("Ranges", Accesses, Events)


@dataclass(frozen=True, eq=False)
class PlanningView:
    """A step as planners get it: storages in whole chunks, and the budget that is left for them.

    Attributes:
        trace: the step as planners are given it; storages and ops keep their numbers.
        budget_bytes: budget that planners are given, in bytes: whole chunks.
        chunk_bytes: size of a chunk in bytes.
    """

    trace: Trace
    budget_bytes: int
    chunk_bytes: int


def view_of(
    trace: Trace,
    *,
    budget_bytes: int,
    chunk_bytes: int,
    staying_bytes: int = 0,
    movable: NDArray[np.bool_] | None = None,
    least_bytes: int = PART_BYTES,
) -> PlanningView:
    """Makes the view of a step that planners get.

    Args:
        trace: trace of the step.
        budget_bytes: device memory for chunks, in bytes.
        chunk_bytes: size of a chunk in bytes.
        staying_bytes: part of the budget, in bytes, that chunks take which never leave the device.
        movable: whether each storage of the trace lies in chunks or will; None: all do.
        least_bytes: size in bytes of the least storages that leave.

    Raises:
        BudgetError: what never leaves takes all of the budget.
    """
    room_bytes = budget_bytes // chunk_bytes * chunk_bytes - int(_rounded(staying_bytes, chunk_bytes))
    if room_bytes <= 0:
        raise BudgetError(
            f"what never leaves the device takes {format_bytes(staying_bytes)}, and the budget is "
            f"{format_bytes(budget_bytes)}: give more"
        )
    sizes = trace.storages.bytes
    leaves = (sizes >= least_bytes) | (sizes * 2 > chunk_bytes)
    if movable is not None:
        leaves &= movable
    units = np.where(sizes * 2 > chunk_bytes, chunk_bytes, part_bytes(chunk_bytes))
    trace = _with_contents(trace)
    graph = step_graph(trace)
    # There when the step begins, and nobody reads or writes it in it.
    idle = (trace.births < 0) & ~graph.uses.used & ~graph.host_begins
    resized = _resized(trace, np.where(leaves & ~idle, -(-sizes // units) * units, 0), idle)
    return PlanningView(resized, room_bytes, chunk_bytes)


def executed(trace: Trace, in_chunks: NDArray[np.bool_]) -> Trace:
    """A step as the device executes it, for a simulation: sizes in bytes, and everything that lies in chunks.

    Args:
        trace: trace of the step.
        in_chunks: whether each storage of the trace lies in chunks.
    """
    return _resized(trace, np.where(in_chunks, trace.storages.bytes, 0), np.zeros(len(trace.storages), bool))


def _with_contents(trace: Trace) -> Trace:
    """What goes on in the next step and was made by nothing in this one is written when it is allocated."""
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


def _rounded(bytes_: NDArray[np.int64] | int, chunk_bytes: int) -> NDArray[np.int64]:
    return -(-np.asarray(bytes_, np.int64) // chunk_bytes) * chunk_bytes


def _resized(trace: Trace, sizes: NDArray[np.int64], idle: NDArray[np.bool_]) -> Trace:
    """With storages of other sizes: a range that was all of a storage still is. Nothing goes on as an idle one."""
    before = trace.storages.bytes

    def resized(table: Ranges) -> Ranges:
        storage = table.storage
        whole = (table.offset_bytes == 0) & (table.bytes == before[storage])
        bytes_ = np.where(whole | (sizes[storage] == 0), sizes[storage], table.bytes)
        return replace(table, offset_bytes=np.where(sizes[storage] == 0, 0, table.offset_bytes), bytes=bytes_)

    successor = np.where(idle, -1, trace.storages.successor)
    return replace(
        trace,
        storages=replace(trace.storages, bytes=sizes, successor=successor),
        accesses=resized(trace.accesses),
        events=resized(trace.events),
    )


def transferred(plan: Plan, trace: Trace) -> Plan:
    """Turns a plan into one for another trace with the same ops and storages, whose sizes may differ.

    Actions go that are on what takes no bytes in `trace`, or is not alive there: steps of the same ops may free what
    they use sooner or later. Swaps and drops are of whole storages.

    Args:
        plan: plan of a trace whose ops and storages have the same numbers.
        trace: trace that the result is to be a plan of.

    Raises:
        ValueError: the traces are not of the same step.
    """
    table = plan.actions
    chosen = table.storage < len(trace.storages)
    chosen[chosen] &= trace.storages.bytes[table.storage[chosen]] > 0
    rows = Actions(**{name: getattr(table, name)[chosen] for name in Actions.DTYPES})
    lives = alive(rows, trace) | (rows.op >= len(trace.ops))  # of another step, which is an error
    columns = {name: getattr(rows, name)[lives] for name in Actions.DTYPES}
    sizes = trace.storages.bytes[columns["storage"]]
    whole = ~np.isin(columns["kind"], OF_UNIFIED_MEMORY)
    columns["bytes"] = np.where(whole, sizes, columns["bytes"])
    return Plan.of_rows(trace, Actions(**columns), plan.planner, plan.budget_bytes, plan.options)
