"""The steps that are run on a simulated GPU, and their plans, made as a session makes them."""

import functools
from collections.abc import Collection
from dataclasses import dataclass

from harness import EXAMPLES  # noqa: F401  # isort: split
from networks import NETWORKS

from umadvise import planners
from umadvise.planners.bounds.bound import lower_bound
from umadvise.planners.judging.score import score
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Plan
from umadvise.records.trace import Trace
from umadvise.training.plans.plan_memory import chunk_bytes_of, chunk_capacity, spare_bytes, staying_bytes
from umadvise.training.recompute.choice import Region, repeatable_ops, with_inputs_held

STEPS = {
    "bert_large": functools.partial(NETWORKS["bert_large"], 32, length=512),
    "resnet50": functools.partial(NETWORKS["resnet50"], 128),
    "gpt2_medium": functools.partial(NETWORKS["gpt2"], 8, layers=24, width=1024, heads=16),
}


@dataclass(frozen=True, slots=True)
class Planned:
    """A step with its plan for a budget.

    Attributes:
        plan: plan of the step's trace.
        chunk_bytes: size of a chunk in bytes.
        bound_ms: milliseconds below which no plan that only swaps gets the step.
        planned_ms: milliseconds of the step that the planner promises.
    """

    plan: Plan
    chunk_bytes: int
    bound_ms: float
    planned_ms: float


def planned(
    trace: Trace,
    device: DeviceProfile,
    budget_bytes: int,
    seconds: float,
    regions: Collection[Region] | None = None,
    chunk_bytes: int | None = None,
) -> Planned:
    """Plans a step as a session does.

    Args:
        trace: trace of the step.
        device: device that the step runs on.
        budget_bytes: device memory for chunks.
        seconds: time that the planner may take.
        regions: marked regions in which the plan may have ops run again; None: it may have none.
        chunk_bytes: size of a chunk in bytes; None: as a session has them.
    """
    if regions:
        trace = with_inputs_held(trace, regions)
    chunk_bytes = chunk_bytes or chunk_bytes_of(budget_bytes)
    stays = staying_bytes(trace) + spare_bytes(budget_bytes, chunk_bytes)
    capacity = chunk_capacity(trace, budget_bytes=budget_bytes, chunk_bytes=chunk_bytes, staying_bytes=stays)
    repeatable = repeatable_ops(trace, regions) if regions else None
    options = {"recompute": regions is not None, "paging": False, "seconds": seconds}
    plan = planners.run("best", trace, device, capacity, None, (), repeatable, **options)
    promised_ns = score(trace, device, plan, capacity=capacity).step_ns or 0
    bound = lower_bound(trace, device, budget_bytes)
    return Planned(plan, chunk_bytes, bound.step_ns / 1e6, promised_ns / 1e6)
