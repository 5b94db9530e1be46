"""When each storage is used: what every planner asks of a trace."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from umadvise.errors import BudgetError
from umadvise.trace.schema import Access, EventKind, Trace
from umadvise.units import format_bytes


class Uses:
    """Uses of the storages of a trace, by storage and by op.

    A use is an op that touches the storage, or that makes it. What an op makes and frees within itself (library
    scratch) is no storage that could move: it counts as bytes of its op.

    Attributes:
        trace: the step.
        storage: of each use, ascending.
        op: of each use, ascending within a storage.
        first: row of each storage's first use, and one more entry.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        count = max(len(trace.ops), 1)
        accesses, events = trace.accesses, trace.events
        made = (events.kind == EventKind.ALLOCATE) & (events.op >= 0)
        pairs = np.concatenate(
            [
                accesses.storage.astype(np.int64) * count + accesses.op,
                events.storage[made].astype(np.int64) * count + events.op[made],
            ]
        )
        pairs = np.unique(pairs)
        self.storage: NDArray[np.int64] = pairs // count
        self.op: NDArray[np.int64] = pairs % count
        self.first: NDArray[np.int64] = np.searchsorted(self.storage, np.arange(len(trace.storages) + 1))

    def of(self, storage: int) -> NDArray[np.int64]:
        """Ops that use a storage, ascending."""
        return self.op[self.first[storage] : self.first[storage + 1]]

    @cached_property
    def transient(self) -> NDArray[np.bool_]:
        """Storages that live inside one op only."""
        events = self.trace.events
        freed_inside = np.zeros(len(self.trace.storages), bool)
        rows = (events.kind == EventKind.FREE) & (events.inside == 1)
        freed_inside[events.storage[rows]] = True
        result: NDArray[np.bool_] = freed_inside & (self.trace.births == self.trace.deaths)
        return result

    @cached_property
    def by_op(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Storages that each op uses (ascending), and where each op's begin, with one more entry."""
        order = np.lexsort((self.storage, self.op))
        first = np.searchsorted(self.op[order], np.arange(len(self.trace.ops) + 1))
        return self.storage[order], first

    @cached_property
    def written_whole(self) -> NDArray[np.bool_]:
        """For each use: the op does not need what was there before."""
        accesses, sizes = self.trace.accesses, self.trace.storages.bytes
        count = max(len(self.trace.ops), 1)
        key = accesses.storage.astype(np.int64) * count + accesses.op
        whole = ((accesses.flags & Access.WHOLE) != 0) & (accesses.bytes == sizes[accesses.storage])
        reads = (accesses.flags & Access.READ) != 0
        uses = self.storage * count + self.op
        born = self.trace.births[self.storage] == self.op
        overwritten = np.isin(uses, key[whole]) & ~np.isin(uses, key[reads])
        result: NDArray[np.bool_] = born | overwritten
        return result

    @cached_property
    def writes(self) -> NDArray[np.bool_]:
        """For each use: the op changes the storage, so that a copy on the host is no longer valid."""
        accesses = self.trace.accesses
        count = max(len(self.trace.ops), 1)
        key = accesses.storage.astype(np.int64) * count + accesses.op
        changed = np.isin(self.storage * count + self.op, key[(accesses.flags & Access.WRITE) != 0])
        result: NDArray[np.bool_] = changed | (self.trace.births[self.storage] == self.op)
        return result

    def require_room(self, budget_bytes: int) -> None:
        """Returns where every op's working set fits the budget.

        Raises:
            BudgetError: one does not; the message names it and what it needs.
        """
        needed = self.trace.working_set_bytes()
        if len(needed) and int(needed.max()) > budget_bytes:
            op = int(needed.argmax())
            raise BudgetError(
                f"op {op} ({self.trace.op(op).name}) uses {format_bytes(int(needed[op]))} at once: no plan keeps "
                f"a budget of {format_bytes(budget_bytes)}; give at least that, or make the batch smaller"
            )
