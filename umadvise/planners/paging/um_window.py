"""The planner `um-window`, for unified memory: prefetches what comes next, and sends away in time what is not needed.

Choi and Lee (2021) prefetch memory once, when it is made; with the step known, prefetches follow its order, by the
rules of `umadvise.planners.paging.um_schedule`. How much of the budget they leave free is tried: each schedule is
simulated, and plain advice by role without any action is among what is tried. So, unless an option fixes the reserve,
no plan is slower in the simulator than unified memory without one, nor than the paper's recommended advice.

A schedule that is wrong about the run, or about where its allocator puts things, only costs time: the driver serves a
fault where something is not there.
"""

from collections.abc import Mapping, Sequence
from typing import get_args

from umadvise.devices.rungs import ADVISE, ARENA_ROLES, UNADVISED
from umadvise.errors import BudgetError, UsageError
from umadvise.planners.paging.um_gaps import BLOCK_BYTES, Lives
from umadvise.planners.paging.um_places import Places
from umadvise.planners.paging.um_schedule import Evictions, PagingSchedule, evicts_faster
from umadvise.records.advice import PAPER_WORDS, parse_advice
from umadvise.records.device import DeviceProfile
from umadvise.records.enums import Advice, Role
from umadvise.records.plan import Action, Option, Plan
from umadvise.records.trace import Trace
from umadvise.records.units import format_bytes
from umadvise.simulator.unified import WARM_UP, UnifiedSimulation, simulate_unified

RESERVES = (0.02, 0.0)
"""Parts of the budget that a schedule leaves free, each of which is tried."""
_LEAST_BLOCKS = 2  # of device memory, for any paging
_ITERATIONS = WARM_UP + 5  # as `umadvise.planners.judging.score` has, so that what is fastest here is fastest there
_WORDS = {advice: word for word, advice in PAPER_WORDS.items()}


def um_window(
    trace: Trace,
    device: DeviceProfile,
    budget_bytes: int,
    *,
    advice: str | None = None,
    reserve: float | None = None,
    evictions: str | None = None,
    ahead_ns: int = 0,
) -> Plan:
    """Plans prefetches to the device and to the host, and discards.

    The advice by role that goes with them is given as memory is made; it is in the plan's options.

    Args:
        trace: trace of one training step.
        device: profile of the device, which has to page unified memory.
        budget_bytes: bytes that tensors may take on the device.
        advice: advice, in the paper's words, for memory of every role under a schedule; None tries the preferred
            location, with which what is resident nowhere comes with one fault (uvm/uvm_perf_prefetch.c), and then
            the paper's recommendation.
        reserve: part of the budget that the schedule leaves free, 0 to 1; None tries several, and no schedule at all.
        evictions: "sent": what has to leave is sent to the host in time; "ordered": the driver evicts it, as all else
            is refreshed before; "left": the driver evicts as it likes. None sends, and tries all three where the
            driver evicts faster than it prefetches (POWER9).
        ahead_ns: nanoseconds by which a prefetch begins earlier than it must, for ops that may be faster or a link
            that may be slower than the profile says.

    Raises:
        PolicyError: the device cannot page unified memory.
        BudgetError: the budget is less than two blocks of 2 MiB.
        UsageError: reserve or ahead_ns is out of range, or there is no such way of eviction.
        InvalidAdviceError: no such advice.
    """
    device.require_unified_memory()
    if budget_bytes < _LEAST_BLOCKS * BLOCK_BYTES:
        raise BudgetError(
            f"a budget of {format_bytes(budget_bytes)} is below two blocks of 2 MiB: "
            f"give at least {format_bytes(_LEAST_BLOCKS * BLOCK_BYTES)}"
        )
    if not (reserve is None or 0 <= reserve <= 1) or ahead_ns < 0:
        raise UsageError(f"reserve {reserve}, ahead_ns {ahead_ns}: expected a reserve of 0 to 1, and at least 0 ns")
    ways = _ways(evictions, device)
    first = Advice.PREFERRED_LOCATION if advice is None else parse_advice(advice)
    search = _ReserveSearch(trace, device, budget_bytes, dict.fromkeys(ARENA_ROLES, first), ahead_ns)
    if reserve is not None:
        return search.schedule(reserve, ways[0])
    if not search.fits:
        search.try_schedules(ways)
        if advice is None:
            search.try_recommended()
        search.try_advice_alone()
    return search.best


def _ways(evictions: str | None, device: DeviceProfile) -> tuple[Evictions, ...]:
    known: tuple[Evictions, ...] = get_args(Evictions)
    if evictions is None:
        return known if evicts_faster(device) else known[:1]
    for each in known:
        if each == evictions:
            return (each,)
    raise UsageError(f"evictions {evictions!r}: expected one of {', '.join(known)}")


class _ReserveSearch:
    """Plans of which the fastest one is wanted: the first of those.

    Attributes:
        best: the fastest until now.
        fits: it is as fast as its ops.
    """

    best: Plan

    def __init__(
        self, trace: Trace, device: DeviceProfile, budget_bytes: int, words: Mapping[Role, Advice], ahead_ns: int
    ) -> None:
        self.trace, self.device, self.budget_bytes = trace, device, budget_bytes
        self.words, self.ahead_ns = words, ahead_ns
        self.best_ns = float("inf")
        alone = self._run(self._plan([], words), words)
        self.fits = self.best_ns <= max(step.compute_ns for step in alone.steady)
        self.lives = Lives(trace)
        self.places = Places(self.lives, alone.addresses)

    def schedule(self, reserve: float, evictions: Evictions) -> Plan:
        """A plan with actions."""
        blocks = int(self.budget_bytes // BLOCK_BYTES * (1 - reserve))
        actions = PagingSchedule(self.lives, self.places, self.device, blocks, evictions, self.ahead_ns).actions
        return self._plan(actions, self.words, reserve, evictions)

    def try_schedules(self, ways: Sequence[Evictions]) -> None:
        """Every way to evict, and the best one with other reserves."""
        fastest = min(ways, key=lambda way: self._run(self.schedule(RESERVES[0], way), self.words).mean_step_ns)
        for reserve in RESERVES[1:]:
            self._run(self.schedule(reserve, fastest), self.words)

    def try_recommended(self) -> None:
        """The best actions until now with the paper's advice."""
        options = self.best.options
        plan = self._plan([*self.best], ADVISE.advice, options["reserve"], options["evictions"])
        self._run(plan, ADVISE.advice)

    def try_advice_alone(self) -> None:
        """No actions: none of the paper's advice, and what it recommends."""
        for policy in (UNADVISED, ADVISE):
            self._run(self._plan([], policy.advice), policy.advice)

    def _plan(
        self,
        actions: list[Action],
        advised: Mapping[Role, Advice],
        reserve: Option = None,
        evictions: Option = None,
    ) -> Plan:
        options: dict[str, Option] = {role.name.lower(): _WORDS[advised[role]] for role in ARENA_ROLES}
        options.update(reserve=reserve, evictions=evictions, ahead_ns=self.ahead_ns)
        return Plan.from_actions(self.trace, actions, "um-window", self.budget_bytes, options)

    def _run(self, plan: Plan, advised: Mapping[Role, Advice]) -> UnifiedSimulation:
        simulation = simulate_unified(
            self.trace,
            self.device,
            capacity_bytes=self.budget_bytes,
            advice=advised,
            plan=plan,
            iterations=_ITERATIONS,
        )
        if simulation.mean_step_ns < self.best_ns:
            self.best, self.best_ns = plan, simulation.mean_step_ns
        return simulation
