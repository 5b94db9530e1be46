"""The step graph as lists, for planners that go through it op by op."""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.step_graph import step_graph
from umadvise.records.enums import Phase, Role
from umadvise.records.trace import Access, EventKind, Trace


@dataclass(frozen=True, slots=True)
class Touch:
    """A row of the trace's accesses, with what it means for running an op again."""

    storage: int
    reads: bool
    writes: bool
    whole: bool


class StepLists:
    """A step as lists, by op or by storage.

    Attributes:
        trace: trace of the step.
        graph: step graph of the trace.
        sizes: bytes of each storage.
        births: op in or after which each storage is allocated; -1 before the first op.
        deaths: op in or after which each storage is freed; the number of ops for what outlives the step.
        transient: whether each storage lives inside one op only.
        durations: nanoseconds of each op; 0 where they are unknown.
        forward: whether each op is one of the forward phase.
        backward: whether each op is one of the backward phase.
        repeatable: whether each op may run again.
    """

    def __init__(self, trace: Trace, repeatable: NDArray[np.bool_] | None = None) -> None:
        """Reads the trace's graph.

        Args:
            trace: trace of the step.
            repeatable: whether each op may run again; None: all may.
        """
        self.trace, self.graph = trace, step_graph(trace)
        self.sizes: list[int] = trace.storages.bytes.tolist()
        self.births: list[int] = trace.births.tolist()
        self.deaths: list[int] = trace.deaths.tolist()
        self.transient: list[bool] = self.graph.transient.tolist()
        self.durations: list[int] = np.maximum(trace.ops.duration_ns, 0).tolist()
        self.forward: list[bool] = (trace.ops.phase == Phase.FORWARD).tolist()
        self.backward: list[bool] = (trace.ops.phase == Phase.BACKWARD).tolist()
        self.repeatable: list[bool] = [True] * len(trace.ops) if repeatable is None else repeatable.tolist()

    @cached_property
    def needed(self) -> list[list[int]]:
        """Storages that each op uses, transient ones left out, ascending."""
        uses = self.graph.uses
        rows = ~self.graph.transient[uses.storage]
        return grouped(uses.at[rows], uses.storage[rows], len(self.trace.ops))

    @cached_property
    def freed_by(self) -> list[list[int]]:
        """Storages that are freed in or after each op; the last entry, [-1], is before the first op."""
        places = len(self.trace.ops) + 1
        freed = np.flatnonzero(self.trace.deaths < len(self.trace.ops))
        return grouped(self.trace.deaths[freed] % places, freed, places)

    @cached_property
    def touches(self) -> list[list[Touch]]:
        """What each op touches, in the trace's order."""
        table = self.trace.accesses
        whole = ((table.flags & Access.WHOLE) != 0) & (table.bytes == self.trace.storages.bytes[table.storage])
        reads, writes = ((table.flags & Access.READ) != 0) & ~whole, (table.flags & Access.WRITE) != 0
        columns = (table.storage.tolist(), reads.tolist(), writes.tolist(), whole.tolist())
        rows = [Touch(*row) for row in zip(*columns, strict=True)]
        return [rows[begin:end] for begin, end in pairwise(self.trace.first_access.tolist())]

    @cached_property
    def touched_by(self) -> list[list[int]]:
        """Ops that touch each storage, one entry an access, ascending."""
        return grouped(self.trace.accesses.storage, self.trace.accesses.op, len(self.sizes))

    @cached_property
    def host_writes(self) -> list[list[int]]:
        """Ops after which the host writes each storage, ascending."""
        rows = self.trace.events.kind == EventKind.HOST_WRITE
        return grouped(self.trace.events.storage[rows], self.trace.events.op[rows], len(self.sizes))

    @cached_property
    def written_by(self) -> list[list[int]]:
        """Ops that write each storage, or after which the host does, ascending."""
        table = self.trace.accesses
        rows = (table.flags & Access.WRITE) != 0
        by_ops = grouped(table.storage[rows], table.op[rows], len(self.sizes))
        return [sorted(ops + hosts) for ops, hosts in zip(by_ops, self.host_writes, strict=True)]

    @cached_property
    def made_inside(self) -> list[list[int]]:
        """Storages that each op makes, ascending."""
        events = self.trace.events
        rows = (events.kind == EventKind.ALLOCATE) & (events.inside == 1)
        return grouped(events.op[rows], events.storage[rows], len(self.trace.ops))

    @cached_property
    def movable(self) -> list[bool]:
        """Whether each storage could leave: an intermediate result of this step that the host does not touch."""
        trace, storages = self.trace, self.trace.storages
        movable = (trace.births >= 0) & (trace.deaths < len(trace.ops)) & (storages.bytes > 0)
        movable &= (storages.role == Role.INTERMEDIATE) & ~self.graph.transient & ~self.graph.host_touched
        result: list[bool] = movable.tolist()
        return result

    @cached_property
    def gaps(self) -> dict[int, tuple[int, int]]:
        """Last use in forward and first use in backward of each movable storage that has both."""
        uses, phase = self.graph.uses, self.trace.ops.phase
        rows = uses.inner
        rows = rows[(phase[uses.at[rows]] == Phase.FORWARD) & (phase[uses.at[rows + 1]] == Phase.BACKWARD)]
        rows = rows[np.array(self.movable, bool)[uses.storage[rows]]]
        columns = (uses.storage[rows].tolist(), uses.at[rows].tolist(), uses.at[rows + 1].tolist())
        gaps: dict[int, tuple[int, int]] = {}
        for storage, last, following in zip(*columns, strict=True):
            gaps.setdefault(storage, (last, following))
        return gaps

    def last_write(self, storage: int, before_op: int) -> int:
        """The last op before this one that wrote the storage; -1: none did."""
        writers = self.written_by[storage]
        row = bisect_left(writers, before_op)
        return writers[row - 1] if row else -1

    def needs_contents(self, op: int, storage: int) -> bool:
        """Whether an op that uses the storage needs what was in it."""
        return next((not touch.whole for touch in self.touches[op] if touch.storage == storage), False)


def grouped(keys: NDArray[np.signedinteger], values: NDArray[np.signedinteger], count: int) -> list[list[int]]:
    """Values of each key from 0 to `count` - 1, ascending."""
    order = np.lexsort((values, keys))
    first = np.searchsorted(keys[order], np.arange(count + 1)).tolist()
    listed: list[int] = values[order].tolist()
    return [listed[begin:end] for begin, end in pairwise(first)]
