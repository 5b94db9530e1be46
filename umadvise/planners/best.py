"""The planner `best`: it looks for the shortest step by swaps and recomputation, and simulates each choice.

It begins with the plans of the other planners, but for those that search long (`LONG`), and with those that it is
handed, and so its plan is never slower than any of them in the simulator.
Then it plans itself, in three nested choices, each judged by the simulated step:

1. What is dropped and made again (`recompute_choice`): a share of what exceeds the budget, those storages first that
   take the least time for their bytes, in chains up to a length. What other planners' plans make again is tried too.
   The step with these recomputations as ops (`unrolled`) is a step like any other from here on.
2. In which gaps between two uses storages leave (`swap_schedule.enough`): those that last longest beyond their copies,
   at the fullest moment first. What stays clean leaves without a copy, what nobody needs any more leaves at once, and
   skip connections leave within forward, by the same rule.
3. When copies begin (`swap_schedule`): to the host at once, back as early as there is room, in the order of need, with
   the stalls that the simulation of the schedule before has shown.

Then single decisions are changed, as long as the step gets shorter: a storage is made again or not, leaves or stays.
Layers of one shape have gaps of one shape, so that decisions by value are the same for all of them at once.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from umadvise import planners
from umadvise.errors import BudgetError, NoRoomError, UmadviseError, UsageError
from umadvise.planners import Progress
from umadvise.planners.gaps import SwapGaps, gaps
from umadvise.planners.judging.score import PAGING_PLANNERS, made_by, pages, score
from umadvise.planners.recompute_choice import candidates, cheapest, recompute_actions
from umadvise.planners.step_lists import StepLists
from umadvise.planners.swap_schedule import Times, enough, schedule, slack_ns
from umadvise.planners.unrolled import Unrolled, unroll
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Trace
from umadvise.simulator.swap import simulate_swap

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
"""Parts of what exceeds the budget that are made again; more than 1 makes up for the memory of recomputation itself."""
CHAINS = (0.125, 0.5)
"""Longest chains of recomputations that are tried: their bytes as a part of the budget."""
TIGHT = 1.05
"""Where the step takes more than so many times its ops alone, dropping all that is cheap to make again is tried too."""
PRICES = (0.3, 1.0)
"""What counts as cheap then: the most time to make a byte again, in units of the time to copy it to the device."""
LONG_CHAINS = (0.35, 0.5, 0.7)
"""Longest chains that are tried then, as parts of the budget: what lies between two chains stays, or is swapped."""
HALVINGS = 3
"""How often the distance between shares is halved in the search beside the best of them."""
ROUNDS = 2
"""Choices of gaps to begin with, each with the times that simulating the one before has shown, and each scheduled
twice: `umadvise.planners.at_once` says why."""
TRIALS_OF_OPS = 20_000
"""Trials of each kind times ops of the step: longer steps have fewer trials, each of which takes longer."""
MOST_TRIALS = 300
_NEVER = -1e18
_NO_STEP_NS = 1 << 62
_ALL = 1e6
"""A share of the excess so large that no choice uses it up."""
LONG = ("dqn", "best")
"""Planners that search for long themselves, and are not run as a beginning."""


def best(
    trace: Trace,
    device: DeviceProfile,
    budget_bytes: int,
    *,
    trials: int | None = None,
    recompute: bool = True,
    paging: bool = True,
    seconds: float | None = None,
    plans: Sequence[Plan] = (),
    repeatable: NDArray[np.bool_] | None = None,
    progress: Progress = lambda _done, _all: None,
) -> Plan:
    """Searches for the plan with the shortest simulated step. Ctrl-C ends the search with the best plan so far.

    Args:
        trace: trace of one training step.
        device: profile of the device whose link makes the copies.
        budget_bytes: bytes that tensors may take on the device.
        trials: changes of single decisions that are tried; None is fewer for long steps, at most 300.
        recompute: whether plans may drop storages and make them again.
        paging: whether plans for unified memory are among those to begin with.
        seconds: time after which no other trial begins; None is no limit, and gives the same plan every time.
        plans: plans of the same trace by other planners, to begin with.
        repeatable: whether each op may run again; None: all may. Else no plan of another planner that has ops run
            again is one to begin with.
        progress: callback that gets the number of trials that are done, and the number of all of them.

    Raises:
        BudgetError: no plan was found that keeps the budget.
        UsageError: trials is below zero.
    """
    if trials is None:
        trials = min(MOST_TRIALS, TRIALS_OF_OPS // max(len(trace.ops), 1))
    planners.check_range("trials", trials, 0)
    search = _SwapSearch(trace, device, budget_bytes, _Limits(recompute, paging, seconds, repeatable))
    try:
        search.begin_with(plans)
        if not search.ideal:
            search.run(trials, progress)
    except KeyboardInterrupt:
        if search.found is None:
            raise
    progress(search.steps, search.steps)
    return search.plan(trials)


class _Limits:
    """What is not to be tried, and for how long."""

    def __init__(
        self, recompute: bool, paging: bool, seconds: float | None, repeatable: NDArray[np.bool_] | None
    ) -> None:
        self.recompute, self.paging, self.repeatable = recompute, paging, repeatable
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def over(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def allow(self, plan: Plan) -> bool:
        return (self.paging or not pages(plan)) and (
            (self.recompute and self.repeatable is None) or not (plan.actions.kind == ActionKind.RECOMPUTE).any()
        )


@dataclass(frozen=True, eq=False)
class _Solution:
    """A choice of recomputations and of gaps, and how long the step is with it."""

    unrolled: Unrolled
    gaps: SwapGaps
    leaves: NDArray[np.bool_]
    times: Times
    step_ns: int
    again: frozenset[int] = frozenset()
    plan: Plan | None = None


class _SwapSearch:
    def __init__(self, trace: Trace, device: DeviceProfile, budget_bytes: int, limits: _Limits) -> None:
        self.trace, self.device, self.budget_bytes = trace, device, budget_bytes
        self.limits = limits
        self.found: tuple[int, Plan] | None = None
        self.reasons: list[str] = []
        self.remakes: list[list[Action]] = []  # of others' plans
        self.steps = 1

    @property
    def ideal(self) -> bool:
        """Whether a plan without any stall is there."""
        return self._within(1.0)

    def _within(self, times: float) -> bool:
        least_ns = int(np.maximum(self.trace.ops.duration_ns, 0).sum())
        return self.found is not None and self.found[0] <= times * least_ns

    def plan(self, trials: int) -> Plan:
        """The best one."""
        if self.found is None:
            raise BudgetError(self.reasons[0])
        _, plan = self.found
        options = {**plan.options, "trials": trials, "from": made_by(plan)}
        return replace(plan, planner="best", budget_bytes=self.budget_bytes, options=MappingProxyType(options))

    # ---- others ------------------------------------------------------------------------------------------------------

    def begin_with(self, plans: Sequence[Plan]) -> None:
        """Scores what the other planners plan, and what was handed in."""
        for plan in (*plans, *self._of_others()):
            if not self.limits.allow(plan):
                continue
            try:
                worth = score(self.trace, self.device, plan, budget_bytes=self.budget_bytes)
            except UmadviseError as error:
                self.reasons.append(str(error))
                continue
            self._keep(worth.step_ns or 0, plan)
            if (plan.actions.kind == ActionKind.RECOMPUTE).any():
                self.remakes.append(list(plan))

    def _of_others(self) -> Iterator[Plan]:
        for name in planners.PLANNERS:
            skipped = name in LONG or (name in PAGING_PLANNERS and not self.limits.paging)
            if skipped or (self.limits.over and self.found is not None):
                continue
            try:
                yield planners.run(name, self.trace, self.device, self.budget_bytes)
            except UmadviseError as error:
                self.reasons.append(str(error))

    def _keep(self, step_ns: int, plan: Plan) -> None:
        if self.found is None or step_ns < self.found[0]:
            self.found = step_ns, plan

    # ---- our own -----------------------------------------------------------------------------------------------------

    def run(self, trials: int, progress: Progress) -> None:
        """Tries choices of recomputations, and then changes of the best one."""
        self.step = StepLists(self.trace, self.limits.repeatable)
        self.gaps = gaps(self.trace, self.device)
        self.known = candidates(self.step) if self.limits.recompute else []
        self.alike = self._kinds()
        self.steps = 2 * trials + len(SHARES) * len(CHAINS) + 2 * HALVINGS + len(self.remakes)
        self.steps += len(PRICES) * len(LONG_CHAINS)
        done = itertools.count()
        now: _Solution | None = None

        def take(solution: _Solution | None) -> None:
            nonlocal now
            progress(min(next(done), self.steps - 1), self.steps)
            if solution is not None and (now is None or solution.step_ns < now.step_ns):
                now = solution

        for actions in self.remakes:
            with contextlib.suppress(ValueError):  # it lets go of what it makes again elsewhere
                remade = {each.storage for each in actions if each.kind == ActionKind.RECOMPUTE}
                take(self._swaps(unroll(self.trace, actions), frozenset(remade)))
        self._try_shares(take)
        if not self._within(TIGHT) and self.known:
            self._try_chains(take)
        for number, change in enumerate((self._change_again, self._change_gap)):
            random = np.random.default_rng(number)
            for _ in range(trials):
                if now is None or self.ideal or self.limits.over:
                    return
                take(change(now, random))

    def _try_shares(self, take: Callable[[_Solution | None], None]) -> None:
        """Shares of the excess, coarsely, and then finer and finer beside the best one."""
        tried: dict[frozenset[int], int] = {}

        def step_ns(share: float, chain: float) -> int:
            again = cheapest(self.gaps, self.step, self.known, self.budget_bytes, share, chain * self.budget_bytes)
            if again not in tried:
                late = self.limits.over and bool(tried)
                solution = None if late else self._solve(again)
                tried[again] = _NO_STEP_NS if solution is None else solution.step_ns
                if not late:
                    take(solution)
            return tried[again]

        _, share, chain = min((step_ns(share, chain), share, chain) for share in SHARES for chain in CHAINS)
        width = SHARES[1] - SHARES[0]
        for _ in range(HALVINGS):
            width /= 2
            _, share = min((step_ns(each, chain), each) for each in (share, max(share - width, 0.0), share + width))

    def _try_chains(self, take: Callable[[_Solution | None], None]) -> None:
        """All that is cheap enough, in the order of the step."""
        copy_ns = 1e9 / self.device.bandwidth_h2d
        for price in PRICES:
            if self.limits.over:
                return
            cheap = [
                each
                for each in sorted(self.known, key=lambda each: each.last)
                if each.rerun.duration_ns <= price * copy_ns * self.step.sizes[each.storage]
            ]
            for chain in LONG_CHAINS:
                chain_bytes = chain * self.budget_bytes
                take(self._solve(cheapest(self.gaps, self.step, cheap, self.budget_bytes, _ALL, chain_bytes)))

    def _solve(self, again: frozenset[int]) -> _Solution | None:
        """Without what finds no room to be made again."""
        while True:
            unrolled = unroll(self.trace, recompute_actions(self.step, again))
            too_large = unrolled.trace.working_set_bytes() > self.budget_bytes
            stuck = {action.storage for op, action in unrolled.actions if too_large[op] and unrolled.again[op]}
            if not stuck & again:
                return self._swaps(unrolled, again)
            again -= stuck

    def _swaps(self, unrolled: Unrolled, again: frozenset[int]) -> _Solution | None:
        its = gaps(unrolled.trace, self.device) if unrolled.actions else self.gaps
        none = np.zeros(len(its), bool)
        start = _Solution(unrolled, its, none, Times.of_compute(its), _NO_STEP_NS, again)
        result: _Solution | None = None
        for _ in range(ROUNDS):
            solution = self._schedule(start, start.leaves, none)
            if solution is None:
                break
            retimed = self._schedule(solution, solution.leaves, none) or solution
            result = min(result or solution, solution, retimed, key=lambda each: each.step_ns)
            start = replace(start, times=solution.times)
        return result

    def _schedule(self, start: _Solution, leaves: NDArray[np.bool_], stays: NDArray[np.bool_]) -> _Solution | None:
        """With these gaps and more, but not those in which storages stay, at the times of a solution."""
        worth = np.where(stays, _NEVER, slack_ns(start.gaps, start.times))
        chosen = enough(start.gaps, leaves, self.budget_bytes, worth)
        if chosen is None:
            return None
        plan = schedule(start.gaps, chosen, self.budget_bytes, start.times)
        try:
            simulation = simulate_swap(start.unrolled.trace, self.device, plan)
        except NoRoomError:
            return None
        times = Times.of_simulation(start.gaps, simulation)
        result = replace(start, leaves=chosen, times=times, step_ns=simulation.step_ns, plan=plan)
        self._offer(result)
        return result

    def _offer(self, solution: _Solution) -> None:
        """What is better than all others in the unrolled step is, where it is in the step itself."""
        if self.found is not None and solution.step_ns >= self.found[0]:
            return
        assert solution.plan is not None
        plan = solution.unrolled.plan(solution.plan)
        try:
            result = simulate_swap(self.trace, self.device, plan, spans=False).result
        except (NoRoomError, UsageError):
            return
        if not result.on_demand_swap_ins:
            self._keep(result.step_ns, plan)

    # ---- changes -----------------------------------------------------------------------------------------------------

    def _kinds(self) -> list[tuple[int, int, int]]:
        """Of each candidate, what it has in common with that of another layer of the same shape."""
        name = self.trace.ops.name
        return [
            (self.step.sizes[each.storage], each.rerun.duration_ns, int(name[each.rerun.last])) for each in self.known
        ]

    def _change_again(self, now: _Solution, random: np.random.Generator) -> _Solution | None:
        """One storage more or less is made again, or all of the same kind."""
        if not self.known:
            return None
        chosen = np.array([each.storage in now.again for each in self.known])
        cost = np.array([each.rerun.duration_ns + 1 for each in self.known], float)
        worth = np.array([self.step.sizes[each.storage] for each in self.known], float)
        weight = np.where(chosen, cost / max(cost[chosen].sum(), 1.0), worth / max(worth[~chosen].sum(), 1.0))
        row = int(random.choice(len(weight), p=weight / weight.sum()))
        rows = [row]
        if random.integers(2):
            rows = [each for each, kind in enumerate(self.alike) if kind == self.alike[row]]
        changed = {self.known[each].storage for each in rows if chosen[each] == chosen[row]}
        return self._solve(now.again ^ changed)

    def _change_gap(self, now: _Solution, random: np.random.Generator) -> _Solution | None:
        """One storage stays in a gap, or leaves in it."""
        weight = np.where(now.gaps.needed, now.gaps.bytes, 0).astype(float)
        if not weight.sum():
            return None
        row = int(random.choice(len(weight), p=weight / weight.sum()))
        leaves, stays = now.leaves.copy(), np.zeros(len(weight), bool)
        stays[row] = leaves[row]
        leaves[row] = not leaves[row]
        return self._schedule(now, leaves, stays)
