"""From a recorded step to the plan that drives the next one: what it takes, the planner, and plans known already."""

import functools
import hashlib
import logging
import math
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from umadvise import planners
from umadvise.devices.rungs import LADDER, Policy
from umadvise.errors import FormatError, UmadviseError
from umadvise.planners.at_once import at_once
from umadvise.planners.best import LONG
from umadvise.planners.capacity import Capacity
from umadvise.planners.judging.score import PAGING_PLANNERS, score
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records import plan_file
from umadvise.records.plan import ActionKind, Plan
from umadvise.records.units import format_bytes
from umadvise.simulator.gpu import GpuSimulation
from umadvise.training.plans import search_task
from umadvise.training.plans.cache import PlanCache, PlanKey
from umadvise.training.plans.device import PlanningDevice
from umadvise.training.plans.plan_memory import PlanMemory, capacity_of, movable_storages, storages_in_chunks
from umadvise.training.plans.planned_step import PlannedStep
from umadvise.training.plans.prediction import predict_swaps
from umadvise.training.plans.search import PlanSearch
from umadvise.training.recompute.choice import Region, repeatable_ops, with_inputs_held

log = logging.getLogger("umadvise")

AS_GOOD = 1.02
"""With another step's plan a step may take so many times as long as with its own, in simulation.

What two plans in turns do not both keep crosses the link once more, which was a tenth of all that a step brought.
"""
AS_MUCH = 2
"""And it may bring so many times the bytes: while the link is idle they cost no time.

With 1.25 the worst step among sentences of any length took 1.17 times as long as alone, with 2 it takes 1.02 times
(`tools/benchmark_changing.py`, half of the largest need). Without a bound small steps swap as much as large ones.
"""


Improved: TypeAlias = tuple[Policy, PlannedStep]
"""A policy, and a step that was planned for it with the better plan that a search has found."""


class PlanMaker:
    """Makes plans for one device, each only once. What takes long is searched for beside the training.

    Attributes:
        device: device that the plans are for.
    """

    def __init__(
        self,
        device: PlanningDevice,
        cache: PlanCache,
        search: PlanSearch[Callable[[bytes], Improved | None]] | None = None,
    ) -> None:
        """Takes what all plans have in common.

        Args:
            device: device that the plans are for.
            cache: place where plans are kept.
            search: what makes the plans of planners that search; None: those that are made at once are all.
        """
        self.device = device
        self._cache = cache
        self._search = search
        self._known: dict[str, Plan] = {}
        self._quick: dict[str, Plan] = {}  # made at once, in place of what a search may find
        self._warned_of: set[str] = set()  # planners that had no plan: a loop may have many such steps
        # By ops, options and budget: the last plan that is a step's own, and the name of that step.
        self._of_alike: dict[tuple[str, str, int], tuple[str, Plan]] = {}

    @property
    def h2d_bytes_per_s(self) -> int:
        """Speed of the link to the device in bytes a second."""
        return round(self.device.profile.bandwidth_h2d)

    def plan(
        self, step: RecordedStep, policy: Policy, memory: PlanMemory, regions: Collection[Region] = ()
    ) -> Plan | None:
        """The plan of a step for a policy; None, with a line in the log, where its planner has none.

        The first such line is a warning.

        No caller waits long: where the planner searches, this is a plan that was made at once, unless a search for the
        same step has ended. What a search finds later, `improved` returns; a step that was told from a training's
        first one is not searched for, as the real one comes next.

        Args:
            step: the recorded step to plan.
            policy: policy to plan for.
            memory: device memory that the step has.
            regions: marked regions of the step, whose ops may run again; none leaves the planner all ops of the step.
        """
        assert policy.planner is not None
        if not (policy.recomputes and policy.planner == "best"):
            regions = ()
        held = replace(step, trace=with_inputs_held(step.trace, regions)) if regions else step
        try:
            key, plan = self._plan(held, policy, memory, regions)
            fitted = plan.fitted(step.trace) if regions else plan
        except (UmadviseError, ValueError) as error:  # a plan that cannot be executed is a ValueError
            level = logging.INFO if policy.planner in self._warned_of else logging.WARNING
            self._warned_of.add(policy.planner)
            log.log(
                level,
                "planner %s has no plan for %s: %s. What is used furthest ahead leaves first",
                policy.planner,
                format_bytes(memory.budget_bytes),
                error,
            )
            return None
        if key.name not in self._known and self._search is not None and step.durations != "first step":
            task = functools.partial(self._task, key, held, memory, regions, plan)
            self._search.ask(key.name, task, functools.partial(self._found, key, step, held, policy, memory))
        return fitted

    def searches(self, policy: Policy) -> bool:
        """Whether what `plan` returns for a policy may be improved later."""
        return self._search is not None and policy.planner in LONG

    def improved(self) -> list[Improved]:
        """Policies and steps that `plan` was asked about, with the better plans that searches have found for them.

        To be called at each step's edge: what was found before the last call is left out. It waits for nothing, but for
        a device in virtual time: see `PlanSearch`.
        """
        found = (read(packed) for read, packed in (self._search.ended() if self._search is not None else ()))
        return [each for each in found if each is not None]

    def close(self) -> None:
        """Ends what is searched for."""
        if self._search is not None:
            self._search.close()

    def _plan(
        self, step: RecordedStep, policy: Policy, memory: PlanMemory, regions: Collection[Region] = ()
    ) -> tuple[PlanKey, Plan]:
        """A plan that is known, or that is made at once, and its key."""
        movable = movable_storages(step, memory)
        paging = policy.planner in PAGING_PLANNERS
        capacity = Capacity(memory.budget_bytes) if paging else capacity_of(step.trace, memory, movable)
        used = movable[step.trace.used]
        key = PlanKey(
            structure=step.digest,
            budget_bytes=capacity.budget_bytes,
            chunk_bytes=0 if paging else memory.chunk_bytes,
            device=self.device.key,
            planner=policy.planner or "",
            options={"recompute": policy.recomputes, "paging": False} if policy.planner == "best" else {},
            durations=step.durations,
            movable="" if used.all() else hashlib.sha256(np.packbits(used).tobytes()).hexdigest(),
            regions=hashlib.sha256(repr(tuple(regions)).encode()).hexdigest() if regions else "",
        )
        known = self._known[key.name] if key.name in self._known else self._cache.load(key, step.trace)
        if known is not None:
            self._known[key.name] = known
        source = "was known"
        begun = time.monotonic()
        plan = self._quick.get(key.name) if known is None else known
        if plan is None:
            plan = self._made(key, step, memory, capacity)
            source = f"took {time.monotonic() - begun:.2f} s"
        log.info("a plan of %s with %d actions for %d ops: %s", key.planner, len(plan), len(step.trace.ops), source)
        return key, plan

    def _made(self, key: PlanKey, step: RecordedStep, memory: PlanMemory, capacity: Capacity) -> Plan:
        """Plans now. Where the planner searches it is `at_once` that plans, and only this process knows the plan."""
        if key.planner not in LONG:
            return self._keep(key, step, memory, planners.run(key.planner, step.trace, self.device.profile, capacity))
        made = capacity.planned(at_once, step.trace, self.device.profile)
        plan = self._quick[key.name] = self._as_others(key, step, memory, made)
        return plan

    def _task(
        self, key: PlanKey, step: RecordedStep, memory: PlanMemory, regions: Collection[Region], present: Plan
    ) -> bytes:
        """The search for a better plan than the present one, as bytes for the process that makes it."""
        trace, trial = step.trace, None
        # A user who names a planner gets its plan. The engine cannot simulate ops of the script that run again.
        if key.planner == "best" and not regions:
            in_chunks = storages_in_chunks(step, memory)
            trial = search_task.PlanTrial(in_chunks, memory.budget_bytes, memory.chunk_bytes, present)
        return search_task.encode(
            key.planner,
            trace,
            self.device,
            capacity_of(trace, memory, movable_storages(step, memory)),
            dict(key.options),
            repeatable=repeatable_ops(trace, regions) if regions else None,
            trial=trial,
        )

    def _found(
        self,
        key: PlanKey,
        step: RecordedStep,
        held: RecordedStep,
        policy: Policy,
        memory: PlanMemory,
        packed: bytes,
    ) -> Improved | None:
        """Reads the plan that a search has found for a step, as it is while its inputs are held."""
        try:
            plan = self._keep(key, held, memory, plan_file.decode(packed, held.trace))
            plan = plan if held is step else plan.fitted(step.trace)
        except (FormatError, ValueError) as error:
            log.info("the search for a better plan of %s found none: %s", key.planner, error)
            return None
        ops = len(step.trace.ops)
        log.info("a plan of %s with %d actions for %d ops: found by its search", key.planner, len(plan), ops)
        return policy, PlannedStep(step, plan)

    def _keep(self, key: PlanKey, step: RecordedStep, memory: PlanMemory, made: Plan) -> Plan:
        """Keeps the plan that a step gets, and returns it."""
        known = self._known[key.name] = self._as_others(key, step, memory, made)
        self._quick.pop(key.name, None)
        self._cache.keep(key, known)
        return known

    def _as_others(self, key: PlanKey, step: RecordedStep, memory: PlanMemory, own: Plan) -> Plan:
        """The plan of the last step of the same ops, but of other sizes, where that is as good; else the step's own.

        What a step finds on the device is what the one before has left there: steps in turns fit each other where they
        keep the same parameters.
        """
        if key.planner != "best" or key.regions:
            return own
        alike = step.ops_digest, repr(key.options), key.budget_bytes
        name, known = self._of_alike.get(alike, (key.name, own))
        if name != key.name:
            others = known.fitted(step.trace)
            as_short = self._step_ns(step, others, memory) <= AS_GOOD * self._step_ns(step, own, memory) < math.inf
            if as_short and _brought_bytes(others) <= AS_MUCH * _brought_bytes(own):
                return others
        self._of_alike[alike] = key.name, own
        return own

    def _step_ns(self, step: RecordedStep, plan: Plan, memory: PlanMemory) -> float:
        try:
            return self.simulate(step, plan, memory).mean_step_ns
        except (UmadviseError, ValueError):  # an op finds no room
            return math.inf

    def predict(
        self, step: RecordedStep, rungs: dict[str, PlanMemory], *, without_plans: bool = True
    ) -> dict[str, int]:
        """Nanoseconds of the step on each of some rungs, simulated; those that it cannot run on are left out.

        Args:
            step: the recorded step.
            rungs: device memory that the step has on each rung, by its name.
            without_plans: whether it may swap without a plan. Plans leave more room than is needed where all goes as in
                the simulation; elsewhere an op may find none.
        """
        predicted: dict[str, int] = {}
        for rung, memory in rungs.items():
            try:
                predicted[rung] = self.predicted_ns(step, rung, memory, without_plans=without_plans)
            except (UmadviseError, ValueError) as error:
                log.info("rung %s is out of the question: %s", rung, error)
        return predicted

    def predicted_ns(self, step: RecordedStep, rung: str, memory: PlanMemory, *, without_plans: bool = True) -> int:
        """Nanoseconds of the step on one rung, simulated; see `predict`.

        Raises:
            UmadviseError: it does not run so.
            ValueError: a plan that cannot be executed.
        """
        policy, profile, trace = LADDER[rung], self.device.profile, step.trace
        if policy.planner is None:
            plan = planners.run("advice", trace, profile, memory.budget_bytes)
        elif policy.planner in PAGING_PLANNERS:
            plan = self._planned(step, policy, memory)
        else:
            planned = self._plan_if_any if without_plans else self._planned
            return round(self.simulate(step, planned(step, policy, memory), memory).mean_step_ns)
        scored = score(
            trace,
            profile,
            plan,
            budget_bytes=memory.budget_bytes,
            device_bytes=memory.device_bytes,
            beside=self.device.beside,
        )
        return scored.step_ns or 0

    def _planned(self, step: RecordedStep, policy: Policy, memory: PlanMemory) -> Plan:
        return self._plan(step, policy, memory)[1]

    def _plan_if_any(self, step: RecordedStep, policy: Policy, memory: PlanMemory) -> Plan | None:
        try:
            return self._planned(step, policy, memory)
        except (UmadviseError, ValueError) as error:
            log.info("a step on %s is predicted without a plan: %s", policy.name, error)
            return None

    def simulate(
        self, step: RecordedStep, plan: Plan | None, memory: PlanMemory, addresses: NDArray[np.uint64] | None = None
    ) -> GpuSimulation:
        """Simulates what the device will do with a plan of swaps, see `umadvise.training.plans.prediction`.

        Args:
            step: the recorded step to simulate.
            plan: plan of swaps for that step; None: what is used furthest ahead leaves first.
            memory: device memory that the step has.
            addresses: address of each storage where the step begins, 0 where it is not known.

        Raises:
            BudgetError: an op finds no room.
            ValueError: the plan is not one of the step.
        """
        return predict_swaps(
            step.trace,
            plan,
            self.device,
            budget_bytes=memory.budget_bytes,
            chunk_bytes=memory.chunk_bytes,
            in_chunks=storages_in_chunks(step, memory),
            addresses=addresses,
        )


def _brought_bytes(plan: Plan) -> int:
    return int(plan.actions.bytes[plan.actions.kind == ActionKind.SWAP_IN].sum())


def recomputes(plan: Plan) -> bool:
    """Whether a plan has any result made again by its ops."""
    return bool((plan.actions.kind == ActionKind.RECOMPUTE).any())
