"""When each storage is used: what every planner asks of a trace."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from umadvise.errors import BudgetError
from umadvise.records.trace import Access, EventKind, Trace
from umadvise.records.units import format_bytes


class Uses:
    """Uses of the storages of a trace, by storage and by op.

    A use is an op that touches the storage, or that makes it, or after which the host writes or reads it: no action
    comes between an op and what happens after it. What an op makes and frees within itself (library scratch) is no
    storage that could move: it counts as bytes of its op.

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
        kinds = (EventKind.ALLOCATE, EventKind.HOST_WRITE, EventKind.HOST_READ)
        self._event_rows = np.flatnonzero(np.isin(events.kind, kinds) & (events.op >= 0))
        accessed = accesses.storage.astype(np.int64) * count + accesses.op
        happened = events.storage[self._event_rows].astype(np.int64) * count + events.op[self._event_rows]
        keys = np.sort(np.concatenate([accessed, happened]))
        keys = keys[np.diff(keys, prepend=-1) > 0]
        self._of_access = np.searchsorted(keys, accessed)  # the use that an access is part of
        self._of_event = np.searchsorted(keys, happened)
        self.storage: NDArray[np.int64] = keys // count
        self.op: NDArray[np.int64] = keys % count
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
    def host_begins(self) -> NDArray[np.bool_]:
        """Storages that the host writes or reads before the first op: they are on the device when the step begins."""
        events = self.trace.events
        result = np.zeros(len(self.trace.storages), bool)
        early = np.isin(events.kind, (EventKind.HOST_WRITE, EventKind.HOST_READ)) & (events.op < 0)
        result[events.storage[early]] = True
        return result

    @cached_property
    def accessed(self) -> NDArray[np.bool_]:
        """For each use: the op touches the storage itself."""
        return self._marked(self._of_access)

    @cached_property
    def written_whole(self) -> NDArray[np.bool_]:
        """For each use: what was there before is not needed."""
        accesses, events, sizes = self.trace.accesses, self.trace.events, self.trace.storages.bytes
        whole = ((accesses.flags & Access.WHOLE) != 0) & (accesses.bytes == sizes[accesses.storage])
        reads = (accesses.flags & Access.READ) != 0
        # Of an op's accesses to a storage the first decides, which is what the executor goes by; of what the host does
        # after an op that does not touch the storage too.
        overwritten = self._of_first(self._of_access, whole) & ~self._marked(self._of_access[reads])
        kind, storage = events.kind[self._event_rows], events.storage[self._event_rows]
        replaces = (kind == EventKind.HOST_WRITE) & (events.bytes[self._event_rows] == sizes[storage])
        of_host = kind != EventKind.ALLOCATE
        by_host = self._of_first(self._of_event[of_host], replaces[of_host]) & ~self.accessed
        result: NDArray[np.bool_] = self._born | overwritten | by_host
        return result

    @cached_property
    def writes(self) -> NDArray[np.bool_]:
        """For each use: the storage changes, so that a copy on the host is no longer valid."""
        written = (self.trace.accesses.flags & Access.WRITE) != 0
        by_host = self.trace.events.kind[self._event_rows] == EventKind.HOST_WRITE
        result: NDArray[np.bool_] = (
            self._marked(self._of_access[written]) | self._marked(self._of_event[by_host]) | self._born
        )
        return result

    @cached_property
    def _born(self) -> NDArray[np.bool_]:
        result: NDArray[np.bool_] = self.trace.births[self.storage] == self.op
        return result

    def _marked(self, uses: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each use: it is among these."""
        result = np.zeros(len(self.storage), bool)
        result[uses] = True
        return result

    def _of_first(self, uses: NDArray[np.int64], values: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """For each use the first of its values; False where it has none."""
        result = np.zeros(len(self.storage), bool)
        result[uses[::-1]] = values[::-1]  # of several the last stays
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
                f"op {op} ({self.trace.op(op).name}) uses {format_bytes(int(needed[op]))} at once: no plan of swaps "
                f"keeps a budget of {format_bytes(budget_bytes)}; give at least that, make the batch smaller, or page: "
                "um-window, advice and best plan for unified memory, where an op may use more"
            )
