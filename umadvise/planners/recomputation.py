"""Which storages can be made again by running ops again, for planners that drop them in forward and need them later.

A storage can be made again by its writers' ops, from the first to the last, where these would do to it what they did:
what they read besides is unchanged since, or is made again for as long as they need it. So the range of ops grows to
the left, until it reads nothing that is gone, or until it would leave the storage's segment. Ops that draw random
numbers draw the same again, as with checkpointing in torch; running statistics change again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from umadvise.planners.step_lists import StepLists, Touch

GONE, DEVICE, HOST, DROPPED = range(4)
"""Where contents are: nowhere (not yet, or no longer), on the device, on the host, or dropped, to be made again."""
Place: TypeAlias = Callable[[int], int]
"""A function that says for a storage's index where its contents are: GONE, DEVICE, HOST or DROPPED."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """How to make a storage again: run ops first..last, with `inputs` on the device and `room_bytes` free besides."""

    first: int
    last: int
    inputs: frozenset[int]
    room_bytes: int
    duration_ns: int


@dataclass
class Segments:
    """What is dropped in forward, and how it is made again in backward.

    Attributes:
        of: segment of each storage that is dropped, by storage; a segment lies between two checkpoints.
        first_op: first op of each segment; no earlier op runs again for it.
        speed_centric: whether each segment is made again whole at its first use, and stays (SuperNeurons, section 3.4);
            else each op in backward has what it needs made, and leaves none of it behind: less memory, more work.
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

    def __init__(self, step: StepLists, target: int, at_op: int, place: Place, segments: Segments) -> None:
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
                possible = self._may_run(first, last) and not self._host_writes(first, last)
                return self._rerun(first, last) if possible else None
            first = earlier
        return None

    def _may_run(self, first: int, last: int) -> bool:
        """Whether the ops among them that make what is gone may run again; of the others nothing is wanted."""
        step, made = self.step, {self.target, *self.borrowed}
        return all(
            step.repeatable[op] or not any(touch.writes and touch.storage in made for touch in step.touches[op])
            for op in range(first, last + 1)
        )

    def _host_writes(self, first: int, last: int) -> bool:
        """Whether the host writes something of theirs while they run: that would not be written again."""
        touched = self.inputs | self.borrowed.keys()
        return any(first <= op <= last for each in touched for op in self.step.host_writes[each])

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
        made = {**self.borrowed, self.target: (step.touched_by[self.target][0], last)}
        room_bytes = most_bytes(first, last, made, step.sizes)
        return Rerun(first, last, frozenset(self.inputs), room_bytes, sum(step.durations[first : last + 1]))


def most_bytes(first: int, last: int, borrowed: Mapping[int, Sequence[int]], sizes: Sequence[int]) -> int:
    """Most bytes at once of storages that are each there from one of the ops first..last to another."""
    room = [0] * (last - first + 2)
    for storage, (begin, end) in borrowed.items():
        room[begin - first] += sizes[storage]
        room[end - first + 1] -= sizes[storage]
    return max(accumulate(room))


def find_rerun(step: StepLists, storage: int, at_op: int, place: Place, segments: Segments) -> Rerun | None:
    """How to make a storage again before an op, with contents where `place` says; None where it cannot be."""
    return _Range(step, storage, at_op, place, segments).find()


def unless_gone(step: StepLists, at_op: int) -> Place:
    """Where contents are before an op when all that lives is on the device: what is dropped has been made again."""
    return lambda each: DEVICE if step.births[each] < at_op <= step.deaths[each] else GONE


def recomputable(step: StepLists, wanted: dict[int, int], first_op: Sequence[int]) -> dict[int, int]:
    """Of storages that are to be dropped in their gaps, those that can be made again when these end, by segment.

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
        # What is dropped too, and lives, is there again by then, or the range grows over it.
        if find_rerun(step, storage, at_op, unless_gone(step, at_op), segments) is None:
            del chosen[storage]
    return chosen
