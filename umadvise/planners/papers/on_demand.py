"""The planners `belady` and `lru`, which evict only when room is needed.

`belady` evicts what is used again furthest ahead (Belady 1966), `lru` what was used longest ago.

Nothing is brought before it is needed: an op that finds something on the host waits for it. Who leaves is what differs.
A storage whose copy on the host is still valid, or that the next op to use it overwrites, leaves without a copy. The
step ends as it began: what was on the device is there again, and nothing else of what the next one finds.
"""

import heapq
from collections.abc import Callable, Iterator

import numpy as np

from umadvise.planners.step_lists import StepLists
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Trace

NEVER = 2**62
"""The op of a next use that does not come."""


def belady(trace: Trace, _device: DeviceProfile, budget_bytes: int) -> Plan:
    """What is used again furthest ahead leaves first: the fewest swaps possible where storages have one size.

    Raises:
        BudgetError: one op uses more than the budget.
    """
    return _plan("belady", trace, budget_bytes, lambda _last, following: -following)


def lru(trace: Trace, _device: DeviceProfile, budget_bytes: int) -> Plan:
    """What has been used least recently leaves first.

    Raises:
        BudgetError: one op uses more than the budget.
    """
    return _plan("lru", trace, budget_bytes, lambda last, _following: last)


Rank = Callable[[int, int], int]
"""A function of the ops that used a storage last and will use it next: what has the least rank leaves first."""


def _plan(name: str, trace: Trace, budget_bytes: int, rank: Rank) -> Plan:
    step = StepLists(trace)
    step.graph.require_room(budget_bytes)
    # What is where when the step begins is what the step before left there: the first pass finds that out.
    there = frozenset(np.flatnonzero(trace.births < 0).tolist())
    for _ in range(2):
        run = _Run(step, budget_bytes, rank, there)
        run.execute()
        there = frozenset(run.carried_over())
    run.end_as_it_began()
    return Plan.from_actions(trace, run.actions, planner=name, budget_bytes=budget_bytes)


class _Run:
    """One step: what is on the device, and what must move before each op."""

    def __init__(self, step: StepLists, budget_bytes: int, rank: Rank, there: frozenset[int]) -> None:
        self.step, self.trace, self.uses = step, step.trace, step.graph.uses
        self.budget_bytes = budget_bytes
        self.rank = rank
        self.actions: list[Action] = []
        self.sizes = step.sizes
        self.present: set[int] = set()
        self.used_bytes = 0
        self.cursor: list[int] = self.uses.first[:-1].tolist()
        self.ends: list[int] = self.uses.first[1:].tolist()
        self.use_ops: list[int] = self.uses.at.tolist()
        self.last_use = dict.fromkeys(there, -1)
        self.order: list[tuple[int, int]] = []  # a heap of ranks, with entries that are out of date
        self.begins_on_host = self.trace.births < 0
        before = np.flatnonzero(self.begins_on_host).tolist()
        stays = {each for each in before if not self.uses.used[each]}
        for storage in sorted(stays):  # without a rank: nothing could bring it back
            self.present.add(storage)
            self.used_bytes += self.sizes[storage]
        first = [each for each in before if step.graph.host_begins[each] and each not in stays]
        for storage in first:
            self._enter(storage)
        self._require(self.used_bytes, -1)
        for storage in sorted(there - stays - {*first}):
            if self.used_bytes + self.sizes[storage] <= budget_bytes:
                self._enter(storage)
        self.begins_on_host[list(self.present)] = False
        self.began_with = frozenset(self.present - stays)

    def _require(self, needed_bytes: int, op: int) -> None:
        self.step.graph.require(needed_bytes, self.budget_bytes, op, "at once with what no op uses")

    def execute(self) -> None:
        """Runs the step."""
        scratch_bytes = self.step.graph.scratch_bytes.tolist()
        for storage in self.step.freed_by[-1]:
            self._leave(storage)
        for op, needed in enumerate(self.step.needed):
            self._before(op, needed, scratch_bytes[op])
            for storage in self.step.freed_by[op]:
                self._leave(storage)

    def _before(self, op: int, needed: list[int], scratch_bytes: int) -> None:
        missing = [storage for storage in needed if storage not in self.present]
        room_bytes = scratch_bytes + sum(self.sizes[storage] for storage in missing)
        self._make_room(op, room_bytes, frozenset(needed))
        for storage in missing:
            # Where the step begins, what no action brings is on the device already.
            if self.begins_on_host[storage] or not self.uses.written_whole[self.cursor[storage]]:
                self.actions.append(Action(ActionKind.SWAP_IN, op, storage))
                self.begins_on_host[storage] = False
            self._enter(storage)
        for storage in needed:
            self.cursor[storage] += 1
            self.last_use[storage] = op
            self._rank(storage)

    def _make_room(self, op: int, bytes_: int, kept: frozenset[int]) -> None:
        held = []
        while self.used_bytes + bytes_ > self.budget_bytes:
            if not self.order:
                self._require(self.used_bytes + bytes_, op)
            rank, storage = heapq.heappop(self.order)
            if storage not in self.present or rank != self._rank_of(storage):
                continue
            if storage in kept:
                held.append((rank, storage))
                continue
            self._evict(op, storage)
        for entry in held:
            heapq.heappush(self.order, entry)

    def _evict(self, op: int, storage: int) -> None:
        use = self.cursor[storage]
        comes_again = use < self.ends[storage]
        # Where the host's copy is still valid a swap-out copies nothing.
        overwritten = comes_again and self.uses.written_whole[use]
        self.actions.append(Action(ActionKind.DROP if overwritten else ActionKind.SWAP_OUT, op, storage))
        self._leave(storage)

    def _enter(self, storage: int) -> None:
        self.present.add(storage)
        self.used_bytes += self.sizes[storage]
        self._rank(storage)

    def _leave(self, storage: int) -> None:
        if storage in self.present:
            self.present.remove(storage)
            self.used_bytes -= self.sizes[storage]

    def _rank(self, storage: int) -> None:
        heapq.heappush(self.order, (self._rank_of(storage), storage))

    def _rank_of(self, storage: int) -> int:
        use = self.cursor[storage]
        following = self.use_ops[use] if use < self.ends[storage] else NEVER
        return self.rank(self.last_use.get(storage, -1), following)

    def carried_over(self) -> set[int]:
        """What the next step finds on the device when it begins."""
        return {begins for begins, ends in self._continued() if ends in self.present}

    def end_as_it_began(self) -> None:
        """Moves what the next step would find elsewhere than this one did."""
        last = len(self.trace.ops) - 1
        moves: list[Action] = []
        for begins, ends in self._continued():
            if not self.uses.used[begins]:
                continue
            if ends in self.present and begins not in self.began_with:
                moves.insert(0, Action(ActionKind.SWAP_OUT, last, ends, after=True))
            if ends not in self.present and begins in self.began_with:
                moves.append(Action(ActionKind.SWAP_IN, last, ends, after=True))
        self.actions += moves

    def _continued(self) -> Iterator[tuple[int, int]]:
        """Of what is there when a step begins and when it ends, the storage that it is at either."""
        begins = np.flatnonzero(self.step.graph.continues)
        return zip(begins.tolist(), self.step.graph.source[begins].tolist(), strict=True)
