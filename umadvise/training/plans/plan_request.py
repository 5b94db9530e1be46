"""What a plan is asked for: the step as a planner sees it, and the key by which its plan is known."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from umadvise.devices.rungs import Policy
from umadvise.planners.best import LONG
from umadvise.planners.judging.score import PAGING_PLANNERS
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records.plan import Plan
from umadvise.records.trace import Trace
from umadvise.training.plans import search_task
from umadvise.training.plans.cache import PlanKey
from umadvise.training.plans.device import PlanningDevice
from umadvise.training.plans.plan_memory import (
    PlanMemory,
    least_leaving_bytes,
    movable_storages,
    spare_bytes,
    staying_bytes,
    storages_in_chunks,
    unfilled_bytes,
)
from umadvise.training.plans.view import PlanningView, executed, transferred, view_of
from umadvise.training.recompute.choice import Region, repeatable_ops, with_inputs_held


@dataclass(frozen=True, eq=False)
class PlanRequest:
    """What a plan is asked for, and how.

    Attributes:
        step: the recorded step.
        policy: policy to plan for.
        key: what tells its plan from others.
        memory: device memory that the step has.
        view: the step as the planner sees it.
        repeatable: flag of each op of the trace whether it may run again; None lets every op do so.
    """

    step: RecordedStep
    policy: Policy
    key: PlanKey
    memory: PlanMemory
    view: PlanningView
    repeatable: NDArray[np.bool_] | None

    @property
    def planner(self) -> str:
        """Name of the planner that is asked."""
        return self.key.planner

    @property
    def searches(self) -> bool:
        """Whether the planner takes too long for a step to wait for it."""
        return self.planner in LONG

    def task(self, device: PlanningDevice, present: Plan) -> bytes:
        """What the process that searches for the plan is given.

        Args:
            device: device that the plan is for.
            present: plan of the step that drives until then.
        """
        memory, trace, trial = self.memory, self.view.trace, None
        # Whoever names a planner wants its plan; and ops that run again are the script's, not the engine's.
        if self.planner == "best" and self.repeatable is None:
            trial = search_task.PlanTrial(
                executed(self.step.trace, storages_in_chunks(self.step, memory)),
                memory.budget_bytes,
                memory.chunk_bytes,
                transferred(present, trace),
            )
        options = dict(self.key.options)
        return search_task.encode(
            self.planner, trace, device, self.view.budget_bytes, options, repeatable=self.repeatable, trial=trial
        )


def request_of(
    step: RecordedStep, policy: Policy, memory: PlanMemory, regions: Collection[Region], *, device_key: str
) -> PlanRequest:
    """Asks for a plan.

    Args:
        step: the recorded step to plan.
        policy: policy to plan for.
        memory: device memory that the step has.
        regions: marked regions of the step, whose ops may run again; none leaves the planner all ops of the step.
        device_key: what tells the device from others.

    Raises:
        UmadviseError: the step does not fit the memory.
    """
    if not (policy.recomputes and policy.planner == "best"):
        regions = ()
    trace = with_inputs_held(step.trace, regions) if regions else step.trace
    movable = movable_storages(step, memory)
    paging = policy.planner in PAGING_PLANNERS
    view = PlanningView(trace, memory.budget_bytes, 0) if paging else _view(trace, memory, movable)
    used = movable[: len(step.structure.storages)]
    where = "" if used.all() else hashlib.sha256(np.packbits(used).tobytes()).hexdigest()
    again = hashlib.sha256(repr(tuple(regions)).encode()).hexdigest() if regions else ""
    key = PlanKey(
        structure=step.digest + where + again,
        budget_bytes=view.budget_bytes,
        chunk_bytes=view.chunk_bytes,
        device=device_key,
        planner=policy.planner or "",
        options={"recompute": policy.recomputes, "paging": False} if policy.planner == "best" else {},
        durations=step.durations,
    )
    return PlanRequest(step, policy, key, memory, view, repeatable_ops(trace, regions) if regions else None)


def _view(trace: Trace, memory: PlanMemory, movable: NDArray[np.bool_]) -> PlanningView:
    least = staying_bytes(trace) + spare_bytes(memory.budget_bytes, memory.chunk_bytes)
    seen_bytes = memory.staying_bytes + unfilled_bytes(memory.budget_bytes, memory.chunk_bytes)
    return view_of(
        trace,
        budget_bytes=memory.budget_bytes,
        chunk_bytes=memory.chunk_bytes,
        staying_bytes=min(least, seen_bytes) if memory.staying_bytes else least,
        movable=movable,
        least_bytes=least_leaving_bytes(trace),
    )
