"""Unified memory with a window of prefetches: what is to come is brought, what is not needed is sent away in time.

Choi and Lee (2021) prefetch memory once, when it is made; with the step known, prefetches follow its order. The rules
that the schedule works with are `umadvise.planners.um_schedule`'s. How much of the budget it leaves to what it does not
know of, blocks shared by small storages and places between two storages, is tried: each schedule is simulated, and
those without any action, under plain advice by role, are among them. So no plan is slower in the simulator than
unified memory without one, nor than the paper's recommended advice.

A schedule that is wrong about the run only costs time: the driver serves a fault where something is not there.
"""

from collections.abc import Iterator

from umadvise._abi import Advice, Role
from umadvise.advice import PAPER_WORDS, parse_advice
from umadvise.device_profile import DeviceProfile
from umadvise.errors import BudgetError, UsageError
from umadvise.planners.plan import Action, Plan
from umadvise.planners.um_gaps import BLOCK_BYTES, Lives
from umadvise.planners.um_schedule import Schedule
from umadvise.roles import ADVISE, ARENA_ROLES, UNADVISED
from umadvise.simulator.unified import WARM_UP, simulate_unified
from umadvise.trace.schema import Trace
from umadvise.units import format_bytes

RESERVES = (0.0, 0.04, 0.1)
"""Parts of the budget that are tried as what is left to chance."""
_LEAST_BLOCKS = 2  # of device memory, for any paging
_ITERATIONS = WARM_UP + 2
_WORDS = {advice: word for word, advice in PAPER_WORDS.items()}
# What is resident nowhere then comes with one fault (uvm/uvm_perf_prefetch.c), and nothing else changes.
_SCHEDULED = dict.fromkeys(ARENA_ROLES, Advice.PREFERRED_LOCATION)


def um_window(
    trace: Trace,
    device: DeviceProfile,
    budget_bytes: int,
    *,
    advice: str | None = None,
    reserve: float | None = None,
    ahead_ns: int = 0,
) -> Plan:
    """Plans prefetches to the device and to the host, and discards.

    The advice by role that goes with the actions is given as memory is made; it is in the plan's options.

    Args:
        trace: one step.
        device: which has to page.
        budget_bytes: of device memory.
        advice: one of the paper's five words, for memory of every role; by default preferred location, or without any
            action what is fastest.
        reserve: part of the budget that the schedule leaves free, 0 to 1; None tries several, and no action at all.
        ahead_ns: how much earlier than the link asks for a prefetch begins, for ops or a link that may be faster.

    Raises:
        PolicyError: the device cannot page unified memory.
        BudgetError: the budget is less than two blocks of 2 MiB.
        UsageError: reserve or ahead_ns is out of range.
        InvalidAdviceError: no such advice.
    """
    device.require_unified_memory()
    if budget_bytes < _LEAST_BLOCKS * BLOCK_BYTES:
        least = format_bytes(_LEAST_BLOCKS * BLOCK_BYTES)
        raise BudgetError(
            f"a budget of {format_bytes(budget_bytes)} is below two blocks of 2 MiB: give at least {least}"
        )
    if not (reserve is None or 0 <= reserve <= 1) or ahead_ns < 0:
        raise UsageError(f"reserve {reserve}, ahead_ns {ahead_ns}: expected a reserve of 0 to 1, and at least 0 ns")
    words = _SCHEDULED if advice is None else dict.fromkeys(ARENA_ROLES, parse_advice(advice))

    def plan(actions: list[Action], advised: dict[Role, Advice], reserved: float | None) -> Plan:
        by_role = {role.name.lower(): _WORDS[advised[role]] for role in ARENA_ROLES}
        options = {**by_role, "reserve": reserved, "ahead_ns": ahead_ns}
        return Plan.from_actions(trace, actions, planner="um-window", budget_bytes=budget_bytes, options={**options})

    def schedules() -> Iterator[tuple[Plan, dict[Role, Advice]]]:
        if reserve is None:
            for advised in [words] if advice is not None else [words, UNADVISED.advice, ADVISE.advice]:
                yield plan([], advised, None), advised
        lives = Lives(trace)
        for reserved in RESERVES if reserve is None else (reserve,):
            blocks = int(budget_bytes // BLOCK_BYTES * (1 - reserved))
            yield plan(Schedule(lives, device, blocks, ahead_ns).actions, words, reserved), words

    return _fastest(trace, device, budget_bytes, schedules())


def _fastest(
    trace: Trace, device: DeviceProfile, budget_bytes: int, plans: Iterator[tuple[Plan, dict[Role, Advice]]]
) -> Plan:
    """The first of those that are simulated fastest; no further one where a step takes no longer than its ops."""
    best, best_ns = None, float("inf")
    for plan, advised in plans:
        steps = simulate_unified(
            trace, device, capacity_bytes=budget_bytes, advice=advised, plan=plan, iterations=_ITERATIONS
        ).steady
        step_ns = sum(step.duration_ns for step in steps)
        if step_ns < best_ns:
            best, best_ns = plan, step_ns
        if step_ns <= sum(step.compute_ns for step in steps):
            break
    assert best is not None
    return best
