"""What every op of a step reads, with and without a plan: an executor of contents, without memory and without a clock.

Contents are named after the op that wrote them and what that had read. Swaps move them and change nothing.
"""

from collections.abc import Hashable, Iterable

from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Access, EventKind, Trace

Contents = dict[int, Hashable]


def reads(trace: Trace, plan: Plan | None) -> list[list[Hashable]]:
    """What each op reads, and then the host after it.

    What is there before the step is all one: running statistics change again with what runs again.
    """
    return _Replay(trace).run(plan or ())


class _Replay:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.rows = [trace.op(op).accesses for op in range(len(trace.ops))]
        self.events: list[list[tuple[int, int, int]]] = [[] for _ in self.rows]
        events = trace.events
        columns = (events.op, events.kind, events.storage, events.bytes)
        for op, *what in zip(*(column.tolist() for column in columns), strict=True):
            if op >= 0:
                self.events[op].append((what[0], what[1], what[2]))
        before = [storage for storage, birth in enumerate(trace.births.tolist()) if birth < 0]
        self.contents: Contents = dict.fromkeys(before, "before")
        self.before: dict[tuple[int, Hashable], Hashable] = {}  # of an op's own writes, by what they left

    def run(self, plan: Iterable[Action]) -> list[list[Hashable]]:
        actions: dict[tuple[int, bool], list[Action]] = {}
        for action in plan:
            actions.setdefault((action.op, action.after), []).append(action)
        seen = []
        for op in range(len(self.rows)):
            for action in actions.get((op, False), ()):
                self.act(action)
            seen.append(self.execute(op) + self.host(op))
            for action in actions.get((op, True), ()):
                self.act(action)
        return seen

    def execute(self, op: int) -> list[Hashable]:
        rows, held = self.rows[op], self.contents
        read: list[Hashable] = []
        own: set[int] = set()  # what the op has written whole, and may read then
        for row in rows:
            if row.flags & Access.WHOLE:
                own.add(row.storage)
            elif row.storage not in own:
                read.append(self.rest(op, row.storage, row.flags))
        for row in rows:
            if self.trace.births[row.storage] < 0:
                if row.flags & Access.WHOLE and row.bytes == self.trace.storages.bytes[row.storage]:
                    held[row.storage] = "before"
            elif row.flags & Access.WRITE:
                part = () if row.flags & Access.WHOLE else self.rest(op, row.storage, row.flags)
                held[row.storage] = hash((op, row.storage, row.offset_bytes, part, tuple(read)))
                self.before[op, held[row.storage]] = part
        return read

    def rest(self, op: int, storage: int, flags: int) -> Hashable:
        """What an op finds in a storage; where it only writes again what it has written, what was there before."""
        contents = self.contents.get(storage, "lost")
        return contents if flags & Access.READ else self.before.get((op, contents), contents)

    def host(self, op: int) -> list[Hashable]:
        read: list[Hashable] = []
        for kind, storage, bytes_ in self.events[op]:
            whole = bytes_ == self.trace.storages.bytes[storage]
            if kind == EventKind.HOST_READ:
                read.append(self.contents.get(storage, "lost"))
            elif kind == EventKind.HOST_WRITE and self.trace.births[storage] < 0:
                self.contents[storage] = "before" if whole else self.contents.get(storage, "lost")
            elif kind == EventKind.HOST_WRITE:
                self.contents[storage] = hash(("host", op, storage, None if whole else self.contents.get(storage)))
            elif kind == EventKind.FREE:
                self.contents.pop(storage, None)
        return read

    def act(self, action: Action) -> None:
        if action.kind is ActionKind.DROP:
            self.contents.pop(action.storage, None)
        if action.kind is ActionKind.RECOMPUTE:
            writers = [op for op in range(action.op) if self.writes(op, action.storage)]
            there = set(self.contents)
            for op in range(action.argument, writers[-1] + 1):
                self.execute(op)
            for storage in set(self.contents) - there - {action.storage}:
                del self.contents[storage]

    def writes(self, op: int, storage: int) -> bool:
        return any(row.storage == storage and row.flags & Access.WRITE for row in self.rows[op])
