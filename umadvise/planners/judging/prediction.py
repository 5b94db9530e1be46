"""Would this step run on that device, how fast, and what would stand in its way: one row for each way to run it."""

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
"""Explicit swapping on demand: no plan, and what is used furthest ahead leaves first (Belady, 1966)."""
PLAN = "plan"
"""What a plan of the user's says."""
WAYS = (RESIDENT.name, UNADVISED.name, ADVISE.name, SWAP)


class PredictedWay(Record, frozen=True):
    """One way to run the step. Where `problem` says why it cannot be, all numbers but the need are unknown.

    Attributes:
        name: one of WAYS, "advice" for advice that the user chose, or PLAN.
        problem: why the step does not run so; None where it does.
        step_ns: mean over the iterations after the warm-up.
        compute_ns: of the ops of one step.
        stalls: of one step.
        bytes_h2d: paged or swapped in during one step; not what the program itself copies.
        bytes_d2h: likewise, out.
        fault_groups: 2 MiB blocks served in one step; None where nothing pages.
        evictions: storages or blocks that had to leave in one step.
        needed_bytes: device memory at the peak.
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
    """A step on a device, run in several ways."""

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
    """Simulates a step in every way there is.

    Args:
        trace: one step. Its ops get the durations of the device's roofline unless it was recorded for that device.
        device: of the catalogue.
        budget_bytes: of device memory; None is the plan's, without one all that the device has.
        advice: one more way: unified memory with this advice by role.
        plan: one more way: what it says. It is of the trace with the durations that it gets here.
        iterations: of unified memory, the warm-up included.

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
