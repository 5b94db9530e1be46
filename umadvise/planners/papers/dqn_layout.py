"""When variables that were offloaded or removed come back, and how much memory the step then needs at each op.

The DQN paper ("GPU memory management for deep neural networks using deep Q-network", section 4.5) decides only what
leaves; when it comes back is fixed. What was offloaded comes back in the order of reuse, as early as it causes no
excess of memory until it is used. What was removed is made again before the op that needs it, and what that takes is
there by then: made again first if it was removed too, or fetched. So it may have to be back before its own next use.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.recomputation import DROPPED, GONE, HOST, Segments, find_rerun, recomputable, unless_gone
from umadvise.planners.room import Room
from umadvise.planners.step_graph import sum_over
from umadvise.planners.step_lists import StepLists
from umadvise.records.plan import Action, ActionKind

_DEEPEST = 64
"""Removed variables that making one again may need one after the other; a longer chain is offloaded instead."""


@dataclass(frozen=True, slots=True)
class VariableGap:
    """The time between two uses of a variable, in which it could be away.

    Attributes:
        storage: index of the variable's storage.
        last: op of the use after which it may leave.
        following: op of the use before which it has to be back; of the next iteration where the gap `wraps`.
        wraps: whether the gap goes over the end of the iteration.
        overwritten: whether the following use needs nothing of what was there, so that it leaves without a copy.
        recompute_ns: nanoseconds to make it again where all else is there; None where it cannot be.
    """

    storage: int
    last: int
    following: int
    wraps: bool
    overwritten: bool
    recompute_ns: int | None


@dataclass(frozen=True, slots=True)
class Absence:
    """A gap that is used: the variable leaves after op `after`, and is made again (`removed`) or fetched."""

    gap: VariableGap
    after: int
    removed: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """What absences of variables make of a step: when they end, and how much memory each op needs.

    Attributes:
        needed_bytes: most bytes on the device at each op when nothing comes back before it must.
        over: ops that need more than the budget, ascending.
        back: op before which the variable of each absence has to be back.
        stuck: removals whose variables cannot be made again when they are needed; with any, `actions` is empty.
        actions: actions of the plan with these absences.
    """

    needed_bytes: NDArray[np.int64]
    over: NDArray[np.int64]
    back: dict[Absence, int]
    stuck: tuple[Absence, ...]
    actions: tuple[Action, ...]


class VariableGaps:
    """Gaps of variables as columns, to ask something of all of them at once."""

    def __init__(self, gaps: Sequence[VariableGap]) -> None:
        self.last = np.array([gap.last for gap in gaps], np.int64)
        self.following = np.array([gap.following for gap in gaps], np.int64)
        self.wraps = np.array([gap.wraps for gap in gaps], bool)

    def spans(self, over: NDArray[np.int64], op: int) -> NDArray[np.bool_]:
        """Which would be away during some of the ops `over` (ascending) if they left after `op`, or later."""
        after = np.where(self.wraps, self.last, np.maximum(self.last, op))
        earlier = np.searchsorted(over, self.following)  # how many of the ops are before
        until = np.searchsorted(over, after, side="right")
        result: NDArray[np.bool_] = np.where(self.wraps, (earlier > 0) | (until < len(over)), earlier > until)
        return result


class Arranger:
    """The gaps of a trace, and the layout of every choice of them."""

    def __init__(self, step: StepLists) -> None:
        self.step = step
        self.op_count = len(step.trace.ops)
        # What is there before the first op counts at that.
        self.entry_bytes, self.peak_bytes = step.graph.begin_bytes.copy(), step.graph.peak_bytes.copy()
        for first_op in (self.entry_bytes[:1], self.peak_bytes[:1]):
            np.maximum(first_op, step.graph.bytes_before, out=first_op)
        # Whatever is removed is a segment of its own: others that were removed are made again first, and stay.
        removable = recomputable(step, {each: each for each in step.gaps}, [0] * len(step.sizes))
        self.segments = Segments(removable, [0] * len(step.sizes), [True] * len(step.sizes))
        self.gaps = tuple(self._find_gaps())

    def _find_gaps(self) -> list[VariableGap]:
        step, op_count = self.step, self.op_count
        fixed = step.graph.transient | step.graph.host_touched | (step.trace.storages.bytes == 0)
        gaps = []
        for storage in np.flatnonzero(~fixed).tolist():
            ops = step.graph.uses.of(storage).tolist()
            for last, following in pairwise(ops):
                if following > last + 1:
                    overwritten = not step.needs_contents(following, storage)
                    recompute_ns = self._recompute_ns(storage, last, following)
                    gaps.append(VariableGap(storage, last, following, False, overwritten, recompute_ns))
            stays = step.births[storage] < 0 and step.deaths[storage] >= op_count
            if stays and ops and op_count - 1 - ops[-1] + ops[0] > 0:
                gaps.append(VariableGap(storage, ops[-1], ops[0], True, False, None))
        return gaps

    def _recompute_ns(self, storage: int, last: int, following: int) -> int | None:
        if storage not in self.segments.of or self.step.gaps[storage] != (last, following):
            return None
        rerun = find_rerun(self.step, storage, following, unless_gone(self.step, following), self.segments)
        return None if rerun is None else rerun.duration_ns

    def arrange(self, absences: Sequence[Absence], budget_bytes: int) -> Layout:
        """The step with these absences: when all that is away comes back, and how much memory each op needs."""
        returns = _Returns(self, absences)
        returns.find()
        needed = self._needed(returns)
        over = np.flatnonzero(needed > budget_bytes)
        actions = () if returns.stuck else tuple(self._actions(returns, needed, budget_bytes))
        return Layout(needed, over, returns.back, tuple(returns.stuck), actions)

    def _needed(self, returns: "_Returns") -> NDArray[np.int64]:
        count = self.op_count
        rows = [
            (each.after + 1, back + count if each.gap.wraps else max(back, each.after + 1), each.gap.storage)
            for each, back in returns.back.items()
        ]
        begin, end, storage = np.array(rows, np.int64).reshape(-1, 3).T
        away = sum_over(2 * count, begin, end, self.step.trace.storages.bytes[storage])
        needed: NDArray[np.int64] = np.maximum(self.peak_bytes, self.entry_bytes + returns.room_bytes)
        return needed - away[:count] - away[count:]

    def _actions(self, returns: "_Returns", needed: NDArray[np.int64], budget_bytes: int) -> list[Action]:
        leaving, arriving, earliest = [], [], 0
        room = Room(budget_bytes - needed)
        for absence, back in sorted(returns.back.items(), key=lambda item: (item[1], item[0].gap.storage)):
            gap = absence.gap
            if absence.removed or gap.overwritten:
                leaving.append(Action(ActionKind.DROP, absence.after, gap.storage, after=True))
                continue
            low = max(earliest, 0 if gap.wraps else absence.after + 1)
            size = self.step.sizes[gap.storage]
            earliest = begin = min(room.since(low, back, size), back)
            room.take(begin, back, size)
            if gap.wraps or begin > absence.after + 1:
                leaving.append(Action(ActionKind.SWAP_OUT, absence.after, gap.storage, after=True))
                arriving.append(Action(ActionKind.SWAP_IN, begin, gap.storage))
        leaving.sort(key=lambda action: action.kind != ActionKind.DROP)  # what is free at once first
        return leaving + arriving + returns.recomputes


class _Returns:
    """When, at the latest, each variable that is away has to be back.

    Attributes:
        back: of each absence the op before which it is there again.
        room_bytes: for each op what making things again before it takes besides.
        recomputes: in the order of execution.
        stuck: what cannot be made again.
    """

    def __init__(self, arranger: Arranger, absences: Sequence[Absence]) -> None:
        self.step, self.segments = arranger.step, arranger.segments
        self.back = {each: each.gap.following for each in absences}
        self.room_bytes = np.zeros(arranger.op_count, np.int64)
        self.recomputes: list[Action] = []
        self.stuck: list[Absence] = []
        self._returned: set[Absence] = set()
        self._of: dict[int, list[Absence]] = {}
        for each in absences:
            self._of.setdefault(each.gap.storage, []).append(each)

    def find(self) -> None:
        """In the order of need: so all that has returned has done so before."""
        removed = [each for each in self.back if each.removed]
        for absence in sorted(removed, key=lambda each: (each.gap.following, each.gap.storage)):
            if absence not in self._returned and not self._make_again(absence, absence.gap.following, 0):
                self.stuck.append(absence)

    def _away(self, storage: int, op: int) -> Absence | None:
        for absence in self._of.get(storage, ()):
            gap = absence.gap
            if absence in self._returned or op <= absence.after:
                continue
            if gap.wraps or op <= gap.following:
                return absence
        return None

    def _make_again(self, absence: Absence, op: int, depth: int) -> bool:
        def place(storage: int) -> int:
            away = self._away(storage, op)
            if away is None or lives(storage) == GONE:
                return lives(storage)
            return DROPPED if away.removed else GONE if away.gap.overwritten else HOST

        storage, lives = absence.gap.storage, unless_gone(self.step, op)
        rerun = find_rerun(self.step, storage, op, place, self.segments)
        if rerun is None or depth > _DEEPEST:
            return False
        for each in sorted(rerun.inputs):
            away = self._away(each, op)
            if away is None:
                continue
            if away.gap.wraps or (away.removed and not self._make_again(away, op, depth + 1)):
                return False
            self.back[away] = op
            self._returned.add(away)
        self.back[absence] = op
        self._returned.add(absence)
        self.recomputes.append(Action(ActionKind.RECOMPUTE, op, storage, argument=rerun.first))
        room_bytes = rerun.room_bytes - self.step.sizes[storage]
        self.room_bytes[op] = max(int(self.room_bytes[op]), room_bytes)
        return True
