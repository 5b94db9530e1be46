"""The step graph: what every planner asks of a trace, built once for all that plan the same one.

Its edges are uses: which op touches which storage, and with what it finds there. From them follow what is live when,
what could leave between two uses, and what goes on in the next step, as the step repeats. `step_graph` gives the graph
of a trace, `Uses` are its edges, `step_lists.StepLists` is the same for planners that go through a step op by op.
"""

from functools import cached_property
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from umadvise.errors import BudgetError
from umadvise.records.trace import Access, EventKind, Trace
from umadvise.records.units import format_bytes

NONE = -1
"""In place of a storage or a use: there is none."""
_HOST = (EventKind.HOST_WRITE, EventKind.HOST_READ)


class Uses:
    """Which storages are used at which moments: one row for each pair, by storage and then in time.

    Attributes:
        storage: index of the storage of each row, ascending.
        at: number of the moment of each row, ascending within a storage.
        first: row of each storage's first use, and one entry more: the number of rows.
    """

    def __init__(self, storages: int, moments: int, storage: NDArray[np.int64], at: NDArray[np.int64]) -> None:
        """Collects what happens at one moment to one storage.

        Args:
            storages: number of storages.
            moments: number of moments.
            storage: index of the storage of each thing that happens, in order within its moment.
            at: number of the moment of each thing.
        """
        width = max(moments, 1)
        keys, self._leading, self._row = np.unique(
            storage.astype(np.int64) * width + at, return_index=True, return_inverse=True
        )
        self.storage: NDArray[np.int64] = keys // width
        self.at: NDArray[np.int64] = keys % width
        self.first: NDArray[np.int64] = np.searchsorted(self.storage, np.arange(storages + 1))

    @cached_property
    def used(self) -> NDArray[np.bool_]:
        """Whether each storage has a use."""
        return np.diff(self.first) > 0

    @cached_property
    def inner(self) -> NDArray[np.int64]:
        """Rows whose storage is used again in the step: the next row is that use."""
        return np.flatnonzero(self.storage[1:] == self.storage[:-1])

    def of(self, storage: int) -> NDArray[np.int64]:
        """Moments at which a storage is used, ascending."""
        return self.at[self.first[storage] : self.first[storage + 1]]

    def leading(self, values: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Value of each row: that of the first thing that happens there, given one value a thing."""
        return values[self._leading]

    def any_of(self, values: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether each row has a thing for which the value holds, given one value a thing."""
        result = np.zeros(len(self.storage), bool)
        result[self._row[values]] = True
        return result


class OpUses(Uses):
    """Uses by op.

    A use is an op that touches the storage, or that makes it, or after which the host writes or reads it: no action
    comes between an op and what happens after it. What an op makes and frees within itself (library scratch) is no
    storage that could move: it counts as bytes of its op.

    Attributes:
        accessed: whether the op of each row touches the storage itself.
        written_whole: whether nothing of what was in the storage before is needed.
        writes: whether the storage changes, so that a copy on the host is no longer valid.
    """

    def __init__(self, trace: Trace) -> None:
        """Reads accesses and events."""
        accesses, sizes = trace.accesses, trace.storages.bytes
        rows = np.flatnonzero(np.isin(trace.events.kind, (EventKind.ALLOCATE, *_HOST)) & (trace.events.op >= 0))
        kind, storage, op = (column[rows] for column in (trace.events.kind, trace.events.storage, trace.events.op))
        storages = np.concatenate([accesses.storage, storage])
        super().__init__(len(sizes), len(trace.ops), storages, np.concatenate([accesses.op, op]))
        none, no_event = np.zeros(len(accesses), bool), np.zeros(len(rows), bool)
        born = trace.births[self.storage] == self.at
        by_host = kind == EventKind.HOST_WRITE
        whole = ((accesses.flags & Access.WHOLE) != 0) & (accesses.bytes == sizes[accesses.storage])
        replaces = by_host & (trace.events.bytes[rows] == sizes[storage])
        self.accessed = self.any_of(np.concatenate([~none, no_event]))
        # Of an op's accesses to a storage the first decides, which is what the executor goes by; of what the host does
        # after an op that does not touch the storage too.
        overwritten = self.leading(np.concatenate([whole, replaces]))
        read = self.any_of(np.concatenate([(accesses.flags & Access.READ) != 0, no_event]))
        self.written_whole: NDArray[np.bool_] = born | (overwritten & ~read)
        written = np.concatenate([(accesses.flags & Access.WRITE) != 0, by_host])
        self.writes: NDArray[np.bool_] = born | self.any_of(written)


class StepGraph:
    """The step graph of a trace of one step, which repeats.

    Attributes:
        trace: trace of the step.
        uses: uses of storages by ops.
        transient: whether each storage lives inside one op only.
        heir: index under which each storage's contents go on in the next step; NONE where they end with this one.
        source: index in the step before of each storage that `continues`.
        continues: whether each storage is there when a step begins because it was in the step before.
        host_touched: whether the program itself copies each storage, or the trace has faults for it, besides ops.
    """

    def __init__(self, trace: Trace) -> None:
        """Reads a trace."""
        self.trace = trace
        self.uses = OpUses(trace)
        events = trace.events
        self.host_touched = self._of(~np.isin(events.kind, (EventKind.ALLOCATE, EventKind.FREE)))
        inside = self._of((events.kind == EventKind.FREE) & (events.inside == 1))
        self.transient: NDArray[np.bool_] = inside & (trace.births == trace.deaths)
        self.source = trace.continued_from
        self.continues: NDArray[np.bool_] = self.source >= 0
        self.heir = np.full(len(self.source), NONE, np.int64)
        self.heir[self.source[self.continues]] = np.flatnonzero(self.continues)

    def _of(self, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether each storage is in one of these rows of the events."""
        result = np.zeros(len(self.trace.storages), bool)
        result[self.trace.events.storage[rows]] = True
        return result

    @cached_property
    def host_begins(self) -> NDArray[np.bool_]:
        """Whether the host writes or reads each storage before the first op: so it is on the device when they begin."""
        return self._of(np.isin(self.trace.events.kind, _HOST) & (self.trace.events.op < 0))

    @cached_property
    def program_copies(self) -> NDArray[np.intp]:
        """Rows of the events that are copies which the program makes itself, in every step."""
        events = self.trace.events
        # What the host wrote before a step that repeats is there already.
        return np.flatnonzero(np.isin(events.kind, _HOST) & ((events.op >= 0) | ~self.continues[events.storage]))

    @cached_property
    def scratch_bytes(self) -> NDArray[np.int64]:
        """Bytes of the transient storages of each op."""
        births, sizes = self.trace.births[self.transient], self.trace.storages.bytes[self.transient]
        return np.bincount(births, weights=sizes, minlength=len(self.trace.ops)).astype(np.int64)

    @cached_property
    def bytes_before(self) -> int:
        """Most bytes that are live before the first op."""
        return int(self.trace.live_bytes[self.trace.events.op < 0].max(initial=0))

    @cached_property
    def begin_bytes(self) -> NDArray[np.int64]:
        """Bytes that are live when each op begins."""
        first = np.searchsorted(self.trace.events.op, np.arange(len(self.trace.ops)))
        return np.append(self.trace.live_bytes, 0)[first - 1]

    @cached_property
    def peak_bytes(self) -> NDArray[np.int64]:
        """Most bytes that are live from each op's begin until the next one's."""
        events, result = self.trace.events, self.begin_bytes.copy()
        within = events.op >= 0
        np.maximum.at(result, events.op[within], self.trace.live_bytes[within])
        return result

    def require(self, needed_bytes: int, budget_bytes: int, op: int, what: str) -> None:
        """Refuses a budget that does not hold what an op, or with -1 the beginning of the step, needs.

        Raises:
            BudgetError: it does not; the message says `what` that is.
        """
        if needed_bytes > budget_bytes:
            where = f"op {op} ({self.trace.op(op).name})" if op >= 0 else "the beginning of the step"
            raise BudgetError(
                f"{where} needs {format_bytes(needed_bytes)} {what}; the budget is "
                f"{format_bytes(budget_bytes)}: give more, or make the batch smaller"
            )

    def require_room(self, budget_bytes: int) -> None:
        """Refuses a budget that does not hold the storages that one op uses at once.

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


_KNOWN: WeakValueDictionary[int, StepGraph] = WeakValueDictionary()


def step_graph(trace: Trace) -> StepGraph:
    """The graph of a trace: one and the same for as long as somebody has it, as traces do not change."""
    found = _KNOWN.get(id(trace))  # a graph keeps its trace, so that nothing else has its place meanwhile
    if found is None:
        found = _KNOWN[id(trace)] = StepGraph(trace)
    return found


def sum_over(
    count: int, begin: NDArray[np.int64], end: NDArray[np.int64], amounts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Sum at each place of the amounts of the ranges that it lies in.

    Args:
        count: number of places.
        begin: first place of each range.
        end: place behind each range; at most `count`, and a range that ends before it begins counts negatively.
        amounts: bytes or blocks of each range.
    """
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, begin, amounts)
    np.subtract.at(change, end, amounts)
    result: NDArray[np.int64] = np.cumsum(change[:-1])
    return result
