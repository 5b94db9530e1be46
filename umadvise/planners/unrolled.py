"""Makes of a step and its recomputations a step with more ops, so that swaps can be planned around all of them alike.

What a plan drops ends there; what it makes again is a storage of its own, made by an op that stands before the one that
needs it and lasts as long as all that run again. The rules are the simulator's (csrc/replay/swap_recompute.cpp):
what these ops make besides takes room as long as they need it, and what they write that is still there has to be there.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from umadvise.planners.recomputation import most_bytes
from umadvise.recording.tables import rows
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Access, Accesses, EventKind, Events, Trace

_ALL = int(Access.WRITE | Access.WHOLE)
_AGAIN = int(Access.READ | Access.WRITE | Access.IN_PLACE)
"""What an op that runs again does to what is there: the same contents again, so that they are needed."""
_BEFORE, _RECOMPUTE, _AFTER, _DROP = range(4)
"""Order of actions at one op of an unrolled step."""


@dataclass(frozen=True, eq=False)
class Unrolled:
    """A step with its recomputations as ops.

    Attributes:
        trace: the step with recomputations as ops.
        original: the step without them.
        storage: index in `original` of each storage; -1 for one that stands for the scratch of a recomputation.
        op: index in `original` of each op; for a recomputation that of the op before which it happens.
        again: whether each op is a recomputation.
        actions: drops and recomputations, each with the op of `trace` after which it happens, or which it is.
    """

    trace: Trace
    original: Trace
    storage: list[int]
    op: list[int]
    again: list[bool]
    actions: list[tuple[int, Action]]

    def plan(self, plan: Plan) -> Plan:
        """The plan of the original step: a plan of `trace`, which swaps, with the recomputations.

        Raises:
            ValueError: the actions cannot be executed; see `plan.check`.
        """
        ordered = []
        for op, action in self.actions:
            side = _RECOMPUTE if action.kind == ActionKind.RECOMPUTE else _DROP
            ordered.append((op, side, action.kind, action.storage, action.argument))
        for each in plan:
            side = _AFTER if each.after else _BEFORE
            ordered.append((each.op, side, each.kind, self.storage[each.storage], each.argument))
        ordered.sort(key=lambda row: row[:2])
        actions = [
            Action(kind, self.op[op], storage, after=side in (_AFTER, _DROP) and not self.again[op], argument=argument)
            for op, side, kind, storage, argument in ordered
        ]
        return Plan.from_actions(self.original, actions, plan.planner, plan.budget_bytes, plan.options)


def unroll(trace: Trace, actions: Iterable[Action]) -> Unrolled:
    """The step with the recomputations of a plan; its swaps are left out, and its drops where nothing is made again.

    Raises:
        ValueError: what has been dropped is used and not made again.
    """
    builder = _Builder(trace, actions)
    builder.build()
    return builder.unrolled()


class _Builder:
    """One walk over the step."""

    def __init__(self, trace: Trace, actions: Iterable[Action]) -> None:
        self.trace = trace
        self.given: dict[tuple[int, bool], list[Action]] = {}
        kept = [each for each in actions if each.kind in (ActionKind.DROP, ActionKind.RECOMPUTE)]
        remade = {each.storage for each in kept if each.kind == ActionKind.RECOMPUTE}
        for each in kept:
            if each.storage in remade:
                self.given.setdefault((each.op, each.after), []).append(each)
        table, events = trace.accesses, trace.events
        self.accesses = _rows(table.storage, table.offset_bytes, table.bytes, table.flags)
        self.first_access: list[int] = trace.first_access.tolist()
        self.events = _rows(events.kind, events.inside, events.storage, events.offset_bytes, events.bytes)
        self.first_event: list[int] = np.searchsorted(events.op, np.arange(-1, len(trace.ops) + 1)).tolist()
        self.duration_ns: list[int] = trace.ops.duration_ns.tolist()
        self.bytes: list[int] = trace.storages.bytes.tolist()
        count = len(trace.storages)
        self.storage = list(range(count))
        self.now = self.storage.copy()  # what each storage of the original is called
        self.alive = [False] * count
        self.last_writer = [-1] * count
        self.dropped: set[int] = set()
        self.source: list[int] = []  # of each op, the row of the original with its name
        self.lasts_ns: list[int] = []
        self.op: list[int] = []
        self.again: list[bool] = []
        self.new_accesses: list[tuple[int, ...]] = []
        self.new_events: list[tuple[int, ...]] = []
        self.actions: list[tuple[int, Action]] = []

    def build(self) -> None:
        """Walks."""
        self._events(-1, -1)
        for op in range(len(self.trace.ops)):
            for action in self.given.get((op, False), ()):
                if action.kind == ActionKind.DROP:
                    self._drop(action)
                elif action.storage in self.dropped:
                    self._recompute(action)
            new = self._begin(op, op, self.duration_ns[op], again=False)
            for storage, *rest, flags in self._touches(op):
                if storage in self.dropped:
                    raise ValueError(f"op {op} uses storage {storage}, which is dropped and not made again before")
                self.new_accesses.append((new, self.now[storage], *rest, flags))
                if flags & Access.WRITE:
                    self.last_writer[storage] = op
            self._events(op, new)
            for action in self.given.get((op, True), ()):
                if action.kind == ActionKind.DROP:
                    self._drop(action)

    def _begin(self, source: int, op: int, lasts_ns: int, *, again: bool) -> int:
        self.source.append(source)
        self.op.append(op)
        self.lasts_ns.append(lasts_ns)
        self.again.append(again)
        return len(self.op) - 1

    def _touches(self, op: int) -> list[tuple[int, ...]]:
        return self.accesses[self.first_access[op] : self.first_access[op + 1]]

    def _events_of(self, op: int) -> list[tuple[int, ...]]:
        return self.events[self.first_event[op + 1] : self.first_event[op + 2]]

    def _events(self, op: int, new: int) -> None:
        for kind, inside, storage, *rest in self._events_of(op):
            if kind == EventKind.ALLOCATE:
                self.alive[storage] = True
            elif kind == EventKind.FREE:
                self.alive[storage] = False
                if storage in self.dropped:
                    self.dropped.remove(storage)
                    continue
            elif kind == EventKind.HOST_WRITE:
                self.last_writer[storage] = op
            self.new_events.append((kind, new, inside, self.now[storage], *rest))

    def _drop(self, action: Action) -> None:
        storage = action.storage
        if not self.alive[storage] or storage in self.dropped:
            return
        self.dropped.add(storage)
        self.new_events.append((EventKind.FREE, len(self.op) - 1, 0, self.now[storage], 0, 0))
        self.actions.append((len(self.op) - 1, action))

    def _recompute(self, action: Action) -> None:
        """An op for all that run again: what it needs, what it makes, and the most room that it takes besides."""
        target, first, last = action.storage, action.argument, self.last_writer[action.storage]
        new = self._begin(last, action.op, sum(max(each, 0) for each in self.duration_ns[first : last + 1]), again=True)
        self.actions.append((new, action))
        needed: dict[int, int] = {}
        borrowed: dict[int, list[int]] = {}
        for op in range(first, last + 1):
            for storage, _, _, flags in self._touches(op):
                if storage == target:
                    continue
                if self.alive[storage] and storage not in self.dropped:
                    needed[storage] = needed.get(storage, 0) | flags & Access.WRITE
                else:
                    borrowed.setdefault(storage, [op, op])[1] = op
            for kind, inside, storage, *_ in self._events_of(op):
                if kind == EventKind.ALLOCATE and inside and storage != target and not self.alive[storage]:
                    borrowed.setdefault(storage, [op, op])
        for storage, writes in needed.items():
            flags = _AGAIN if writes else int(Access.READ)
            self.new_accesses.append((new, self.now[storage], 0, self.bytes[storage], flags))
        self.dropped.remove(target)
        self.now[target] = self._made(new, target, self.bytes[target])
        self.new_accesses.append((new, self.now[target], 0, self.bytes[target], _ALL))
        if borrowed:
            scratch = self._made(new, -1, most_bytes(first, last, borrowed, self.bytes))
            self.new_events.append((EventKind.FREE, new, 1, scratch, 0, 0))

    def _made(self, op: int, storage: int, bytes_: int) -> int:
        new = len(self.storage)
        self.storage.append(storage)
        self.bytes.append(bytes_)
        self.new_events.append((EventKind.ALLOCATE, op, 1, new, 0, 0))
        return new

    def unrolled(self) -> Unrolled:
        """What was built."""
        trace, count = self.trace, len(self.trace.storages)
        successor = np.full(len(self.storage), -1)
        successor[:count] = trace.storages.successor
        events = np.array(self.new_events, np.int64).reshape(-1, 6)
        events = events[np.lexsort((-events[:, 2], events[:, 1]))]  # what is inside an op comes before what is after it
        of_events: Any = events.T
        of_accesses: Any = np.array(self.new_accesses, np.int64).reshape(-1, 5).T
        original = np.maximum(np.array(self.storage, np.int64), 0)
        source = np.array(self.source, np.int64)
        built = replace(
            trace,
            storages=rows(trace.storages, original, bytes=np.array(self.bytes), successor=successor),
            ops=rows(trace.ops, source, duration_ns=np.array(self.lasts_ns)),
            accesses=Accesses(*of_accesses),
            events=Events(*of_events),
        )
        return Unrolled(built, trace, self.storage, self.op, self.again, self.actions)


def _rows(*columns: Any) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))
