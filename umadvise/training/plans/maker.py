"""From a recorded step to the plan that drives the next one: the view, the planner, and plans known already."""

import functools
import logging
import math
import time
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from umadvise import planners
from umadvise.devices.rungs import LADDER, Policy
from umadvise.errors import FormatError, UmadviseError
from umadvise.planners.at_once import at_once
from umadvise.planners.best import LONG
from umadvise.planners.judging.score import PAGING_PLANNERS, score
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records import plan_file
from umadvise.records.plan import ActionKind, Plan
from umadvise.records.units import format_bytes
from umadvise.simulator.gpu import GpuSimulation
from umadvise.training.plans.cache import PlanCache
from umadvise.training.plans.device import PlanningDevice
from umadvise.training.plans.plan_memory import PlanMemory, storages_in_chunks
from umadvise.training.plans.plan_request import PlanRequest, request_of
from umadvise.training.plans.prediction import predict_swaps
from umadvise.training.plans.search import PlanSearch
from umadvise.training.plans.view import transferred
from umadvise.training.recompute.choice import Region

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


@dataclass(frozen=True, eq=False)
class ImprovedPlan:
    """A plan that a search has found, of a step that `PlanMaker.plan` was asked about.

    Attributes:
        step: the step, as it was given to `PlanMaker.plan`.
        policy: policy that it was planned for.
        plan: plan of the step's trace, in place of the one that was made at once.
    """

    step: RecordedStep
    policy: Policy
    plan: Plan


class PlanMaker:
    """Makes plans for one device, each only once. What takes long is searched for beside the training.

    Attributes:
        device: device that the plans are for.
    """

    def __init__(
        self, device: PlanningDevice, cache: PlanCache, search: "PlanSearch[PlanRequest] | None" = None
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
        # By ops, rung, planner and budget: the last plan that is a step's own, and the name of that step.
        self._of_alike: dict[tuple[str, str, str, int], tuple[str, Plan]] = {}

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
        try:
            asked = self._request(step, policy, memory, regions)
            plan = self._plan(asked)
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
        if asked.key.name not in self._known and self._search is not None and step.durations != "first step":
            self._search.ask(asked.key.name, functools.partial(asked.task, self.device, plan), asked)
        return plan

    def searches(self, policy: Policy) -> bool:
        """Whether what `plan` returns for a policy may be improved later."""
        return self._search is not None and policy.planner in LONG

    def improved(self) -> list[ImprovedPlan]:
        """Plans that searches have found since the last call, better than those that were made at once.

        To be called at each step's edge. It waits for nothing, but for a device in virtual time: see `PlanSearch`.
        """
        found = []
        for asked, packed in self._search.ended() if self._search is not None else ():
            try:
                made = plan_file.decode(packed, asked.view.trace)
                plan = self._keep(asked, made)
            except (FormatError, ValueError) as error:
                log.info("the search for a better plan of %s found none: %s", asked.planner, error)
                continue
            ops = len(asked.step.trace.ops)
            log.info("a plan of %s with %d actions for %d ops: found by its search", asked.planner, len(plan), ops)
            found.append(ImprovedPlan(asked.step, asked.policy, plan))
        return found

    def close(self) -> None:
        """Ends what is searched for."""
        if self._search is not None:
            self._search.close()

    def _request(
        self, step: RecordedStep, policy: Policy, memory: PlanMemory, regions: Collection[Region] = ()
    ) -> PlanRequest:
        return request_of(step, policy, memory, regions, device_key=self.device.key)

    def _plan(self, asked: PlanRequest) -> Plan:
        """A plan that is known, or that is made at once."""
        step, name = asked.step, asked.key.name
        known = self._known[name] if name in self._known else self._cache.load(asked.key, step.structure)
        if known is not None:
            self._known[name] = known
        source = "was known"
        begun = time.monotonic()
        plan = self._quick.get(name) if known is None else known
        if plan is None:
            plan = self._made(asked)
            source = f"took {time.monotonic() - begun:.2f} s"
        log.info("a plan of %s with %d actions for %d ops: %s", asked.planner, len(plan), len(step.trace.ops), source)
        return transferred(plan, step.trace)

    def _made(self, asked: PlanRequest) -> Plan:
        """Plans now. Where the planner searches it is `at_once` that plans, and only this process knows the plan."""
        view, profile, step = asked.view, self.device.profile, asked.step
        if not asked.searches:
            self._keep(asked, planners.run(asked.planner, view.trace, profile, view.budget_bytes))
            return self._known[asked.key.name]
        made = at_once(view.trace, profile, view.budget_bytes)
        plan = self._quick[asked.key.name] = transferred(self._as_others(asked, made), step.structure)
        return plan

    def _keep(self, asked: PlanRequest, made: Plan) -> Plan:
        """Keeps a plan of the view that a planner was given, and returns it as one of the step."""
        step = asked.step
        known = self._known[asked.key.name] = transferred(self._as_others(asked, made), step.structure)
        self._quick.pop(asked.key.name, None)
        self._cache.keep(asked.key, known)
        return transferred(known, step.trace)

    def _as_others(self, asked: PlanRequest, made: Plan) -> Plan:
        """The plan of the last step of the same ops, but of other sizes, where that is as good; else the step's own.

        What a step finds on the device is what the one before has left there: steps in turns fit each other where they
        keep the same parameters.
        """
        step = asked.step
        own = transferred(made, step.trace)
        if asked.planner != "best" or asked.repeatable is not None:
            return own
        alike = step.ops_digest, asked.policy.name, asked.planner, asked.key.budget_bytes
        name, known = self._of_alike.get(alike, (asked.key.name, own))
        if name != asked.key.name:
            others = transferred(known, step.trace)
            as_short = self._step_ns(asked, others) <= AS_GOOD * self._step_ns(asked, own) < math.inf
            if as_short and _brought_bytes(others) <= AS_MUCH * _brought_bytes(own):
                return others
        self._of_alike[alike] = asked.key.name, own
        return own

    def _step_ns(self, asked: PlanRequest, plan: Plan) -> float:
        try:
            return self.simulate(asked.step, plan, asked.memory).mean_step_ns
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
        return self._plan(self._request(step, policy, memory))

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
