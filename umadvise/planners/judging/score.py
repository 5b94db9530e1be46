"""Scores a plan: simulates the step with it, by the rules of its kind, and the same step in unlimited memory."""

from typing import Any

import msgspec
import numpy as np

from umadvise.planners.capacity import Capacity
from umadvise.planners.paging.advice import by_role
from umadvise.records.counters import Count, Record
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import OF_UNIFIED_MEMORY, Plan
from umadvise.records.trace import Trace
from umadvise.simulator.stalls import Stalls
from umadvise.simulator.steady import SteadyStep, mean_step, swapped_step
from umadvise.simulator.swap import WITHOUT_END, simulate_resident, simulate_swap
from umadvise.simulator.unified import WARM_UP, simulate_unified

PAGING_PLANNERS = ("advice", "um-window")
"""Planners whose plans are for unified memory even where they have no actions."""
ITERATIONS = WARM_UP + 5


class Score(Record, frozen=True):
    """What one step with a plan takes, once the warm-up is over. Where there is a `problem`, its numbers are None.

    Attributes:
        planner: name of the planner that made the plan.
        budget_bytes: bytes that tensors may take on the device.
        problem: why the step does not run so; None where it does.
        peak_bytes: most bytes on the device at once.
        step_ns: length of the step.
        unlimited_ns: length of the same step in unlimited memory.
        overhead: part of `unlimited_ns` by which the step is longer.
        compute_ns: total nanoseconds of its ops, each once.
        recompute_ns: total nanoseconds of ops that run again.
        recomputed_ops: number of ops that run again.
        stalls: nanoseconds that ops stood still for memory, by cause.
        bytes_h2d: bytes paged or swapped in; not what the program itself copies.
        bytes_d2h: bytes paged or swapped out.
        fault_groups: number of 2 MiB blocks served; None where nothing pages.
        evictions: number of storages or blocks that left without being planned to.
        fragmentation_bytes: bytes that an allocator takes beyond what is live, at its peak: for plans of swaps one
            pool, best fit, that may grow; under unified memory this project's arenas.
        planning_ns: nanoseconds that the planner took; None where the plan was there.
        bound_ns: least length of the step under any plan of this kind; None where no bound is known.
        bound: name of the bound, see `umadvise.planners.bounds.bound`.
        regret: part of `bound_ns` by which the step is longer.
    """

    planner: str
    budget_bytes: Count
    problem: str | None = None
    peak_bytes: Count | None = None
    step_ns: Count | None = None
    unlimited_ns: Count | None = None
    overhead: float | None = None
    compute_ns: Count | None = None
    recompute_ns: Count | None = None
    recomputed_ops: Count | None = None
    stalls: Stalls | None = None
    bytes_h2d: Count | None = None
    bytes_d2h: Count | None = None
    fault_groups: Count | None = None
    evictions: Count | None = None
    fragmentation_bytes: Count | None = None
    planning_ns: Count | None = None
    bound_ns: Count | None = None
    bound: str | None = None
    regret: float | None = None


def made_by(plan: Plan) -> str:
    """The planner that made a plan: one that `best` returns may be another planner's."""
    return str(plan.options.get("from", plan.planner))


def pages(plan: Plan) -> bool:
    """Whether a plan is one for unified memory: the others swap."""
    if len(plan) == 0:
        return made_by(plan) in PAGING_PLANNERS
    return bool(np.isin(plan.actions.kind, OF_UNIFIED_MEMORY).all())


def unlimited_step_ns(trace: Trace, device: DeviceProfile) -> int:
    """Nanoseconds of the step where everything is on the device, however much that is."""
    return simulate_resident(trace, device, allocator="exact").simulation.step_ns


def score(
    trace: Trace,
    device: DeviceProfile,
    plan: Plan,
    *,
    budget_bytes: int | None = None,
    capacity: Capacity | None = None,
    device_bytes: int = 0,
    beside: bool = False,
    iterations: int = ITERATIONS,
    planning_ns: int | None = None,
) -> Score:
    """Simulates the step with a plan, and the same step in unlimited memory.

    Args:
        trace: trace that the plan was made for.
        device: profile of the device to simulate.
        plan: plan of swaps and recomputation, or one for unified memory.
        budget_bytes: bytes that tensors may take on the device; None is the plan's budget.
        capacity: what each storage takes on the device, and the budget, in place of `budget_bytes`; None: its size.
        device_bytes: bytes of a larger device, on which the guard keeps that budget; 0: the device has no more, and its
            driver evicts. The guard sends away what leaves before an op begins, and knows of no discards.
        beside: whether ops wait for no prefetch of which they use nothing, see `simulate_unified`.
        iterations: number of simulated steps of unified memory, the warm-up included.
        planning_ns: nanoseconds that making the plan took; None where that is not known.

    Raises:
        BudgetError: it does not run in the budget.
        PolicyError: the device cannot do what the plan says.
        UsageError: the plan is wrong.
    """
    if capacity is not None:
        trace, budget_bytes = capacity.charged(trace), capacity.budget_bytes
        plan = plan.fitted(trace)
    budget_bytes = plan.budget_bytes if budget_bytes is None else budget_bytes
    if pages(plan):
        kept = {"budget_bytes": budget_bytes} if budget_bytes < device_bytes else {}
        capacity_bytes = max(budget_bytes, device_bytes)
        step, rest = _paged(trace, device, plan, iterations, capacity_bytes=capacity_bytes, beside=beside, **kept)
    else:
        step, rest = _swapped(trace, device, plan, budget_bytes)
    unlimited_ns = unlimited_step_ns(trace, device)
    overhead = (step.step_ns - unlimited_ns) / unlimited_ns if unlimited_ns > 0 else None
    columns: dict[str, Any] = {
        **msgspec.structs.asdict(step),
        **rest,
        "planning_ns": planning_ns,
        "budget_bytes": budget_bytes,
    }
    return Score(planner=plan.planner, unlimited_ns=unlimited_ns, overhead=overhead, **columns)


def _swapped(trace: Trace, device: DeviceProfile, plan: Plan, budget_bytes: int) -> tuple[SteadyStep, dict[str, int]]:
    result = simulate_swap(trace, device, plan, budget_bytes=budget_bytes, spans=False).result
    pool = simulate_swap(trace, device, plan, budget_bytes=WITHOUT_END, allocator="best_fit", spans=False).result
    return swapped_step(result), {
        "peak_bytes": result.peak_live_bytes,
        "recompute_ns": result.recompute_ns,
        "recomputed_ops": result.recomputed_ops,
        "fragmentation_bytes": pool.fragmentation_bytes,
    }


def _paged(
    trace: Trace, device: DeviceProfile, plan: Plan, iterations: int, **options: Any
) -> tuple[SteadyStep, dict[str, int]]:
    simulation = simulate_unified(
        trace,
        device,
        # Given as memory is made: no anchor of a plan is early enough.
        advice=by_role(plan) if made_by(plan) in PAGING_PLANNERS else None,
        plan=None if made_by(plan) == "advice" else plan,
        iterations=iterations,
        **options,
    )
    memory = [step.memory for step in simulation.steady]
    return mean_step(simulation), {
        "peak_bytes": max(each.resident_peak_bytes or 0 for each in memory),
        "recompute_ns": 0,
        "recomputed_ops": 0,
        "fragmentation_bytes": max(each.reserved_peak_bytes - each.requested_peak_bytes for each in memory),
    }
