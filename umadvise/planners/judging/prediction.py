"""Predicts for each way to run a step on a device whether it would run, how fast, and why not where it would not."""

from umadvise._version import __version__
from umadvise.devices.rungs import ADVISE, ARENA_ROLES, RESIDENT, UNADVISED
from umadvise.errors import BudgetError, PolicyError, UsageError
from umadvise.planners.judging.score import Score, score
from umadvise.recording.dry.roofline import retimed
from umadvise.records.counters import Count, Record
from umadvise.records.device import DeviceProfile
from umadvise.records.enums import Advice, Role
from umadvise.records.plan import Plan
from umadvise.records.trace import Trace
from umadvise.simulator.stalls import Stalls
from umadvise.simulator.steady import SteadyStep, mean_step, swapped_step
from umadvise.simulator.swap import simulate_resident, simulate_swap
from umadvise.simulator.unified import WARM_UP, simulate_unified

SCHEMA = "umadvise.prediction/1"
SWAP = "swap"
"""Name of the way that swaps on demand: no plan, and what is used furthest ahead leaves first (Belady, 1966)."""
PLAN = "plan"
"""Name of the way that follows the caller's plan."""
WAYS = (RESIDENT.name, UNADVISED.name, ADVISE.name, SWAP)


class PredictedWay(Record, frozen=True):
    """One way to run the step. Where `problem` says why it cannot be, all numbers but `needed_bytes` are None.

    Attributes:
        name: one of WAYS, "advice" for advice that the user chose, or PLAN.
        problem: why the step does not run so; None where it does.
        step_ns: nanoseconds of one step; of unified memory the mean over the iterations after the warm-up.
        compute_ns: total nanoseconds of the ops of one step.
        stalls: nanoseconds of one step that ops stood still for memory, by cause.
        bytes_h2d: bytes paged or swapped in during one step; not what the program itself copies.
        bytes_d2h: bytes paged or swapped out during one step.
        fault_groups: number of 2 MiB blocks served in one step; None where nothing pages.
        evictions: number of storages or blocks that had to leave in one step.
        needed_bytes: most bytes of device memory in one step.
    """

    name: str
    problem: str | None = None
    step_ns: Count | None = None
    compute_ns: Count | None = None
    stalls: Stalls | None = None
    bytes_h2d: Count | None = None
    bytes_d2h: Count | None = None
    fault_groups: Count | None = None
    evictions: Count | None = None
    needed_bytes: Count | None = None


class StepPrediction(Record, frozen=True, tag_field="schema", tag=SCHEMA):
    """Predictions for one step on one device, one for each way to run it."""

    workload: str
    device: str
    budget_bytes: Count
    umadvise_version: str
    ways: tuple[PredictedWay, ...]


def predict(
    trace: Trace,
    device: DeviceProfile,
    *,
    budget_bytes: int | None = None,
    advice: dict[Role, Advice] | None = None,
    plan: Plan | None = None,
    iterations: int = WARM_UP + 5,
) -> StepPrediction:
    """Simulates a step in every way: without paging, with unified memory, swapping on demand, and with a plan.

    Args:
        trace: one step. Its ops get the durations of the device's roofline unless it was recorded for that device.
        device: profile of the device.
        budget_bytes: bytes that tensors may take on the device; None is the plan's budget, without a plan all that the
            device leaves to programs.
        advice: advice by role for one more way, with unified memory; None for no such way.
        plan: plan for one more way, made for the trace with the durations that it gets here; None for no such way.
        iterations: number of simulated steps of unified memory, the warm-up included.

    Raises:
        UsageError: a budget that is more than the device has, or an argument is wrong.
    """
    if budget_bytes is None and plan is not None:
        budget_bytes = plan.budget_bytes
    if budget_bytes is not None and budget_bytes > device.usable_bytes:
        raise UsageError(
            f"a budget of {budget_bytes} bytes is more than {device.name} leaves to programs: "
            f"expected at most {device.usable_bytes}"
        )
    if budget_bytes is None:
        budget_bytes = device.usable_bytes
    if trace.device != device.name:
        trace = retimed(trace, device)
    unified = [(UNADVISED.name, UNADVISED.advice), (ADVISE.name, ADVISE.advice)]
    if advice is not None:
        unified.append(("advice", {role: advice.get(role, Advice.NONE) for role in ARENA_ROLES}))
    ways = (
        _resident(trace, device, budget_bytes),
        *(_unified(name, chosen, trace, device, budget_bytes, iterations) for name, chosen in unified),
        _swapped(trace, device, budget_bytes),
        *(() if plan is None else (_planned(plan, trace, device, budget_bytes, iterations),)),
    )
    return StepPrediction(trace.workload, device.name, budget_bytes, __version__, ways)


def _resident(trace: Trace, device: DeviceProfile, budget_bytes: int) -> PredictedWay:
    residence = simulate_resident(trace, device)
    if residence.needed_bytes > budget_bytes:
        return PredictedWay(RESIDENT.name, problem="does not fit", needed_bytes=residence.needed_bytes)
    return _way(RESIDENT.name, swapped_step(residence.simulation.result), residence.needed_bytes)


def _unified(
    name: str, advice: dict[Role, Advice], trace: Trace, device: DeviceProfile, budget_bytes: int, iterations: int
) -> PredictedWay:
    try:
        simulation = simulate_unified(trace, device, capacity_bytes=budget_bytes, advice=advice, iterations=iterations)
    except (PolicyError, BudgetError) as error:
        return PredictedWay(name, problem=str(error))
    return _way(name, mean_step(simulation), max(step.memory.reserved_peak_bytes for step in simulation.steady))


def _swapped(trace: Trace, device: DeviceProfile, budget_bytes: int) -> PredictedWay:
    try:
        simulation = simulate_swap(
            trace, device, None, budget_bytes=budget_bytes, allocator="va_chunks", eviction="belady", spans=False
        )
    except BudgetError as error:
        return PredictedWay(SWAP, problem=str(error))
    return _way(SWAP, swapped_step(simulation.result), simulation.result.peak_reserved_bytes)


def _planned(plan: Plan, trace: Trace, device: DeviceProfile, budget_bytes: int, iterations: int) -> PredictedWay:
    try:
        result = score(trace, device, plan, budget_bytes=budget_bytes, iterations=iterations)
    except (PolicyError, BudgetError) as error:
        return PredictedWay(PLAN, problem=str(error))
    return _way(PLAN, result, result.peak_bytes)


def _way(name: str, step: SteadyStep | Score, needed_bytes: int | None) -> PredictedWay:
    columns = {each: getattr(step, each) for each in SteadyStep.__struct_fields__}
    return PredictedWay(name, needed_bytes=needed_bytes, **columns)
