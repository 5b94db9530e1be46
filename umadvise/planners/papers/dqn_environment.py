"""The environment of the DQN paper (sections 4.5 to 4.8), in which an agent makes room in a step within a budget.

The agent goes through the step once. At a node it offloads a variable, removes one, or does nothing, and is then at a
later node. What can be chosen has had its last use before a gap, and would be away while the step still needs more than
the budget; when it never does, the state is terminal. Left open by the paper, and decided here:

- Nodes at which nothing new can be chosen are passed over. An op that finds no room is not: something has to leave.
- What is used next in the next iteration (parameters, the optimizer's state) can be offloaded at any node: it has left
  in the iteration before, and takes no time of this one.
- The reward of an action is minus the time by which it makes the simulated step longer where memory has no end, and
  minus the pause of an op that waits for the room it makes. The last action of a plan gets what is missing then: the
  rewards sum up to minus the overhead of the plan, simulated in the budget. They count in the graph's
  unit of time.
- What would be made again at an op that has no room for that, or for what it takes, is offloaded instead of removed.
- Variables are those of at least a 512th of the excess, the 512 largest of them. Where they are not enough, others are
  offloaded, largest first; where that is not enough, what was removed is offloaded instead.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from umadvise.errors import BudgetError
from umadvise.planners.papers.dqn_graph import Clock, Decision, build_graph
from umadvise.planners.papers.dqn_layout import Absence, Arranger, Layout, VariableGap, VariableGaps
from umadvise.planners.step_lists import StepLists
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Action, Option, Plan
from umadvise.records.trace import Trace
from umadvise.records.units import format_bytes
from umadvise.simulator.swap import WITHOUT_END, simulate_swap

_SMALLEST_SHARE = 512
_MOST_GAPS = 512
NOTHING = 0
"""The action that does nothing: index into a graph's actions."""


@dataclass(frozen=True, eq=False)
class State:
    """Where the agent is in the step, and what it has chosen so far.

    Attributes:
        op: last op that has run; -1 at the beginning.
        absences: absences that were chosen so far.
        layout: the step with these absences.
        possible: whether each of the graph's actions can be chosen; none can in a terminal state.
        longer_ns: nanoseconds by which the absences make the step longer in unlimited memory; in a terminal state, in
            the budget.
        paused_ns: nanoseconds that ops had to wait for room; 0 in a terminal state, whose `longer_ns` has them.
        terminal: whether the step fits the budget, so that nothing is left to choose.
    """

    op: int
    absences: tuple[Absence, ...]
    layout: Layout
    possible: NDArray[np.bool_]
    longer_ns: int = 0
    paused_ns: int = 0
    terminal: bool = False


class PlanningEnvironment:
    """The simulator that the agent learns from.

    Args:
        trace: trace of one training step.
        device: profile of the device that the plan is for.
        budget_bytes: bytes that tensors may take on the device.

    Attributes:
        graph: graph of the variables that may leave.
        initial: the agent's state at the beginning of the step.
        unlimited_ns: nanoseconds of the step in unlimited memory.

    Raises:
        BudgetError: the step does not fit, even with everything offloaded that can be.
    """

    def __init__(self, trace: Trace, device: DeviceProfile, budget_bytes: int) -> None:
        self.trace, self.device, self.budget_bytes = trace, device, budget_bytes
        self.step = StepLists(trace)
        self.clock = Clock(self.step, device)
        self.arranger = Arranger(self.step)
        self._all_gaps = VariableGaps(self.arranger.gaps)
        self._require_room()
        self.unlimited_ns = self.step_ns((), WITHOUT_END)
        base = self.arranger.arrange((), budget_bytes)
        self.graph = build_graph(self.step, self._candidates(base), self.clock)
        self._gaps = [each.gap for each in self.graph.actions[1:] if each.gap is not None]
        self._table = VariableGaps(self._gaps)
        self.initial = self._settle(State(-1, (), base, self._possible(-1, (), base)))

    def _require_room(self) -> None:
        everything = [Absence(gap, gap.last, removed=False) for gap in self.arranger.gaps]
        layout = self.arranger.arrange(everything, self.budget_bytes)
        if len(layout.over):
            op = int(layout.needed_bytes.argmax())
            needed = format_bytes(int(layout.needed_bytes[op]))
            raise BudgetError(
                f"op {op} ({self.trace.op(op).name}) needs {needed} with all that cannot leave: no plan of dqn keeps a "
                f"budget of {format_bytes(self.budget_bytes)}; give at least that, or make the batch smaller"
            )

    def _candidates(self, base: Layout) -> list[VariableGap]:
        sizes = self.step.sizes
        excess_bytes = int(base.needed_bytes.max(initial=0)) - self.budget_bytes
        spanning = self._all_gaps.spans(base.over, -1).tolist()
        able = (gap for gap, spans in zip(self.arranger.gaps, spanning, strict=True) if spans)
        large = [gap for gap in able if sizes[gap.storage] * _SMALLEST_SHARE >= excess_bytes]
        large.sort(key=lambda gap: -sizes[gap.storage])
        return sorted(large[:_MOST_GAPS], key=lambda gap: (gap.last, gap.storage, gap.wraps))

    # ---- what can be chosen ----------------------------------------------------------------------------------------

    def _useful(self, op: int, absences: tuple[Absence, ...], layout: Layout) -> NDArray[np.bool_]:
        """Of each gap of an action: it is not taken, and would be away when memory is short."""
        taken = {absence.gap for absence in absences}
        free = np.array([gap not in taken for gap in self._gaps], bool)
        return free & self._table.spans(layout.over, op)

    def _later(self, op: int, useful: NDArray[np.bool_], layout: Layout) -> NDArray[np.int64]:
        """Ops after which more can be chosen, before the one that finds no room."""
        last = self._table.last
        result: NDArray[np.int64] = last[useful & ~self._table.wraps & (last > op) & (last < layout.over[0])]
        return result

    def _possible(self, op: int, absences: tuple[Absence, ...], layout: Layout) -> NDArray[np.bool_]:
        if not len(layout.over):
            return np.zeros(len(self.graph.actions), bool)
        useful = self._useful(op, absences, layout)
        now = useful & (self._table.wraps | (self._table.last <= op))
        return np.concatenate([[len(self._later(op, useful, layout)) > 0], now])

    # ---- transitions and rewards -----------------------------------------------------------------------------------

    def act(self, state: State, action: int) -> tuple[float, State]:
        """What an action leads to: the reward, in the graph's unit of time, and the next state."""
        following = self._settle(self._go_on(state) if action == NOTHING else self._leave(state, action))
        lost_ns = following.longer_ns + following.paused_ns - state.longer_ns - state.paused_ns
        return -lost_ns / self.graph.mean_ns, following

    def _go_on(self, state: State) -> State:
        """At the next node at which more can be chosen; here, where there is none."""
        if not len(state.layout.over):
            return state
        useful = self._useful(state.op, state.absences, state.layout)
        op = int(self._later(state.op, useful, state.layout).min(initial=len(self.step.durations)))
        return self._at(state, op if op < len(self.step.durations) else state.op)

    def _at(self, state: State, op: int) -> State:
        return replace(state, op=op, possible=self._possible(op, state.absences, state.layout))

    def _leave(self, state: State, action: int) -> State:
        gap = self._gaps[action - 1]
        removed = self.graph.actions[action].choice == Decision.REMOVE
        after = gap.last if gap.wraps else state.op
        absences, layout = self._arrange((*state.absences, Absence(gap, after, removed)))
        rises = (layout.needed_bytes > self.budget_bytes) & (layout.needed_bytes > state.layout.needed_bytes)
        if removed and rises.any():
            absences, layout = self._arrange((*state.absences, Absence(gap, after, removed=False)))
        longer_ns = self.step_ns(layout.actions, WITHOUT_END) - self.unlimited_ns
        op, paused_ns = state.op, state.paused_ns
        copied = not (absences[-1].removed or gap.overwritten)
        if copied and not gap.wraps:
            op, pause_ns = self._after_copy(op, self.step.sizes[gap.storage], int(state.layout.over[0]))
            paused_ns += pause_ns
        left = State(op, absences, layout, self._possible(op, absences, layout), longer_ns, paused_ns)
        return left if copied else self._go_on(left)

    def _after_copy(self, op: int, bytes_: int, full_op: int) -> tuple[int, int]:
        """The op that has run when a copy has ended, and for how long the one that finds no room has waited for it."""
        begin_ns = self.clock.begin_ns
        end_ns = int(begin_ns[op + 1]) + self.clock.transfer_ns(bytes_)
        reached = min(int(np.searchsorted(begin_ns, end_ns)), full_op)
        return max(reached - 1, op), max(end_ns - int(begin_ns[full_op]), 0)

    def _arrange(self, absences: tuple[Absence, ...]) -> tuple[tuple[Absence, ...], Layout]:
        """What cannot be made again when it is needed is offloaded."""
        layout = self.arranger.arrange(absences, self.budget_bytes)
        while layout.stuck:
            absences = tuple(replace(each, removed=each.removed and each not in layout.stuck) for each in absences)
            layout = self.arranger.arrange(absences, self.budget_bytes)
        return absences, layout

    def shortage(self, state: State) -> float:
        """What is still to be done: the memory that is missing, over ops, as a part of what was at the beginning.

        It counts as the transfer of the most that was missing, in the graph's unit of time.
        """
        if state.terminal:
            return 0.0
        missing = np.maximum(state.layout.needed_bytes - self.budget_bytes, 0)
        at_first = np.maximum(self.initial.layout.needed_bytes - self.budget_bytes, 0)
        transfer_ns = self.clock.transfer_ns(int(at_first.max()))
        return float(missing.sum() / at_first.sum()) * transfer_ns / self.graph.mean_ns

    # ---- the end ---------------------------------------------------------------------------------------------------

    def _settle(self, state: State) -> State:
        while len(state.layout.over) and state.possible.any() and not state.possible[NOTHING + 1 :].any():
            state = self._go_on(state)
        return state if state.possible.any() else self.finish(state)

    def finish(self, state: State) -> State:
        """The terminal state without further choices of the agent: others are offloaded until the step fits."""
        absences, layout = self._repair(state.absences, state.layout)
        nothing = np.zeros_like(state.possible)
        longer_ns = self.step_ns(layout.actions, self.budget_bytes) - self.unlimited_ns
        return State(state.op, absences, layout, nothing, longer_ns, 0, terminal=True)

    def _repair(self, absences: tuple[Absence, ...], layout: Layout) -> tuple[tuple[Absence, ...], Layout]:
        """Offloads more until the step fits; with all of them offloaded it does."""
        sizes = self.step.sizes
        while len(layout.over):
            op = int(layout.over[0])
            missing_bytes = int(layout.needed_bytes[op]) - self.budget_bytes
            taken = {absence.gap for absence in absences}
            more = [self.arranger.gaps[row] for row in np.flatnonzero(self._all_gaps.spans(layout.over[:1], -1))]
            more = sorted((gap for gap in more if gap not in taken), key=lambda gap: -sizes[gap.storage])
            enough = int(np.searchsorted(np.cumsum([sizes[gap.storage] for gap in more]), missing_bytes)) + 1
            removed = [absence for absence in absences if absence.removed]
            if more and (enough <= len(more) or not removed):
                absences += tuple(Absence(gap, gap.last, removed=False) for gap in more[:enough])
            elif removed:  # making it again takes room, or what it takes comes back too early
                early = [absence for absence in removed if layout.back[absence] <= op < absence.gap.following]
                early.sort(key=lambda absence: absence.gap.following)
                nearest = min(removed, key=lambda absence: abs(absence.gap.following - op))
                other = early[len(early) // 2] if early else nearest  # the middle of a chain halves it
                absences = tuple(replace(each, removed=each.removed and each != other) for each in absences)
            else:  # some left too late
                absences = tuple(replace(each, after=each.gap.last) for each in absences)
            absences, layout = self._arrange(absences)
        return absences, layout

    def plan(self, state: State, options: dict[str, Option]) -> Plan:
        """The plan of a terminal state."""
        return Plan.from_actions(self.trace, state.layout.actions, "dqn", self.budget_bytes, options)

    def step_ns(self, actions: tuple[Action, ...], budget_bytes: int) -> int:
        """Nanoseconds of the simulated step."""
        plan = Plan.from_actions(self.trace, actions, "dqn", budget_bytes)
        return simulate_swap(self.trace, self.device, plan, spans=False).step_ns
