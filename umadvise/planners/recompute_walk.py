"""A step within a budget that drops what it can make again, and swaps what was used longest ago.

What is dropped is made again before the op in backward that needs it; what has been swapped out comes back on demand.
"""

from dataclasses import dataclass, field

from umadvise.errors import BudgetError
from umadvise.planners.recomputation import DEVICE, DROPPED, GONE, HOST, Segments, find_rerun
from umadvise.planners.step_lists import StepLists
from umadvise.records.plan import Action, ActionKind
from umadvise.records.units import format_bytes


class LostError(Exception):
    """What was dropped cannot be made again where it is needed."""

    def __init__(self, storage: int) -> None:
        super().__init__(storage)
        self.storage = storage


@dataclass
class Walk:
    """Goes through a step within a budget, op by op, and collects the actions of its plan.

    Attributes:
        step: the step that is walked through.
        segments: storages that are dropped, and how they are made again.
        budget_bytes: bytes that tensors may take on the device.
        swappable: storages that may leave for the host when there is no room, the least recently used first.
        liveness: whether a storage leaves with its last use, and not only when the program frees it.
        actions: actions of the plan, once `run` has returned.
        peak_bytes: most bytes on the device at any op, or while an op runs again.
        recompute_ns: total nanoseconds of the ops that run again.
    """

    step: StepLists
    segments: Segments
    budget_bytes: int
    swappable: frozenset[int] = frozenset()
    liveness: bool = False
    actions: list[Action] = field(default_factory=list)
    peak_bytes: int = 0
    recompute_ns: int = 0

    def run(self) -> "Walk":
        """Goes through the step once; returns itself, with the actions that it found.

        Raises:
            BudgetError: it does not fit.
            LostError: something cannot be made again.
        """
        step = self.step
        self._used_bytes = sum(size for size, birth in zip(step.sizes, step.births, strict=True) if birth < 0)
        self._places = [DEVICE if birth < 0 else GONE for birth in step.births]
        self._recent: dict[int, None] = {}
        uses = step.graph.uses
        self._next_use: list[int] = uses.first[:-1].tolist()
        self._uses, self._ends = uses.at.tolist(), uses.first[1:].tolist()
        self._require(-1, 0, frozenset())
        self._end_lives(-1)
        scratch_bytes = step.graph.scratch_bytes.tolist()
        for op, needed in enumerate(step.needed):
            self._before(op, needed, scratch_bytes[op])
            self._end_lives(op)
            for storage in needed:
                self._after(op, storage)
        return self

    def _before(self, op: int, needed: list[int], scratch_bytes: int) -> None:
        step, places = self.step, self._places
        locked = frozenset(needed)
        for storage in needed:
            if places[storage] == DROPPED and step.needs_contents(op, storage):
                self._make_again(op, storage, locked)
        absent = [storage for storage in needed if places[storage] != DEVICE]
        self._require(op, scratch_bytes + sum(step.sizes[each] for each in absent), locked)
        for storage in absent:
            if places[storage] == HOST and step.needs_contents(op, storage):
                self.actions.append(Action(ActionKind.SWAP_IN, op, storage))
            self._enter(storage)
        for storage in needed:
            self._next_use[storage] += 1
            if storage in self._recent:
                del self._recent[storage]
            if storage in self.swappable:
                self._recent[storage] = None

    def _after(self, op: int, storage: int) -> None:
        """Drops what is not needed for a while, or never again."""
        step = self.step
        if self._places[storage] != DEVICE or not step.movable[storage]:
            return
        if self._next_use[storage] == self._ends[storage]:
            if self.liveness:
                self._leave(storage, GONE)
                self.actions.append(Action(ActionKind.DROP, op, storage, after=True))
            return
        if storage not in self.segments.of:
            return
        last, following = step.gaps[storage]
        again = op >= following and step.written_by[storage][-1] <= last
        if op == last or (again and not self.segments.speed_centric[self.segments.of[storage]]):
            self._leave(storage, DROPPED)
            self.actions.append(Action(ActionKind.DROP, op, storage, after=True))

    def _make_again(self, op: int, storage: int, locked: frozenset[int]) -> None:
        """All of its segment, in the order in which forward made it; or only what is needed now."""
        segment = self.segments.of[storage]
        if self.segments.speed_centric[segment]:
            for each in self.segments.members[segment]:
                comes_again = self._next_use[each] < self._ends[each]
                if self._places[each] != DROPPED or not comes_again:
                    continue
                if self.step.needs_contents(self._uses[self._next_use[each]], each):
                    self._recompute(op, each, locked, required=each in locked)
        if self._places[storage] == DROPPED:
            self._recompute(op, storage, locked, required=True)

    def _recompute(self, op: int, storage: int, locked: frozenset[int], *, required: bool) -> None:
        rerun = find_rerun(self.step, storage, op, self._places.__getitem__, self.segments)
        if rerun is None:
            if required:
                raise LostError(storage)
            return
        locked |= rerun.inputs
        for each in sorted(rerun.inputs):
            if self._places[each] == DROPPED:
                self._recompute(op, each, locked, required=True)
        arriving = [each for each in sorted(rerun.inputs) if self._places[each] == HOST]
        arriving_bytes = sum(self.step.sizes[each] for each in arriving)
        self._require(op, arriving_bytes + rerun.room_bytes, locked)
        for each in arriving:
            self.actions.append(Action(ActionKind.SWAP_IN, op, each))
            self._enter(each)
        self.actions.append(Action(ActionKind.RECOMPUTE, op, storage, argument=rerun.first))
        self._enter(storage)
        self.recompute_ns += rerun.duration_ns

    def _require(self, op: int, bytes_: int, locked: frozenset[int]) -> None:
        """Makes room; what has been used longest ago leaves first."""
        for storage in [*self._recent] if self._used_bytes + bytes_ > self.budget_bytes else ():
            if self._used_bytes + bytes_ <= self.budget_bytes:
                break
            if storage not in locked:
                self._evict(op, storage)
        if self._used_bytes + bytes_ > self.budget_bytes:
            raise BudgetError(
                f"op {op} needs {format_bytes(self._used_bytes + bytes_)} with what this planner never moves: it keeps "
                f"no budget of {format_bytes(self.budget_bytes)}; give at least that, or make the batch smaller"
            )
        self.peak_bytes = max(self.peak_bytes, self._used_bytes + bytes_)

    def _evict(self, op: int, storage: int) -> None:
        use = self._next_use[storage]
        wanted = use < self._ends[storage] and self.step.needs_contents(self._uses[use], storage)
        # Where the host's copy is still valid a swap-out copies nothing.
        self.actions.append(Action(ActionKind.SWAP_OUT if wanted else ActionKind.DROP, op, storage))
        self._leave(storage, HOST if wanted else GONE)

    def _enter(self, storage: int) -> None:
        if self._places[storage] != DEVICE:
            self._places[storage] = DEVICE
            self._used_bytes += self.step.sizes[storage]
            if storage in self.swappable:
                self._recent[storage] = None

    def _leave(self, storage: int, place: int) -> None:
        if self._places[storage] == DEVICE:
            self._used_bytes -= self.step.sizes[storage]
        self._places[storage] = place
        self._recent.pop(storage, None)

    def _end_lives(self, op: int) -> None:
        for storage in self.step.freed_by[op]:
            if not self.step.transient[storage]:
                self._leave(storage, GONE)


def walk(
    step: StepLists,
    segments: Segments,
    budget_bytes: int,
    swappable: frozenset[int] = frozenset(),
    *,
    liveness: bool = False,
) -> Walk:
    """The walk of a plan that makes again all that it drops: what turns out to be lost is not dropped.

    Raises:
        BudgetError: it does not fit.
    """
    while True:
        try:
            return Walk(step, segments, budget_bytes, swappable, liveness).run()
        except LostError as lost:
            segment = segments.of[lost.storage]
            kept, speed_centric = dict(segments.of), list(segments.speed_centric)
            if speed_centric[segment]:
                del kept[lost.storage]
            speed_centric[segment] = True
            segments = Segments(kept, segments.first_op, speed_centric)
