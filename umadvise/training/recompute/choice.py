"""Which ops of a plan run again in backward: those that it recomputes, as far as they lie in marked regions."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umadvise.records.enums import Phase
from umadvise.records.plan import ActionKind, Plan
from umadvise.records.trace import Access, EventKind, Events, Trace


@dataclass(frozen=True)
class Region:
    """One call of a checkpointed function, as it was recorded.

    Attributes:
        place: how many calls of the step came before it, those that are left to torch among them.
        first_op: how many ops of the step came before it.
        operators: names of its ops, with their overloads, in order.
        repeatable: flag of each op, whether it may run again: it draws no random numbers, and what it writes to can be
            made again.
    """

    place: int
    first_op: int
    operators: tuple[str, ...]
    repeatable: tuple[bool, ...]


@dataclass(frozen=True)
class RerunChoice:
    """The ops that run again in backward, and what of the plan cannot be had.

    Attributes:
        by_region: indices of ops in each region, by its place in the step.
        unmarked: ops of the step in no region.
    """

    by_region: dict[int, frozenset[int]]
    unmarked: frozenset[int]

    @property
    def complaint(self) -> str | None:
        """What to tell the user; None where the plan can be had whole."""
        if not self.unmarked:
            return None
        return (
            f"the plan runs {len(self.unmarked)} ops again that lie in no marked region, so their results are kept: "
            "mark regions by calling torch.utils.checkpoint.checkpoint(function, ..., use_reentrant=False), as "
            'model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False}) does. '
            "Regions that write to tensors from outside of them, such as running statistics, stay torch's own"
        )


def repeatable_ops(trace: Trace, regions: Collection[Region]) -> NDArray[np.bool_]:
    """Whether each op of a step lies in one of its regions and may run again there."""
    found = np.zeros(len(trace.ops), bool)
    for region in regions:
        found[region.first_op : region.first_op + len(region.repeatable)] = region.repeatable
    return found


def with_inputs_held(trace: Trace, regions: Collection[Region]) -> Trace:
    """A step as it is once ops of its regions run again: what a region is given lives on, for it to run again on.

    That is until the last op of backward, at the longest. A mask of attention is what else would be gone by then, and
    with it whatever is made of it.
    """
    backward = np.flatnonzero(trace.ops.phase == Phase.BACKWARD)
    if not len(backward):
        return trace
    given = np.zeros(len(trace.storages), bool)
    for region in regions:
        end = region.first_op + len(region.operators)
        touched = trace.accesses.storage[trace.first_access[region.first_op] : trace.first_access[end]]
        given[touched[trace.births[touched] < region.first_op]] = True
    given &= (trace.births >= 0) & (trace.deaths < backward[0])
    events = trace.events
    moved = (events.kind == EventKind.FREE) & given[events.storage]
    columns: dict[str, Any] = {name: getattr(events, name) for name in events.DTYPES}
    columns |= {"op": np.where(moved, backward[-1], events.op), "inside": np.where(moved, 0, events.inside)}
    order = np.lexsort((columns["inside"] == 0, columns["op"]))  # what is inside an op comes first
    return replace(trace, events=Events(**{name: column[order] for name, column in columns.items()}))


def ops_of(plan: Plan, trace: Trace) -> frozenset[int]:
    """The ops that run again by a plan of a trace: its recomputations' ops, but those whose results are still there."""
    written: dict[int, list[int]] = {}  # by op, the storages
    writers: dict[int, list[int]] = {}  # by storage, the ops
    rows = (trace.accesses.flags & Access.WRITE) != 0
    for op, storage in zip(trace.accesses.op[rows].tolist(), trace.accesses.storage[rows].tolist(), strict=True):
        written.setdefault(op, []).append(storage)
        writers.setdefault(storage, []).append(op)
    table, deaths = plan.actions, trace.deaths
    found: set[int] = set()
    for row in (table.kind == ActionKind.RECOMPUTE).nonzero()[0].tolist():
        target, anchor, first = int(table.storage[row]), int(table.op[row]), int(table.argument[row])
        last = max((op for op in writers.get(target, ()) if op < anchor), default=-1)
        for op in range(first, last + 1):
            if any(storage == target or deaths[storage] < anchor for storage in written.get(op, ())):
                found.add(op)
    return frozenset(found)


def choose(ops: Collection[int], regions: Collection[Region]) -> RerunChoice:
    """Finds a step's ops in its regions.

    Args:
        ops: indices into the step's ops.
        regions: marked regions of that step.
    """
    by_region: dict[int, set[int]] = {}
    unmarked = set(ops)
    for region in regions:
        inside = {op for op in unmarked if 0 <= op - region.first_op < len(region.operators)}
        unmarked -= inside
        for op in inside:
            if region.repeatable[op - region.first_op]:
                by_region.setdefault(region.place, set()).add(op - region.first_op)
    chosen = {place: frozenset(indices) for place, indices in by_region.items()}
    return RerunChoice(chosen, frozenset(unmarked))
