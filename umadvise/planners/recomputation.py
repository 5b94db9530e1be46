"""What can be made again from what: for planners that drop it in forward, and make it again in backward.

A storage can be made again by its writers' ops, from the first to the last, where these would do to it what they did:
what they read besides is unchanged since, or is made again for as long as they need it. So the range of ops grows to
the left, until it reads nothing that is gone, or until it would leave the storage's segment. Ops that draw random
numbers draw the same again, as with checkpointing in torch; running statistics change again.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import numpy as np

from umadvise.planners.uses import Uses
from umadvise.records.enums import Phase, Role
from umadvise.records.trace import Access, EventKind, Trace

GONE, DEVICE, HOST, DROPPED = range(4)
"""Where contents are: nowhere (before birth, after death, or never read again), there, there, or to be made again."""
Place: TypeAlias = Callable[[int], int]
"""Of each storage, where its contents are."""


@dataclass(frozen=True, slots=True)
class Touch:
    """A row of the trace's accesses, with what it means for running an op again."""

    storage: int
    reads: bool
    writes: bool
    whole: bool


@dataclass(frozen=True, slots=True)
class Rerun:
    """How to make a storage again: ops first..last, with the inputs on the device and so much room besides."""

    first: int
    last: int
    inputs: frozenset[int]
    room_bytes: int
    duration_ns: int


class Step:
    """A trace as lists, for planners that go through it op by op."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.uses = Uses(trace)
        self.sizes: list[int] = trace.storages.bytes.tolist()
        self.births: list[int] = trace.births.tolist()
        self.deaths: list[int] = trace.deaths.tolist()
        self.durations: list[int] = np.maximum(trace.ops.duration_ns, 0).tolist()
        self.transient: list[bool] = self.uses.transient.tolist()
        self.forward: list[bool] = (trace.ops.phase == Phase.FORWARD).tolist()
        self.backward: list[bool] = (trace.ops.phase == Phase.BACKWARD).tolist()
        self.touches: list[list[Touch]] = [[] for _ in range(len(trace.ops))]
        self.touched_by: list[list[int]] = [[] for _ in self.sizes]
        self.written_by: list[list[int]] = [[] for _ in self.sizes]
        self._read_accesses()
        self.made_inside: list[list[int]] = [[] for _ in range(len(trace.ops))]
        self.freed_by: dict[int, list[int]] = {}
        self.host_writes: dict[int, list[int]] = {}  # by storage, ops after which the host writes it
        self.movable = self._read_events()
        self.gaps = self._find_gaps()

    def _read_accesses(self) -> None:
        table = self.trace.accesses
        whole = ((table.flags & Access.WHOLE) != 0) & (table.bytes == self.trace.storages.bytes[table.storage])
        reads = ((table.flags & Access.READ) != 0) & ~whole
        writes = (table.flags & Access.WRITE) != 0
        columns = (table.op.tolist(), table.storage.tolist(), reads.tolist(), writes.tolist(), whole.tolist())
        for op, storage, *flags in zip(*columns, strict=True):
            self.touches[op].append(Touch(storage, *flags))
            self.touched_by[storage].append(op)
            if flags[1]:
                self.written_by[storage].append(op)

    def _read_events(self) -> list[bool]:
        """Reads the events; which storages could leave: intermediate results, of this step, that no host touches."""
        events, storages = self.trace.events, self.trace.storages
        movable = (self.trace.births >= 0) & (self.trace.deaths < len(self.trace.ops)) & (storages.bytes > 0)
        movable &= (storages.role == Role.INTERMEDIATE) & ~self.uses.transient
        columns = (events.kind.tolist(), events.op.tolist(), events.inside.tolist(), events.storage.tolist())
        for kind, op, inside, storage in zip(*columns, strict=True):
            if kind == EventKind.FREE:
                self.freed_by.setdefault(op, []).append(storage)
            elif kind != EventKind.ALLOCATE:
                movable[storage] = False
                if kind == EventKind.HOST_WRITE:
                    self.written_by[storage].append(op)
                    self.host_writes.setdefault(storage, []).append(op)
            elif inside:
                self.made_inside[op].append(storage)
        for writers in self.written_by:
            writers.sort()
        result: list[bool] = movable.tolist()
        return result

    def _find_gaps(self) -> dict[int, tuple[int, int]]:
        """Of what could leave: the last use in forward, and the first in backward, where there are both."""
        uses = self.uses
        forward, backward = np.array(self.forward, bool), np.array(self.backward, bool)
        rows = np.flatnonzero(uses.storage[:-1] == uses.storage[1:])
        rows = rows[forward[uses.op[rows]] & backward[uses.op[rows + 1]]]
        gaps: dict[int, tuple[int, int]] = {}
        for storage, last, following in zip(
            uses.storage[rows].tolist(), uses.op[rows].tolist(), uses.op[rows + 1].tolist(), strict=True
        ):
            if self.movable[storage]:
                gaps.setdefault(storage, (last, following))
        return gaps

    def last_write(self, storage: int, before_op: int) -> int:
        """The last op before this one that wrote the storage; -1: none did."""
        writers = self.written_by[storage]
        row = bisect_left(writers, before_op)
        return writers[row - 1] if row else -1

    def needs_contents(self, op: int, storage: int) -> bool:
        """Whether an op that uses the storage needs what was in it."""
        for touch in self.touches[op]:
            if touch.storage == storage:
                return not touch.whole
        return False


@dataclass
class Segments:
    """What is dropped in forward, and how it is made again in backward.

    Attributes:
        of: of each storage that is dropped, its segment: what is between two checkpoints.
        first_op: of each segment; ops before it do not run again for it.
        speed_centric: of each segment: all of it is made again at once, and stays (SuperNeurons, section 3.4). Else
            each op in backward has what it needs made, and leaves none of it behind: less memory, more work.
    """

    of: dict[int, int]
    first_op: Sequence[int]
    speed_centric: list[bool]

    def __post_init__(self) -> None:
        self.members: dict[int, list[int]] = {}
        for storage in sorted(self.of):
            self.members.setdefault(self.of[storage], []).append(storage)


class _Range:
    """Ops first..last, as they would run again: who is read from the device, who is borrowed, how much room."""

    def __init__(self, step: Step, target: int, at_op: int, place: Place, segments: Segments) -> None:
        self.step = step
        self.target = target
        self.at_op = at_op
        self.place = place
        self.segment = segments.of[target]
        self.first_op = segments.first_op[self.segment]
        self.of = segments.of

    def find(self) -> Rerun | None:
        last = self.step.last_write(self.target, self.at_op)
        first = self.step.touched_by[self.target][0] if self.step.touched_by[self.target] else last + 1
        while self.first_op <= first <= last:
            self.inputs: set[int] = set()
            self.borrowed: dict[int, tuple[int, int]] = {}
            earlier = self._follow(first, last)
            if earlier == first:
                return None if self._host_writes(first, last) else self._rerun(first, last)
            first = earlier
        return None

    def _host_writes(self, first: int, last: int) -> bool:
        """Whether the host writes something of theirs while they run: that would not be written again."""
        touched = self.inputs | self.borrowed.keys()
        return any(first <= op <= last for each in touched for op in self.step.host_writes.get(each, ()))

    def _lost(self, storage: int) -> bool:
        place = self.place(storage)
        return place == GONE or (place == DROPPED and self.of[storage] == self.segment)

    def _follow(self, first: int, last: int) -> int:
        """Where the range has to begin at least: at `first` if it can as it is; -1: nowhere."""
        for op in range(first, last + 1):
            for touch in self.step.touches[op]:
                storage = touch.storage
                if storage in self.borrowed:
                    self.borrowed[storage] = (self.borrowed[storage][0], op)
                elif storage == self.target:
                    if touch.reads and op == self.step.touched_by[storage][0]:
                        return -1
                elif storage not in self.inputs:
                    begin = self._first_touch(op, touch, first, last)
                    if begin != first:
                        return begin
            for storage in self.step.made_inside[op]:
                if self._lost(storage) and storage not in (self.target, *self.borrowed):
                    self.borrowed[storage] = (op, op)
        return first

    def _first_touch(self, op: int, touch: Touch, first: int, last: int) -> int:
        storage, step = touch.storage, self.step
        written = step.last_write(storage, self.at_op)
        from_scratch = touch.whole or (not touch.reads and step.written_by[storage][0] >= op)
        if self._lost(storage) or (self.place(storage) == DROPPED and not touch.reads):
            if from_scratch:
                self.borrowed[storage] = (op, op)
                return first
            return self._begin_of(storage, first)
        # On the device: what the range writes there has to be what is there, and what it reads what was there.
        self.inputs.add(storage)
        if written > last:
            return -1
        running_statistics = step.births[storage] < 0 and written == op
        if written < op or from_scratch or running_statistics:
            return first
        return self._begin_of(storage, first)

    def _begin_of(self, storage: int, first: int) -> int:
        begin = self.step.touched_by[storage][0]
        return begin if begin < first else -1

    def _rerun(self, first: int, last: int) -> Rerun:
        step = self.step
        room = [0] * (last - first + 2)
        room[step.touched_by[self.target][0] - first] = step.sizes[self.target]
        for storage, (begin, end) in self.borrowed.items():
            room[begin - first] += step.sizes[storage]
            room[end - first + 1] -= step.sizes[storage]
        duration_ns = sum(step.durations[first : last + 1])
        return Rerun(first, last, frozenset(self.inputs), max(accumulate(room)), duration_ns)


def find_rerun(step: Step, storage: int, at_op: int, place: Place, segments: Segments) -> Rerun | None:
    """How to make a storage again before an op, with contents where `place` says; None where it cannot be."""
    return _Range(step, storage, at_op, place, segments).find()


def recomputable(step: Step, wanted: dict[int, int], first_op: Sequence[int]) -> dict[int, int]:
    """Of what should be dropped in its gap, what can be made again when that ends; each with its segment.

    An op that runs again gives back one storage. What it made besides is dropped too only if it is as large as an
    eighth of the largest (a dropout's mask; not a normalisation's statistics).
    """
    largest: dict[int, int] = {}
    for storage in wanted:
        op = step.births[storage]
        largest[op] = max(largest.get(op, 0), step.sizes[storage])
    chosen = {each: segment for each, segment in wanted.items() if step.sizes[each] * 8 >= largest[step.births[each]]}
    segments = Segments(chosen, first_op, [])
    for storage in sorted(chosen):
        at_op = step.gaps[storage][1]

        def place(each: int, at_op: int = at_op) -> int:
            # What is dropped too, and lives, is there again by then, or the range grows over it.
            return DEVICE if step.births[each] < at_op <= step.deaths[each] else GONE

        if find_rerun(step, storage, at_op, place, segments) is None:
            del chosen[storage]
    return chosen
