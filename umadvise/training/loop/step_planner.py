"""Plans the steps of a session: with the planner of its policy, and marked regions that run again."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from umadvise._native.abi import Memory
from umadvise.devices.rungs import ADVISE, SWAP, WINDOW, Policy
from umadvise.planners.judging.score import PAGING_PLANNERS, made_by, pages
from umadvise.planners.paging.advice import by_role
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records.fault_profile import RungPrediction
from umadvise.records.plan import Plan
from umadvise.records.units import PART_BYTES
from umadvise.simulator.gpu import GpuSimulation
from umadvise.torch_seam.replacements import Replacements
from umadvise.torch_seam.runtime import Runtime
from umadvise.training.loop.plan_cycle import Planning, RecordAgain
from umadvise.training.memory_split import MemorySplit
from umadvise.training.plans.cache import PlanCache
from umadvise.training.plans.device import planning_device
from umadvise.training.plans.maker import PlanMaker, recomputes
from umadvise.training.plans.planned_step import PlannedStep
from umadvise.training.plans.search import PlanSearch
from umadvise.training.plans.what_if import (
    freed_sooner,
    held_for_nothing,
    maker_of,
    scattered_bytes,
    stateless,
    without,
)
from umadvise.training.policy.degraded import CHUNKS, MIGRATION
from umadvise.training.recompute.choice import choose, ops_of
from umadvise.training.recompute.regions import Regions

log = logging.getLogger("umadvise")


_MORE = (0.25, 0.5, 0.75)
"""Parts of the memory that a step lacks: what would they change?"""
_ENOUGH = (1.0, 1.125, 1.25, 1.5, 2.0)
"""Budgets that may do, in parts of what is live at once: pages that several tensors share take more than these do."""
_PLENTY = 4
"""A budget that certainly does, likewise."""
_AS_FAST = 1.02
"""With a budget that does a step takes at most so many times as long."""


class StepPlanner:
    """Plans recorded steps.

    Attributes:
        state: patched state of the process.
        split: division of the device's memory.
        device: the device that is planned for.
        policy: policy that steps are planned for now.
        has_chosen: whether ops were chosen that run again.
    """

    def __init__(self, state: Runtime, split: MemorySplit, policy: Policy, *, plans: bool, chooses: bool) -> None:
        """Prepares to plan.

        Args:
            state: patched state of the process.
            split: division of the device's memory.
            policy: policy of the first step.
            plans: whether anything is ever to be planned.
            chooses: whether the policy may become another one.
        """
        self.state = state
        self.split = split
        self.device = planning_device(state.device, split.room_bytes)
        search = PlanSearch[Any](waits=state.device.keeps_time)
        self._maker = PlanMaker(self.device, PlanCache.of_user(), search) if plans else None
        self._regions: Regions | None = None
        self._replaced = Replacements()
        if chooses or policy.recomputes:
            self._regions = Regions(lambda: state.device.counters().op_count or 0)
            self._regions.install(self._replaced)
        self.has_chosen = False
        self.follow(policy)

    def follow(self, policy: Policy) -> None:
        """Sets the policy to plan for, from the next step on.

        Where tensors may be made again: regions that the user marked with torch.utils.checkpoint.
        """
        self.policy = policy
        if self._regions is not None:
            self._regions.follows = policy.recomputes

    def close(self) -> None:
        """Gives torch's checkpoints back to torch, and ends what is searched for."""
        self._replaced.undo()
        if self._maker is not None:
            self._maker.close()

    @property
    def rung(self) -> str:
        """The rung of the ladder that steps run on."""
        return self.policy.name

    @property
    def planning(self) -> Planning | None:
        """The function that plans a recorded step; None on a rung without a planner."""
        return self._plan if self.policy.planner else None

    @property
    def maker(self) -> PlanMaker:
        """The maker of plans, where anything is planned."""
        assert self._maker is not None
        return self._maker

    @property
    def h2d_bytes_per_s(self) -> int:
        """Speed of the link to the device in bytes a second; 0 where nothing is planned."""
        return 0 if self._maker is None else self._maker.h2d_bytes_per_s

    @property
    def link_bytes_per_s(self) -> tuple[int, int]:
        """Speed of the link to the device and from it, in bytes a second; 0 where nothing is planned."""
        if self._maker is None:
            return 0, 0
        return self._maker.h2d_bytes_per_s, round(self._maker.device.profile.bandwidth_d2h)

    @property
    def has_regions(self) -> bool:
        """Whether the user has marked any region that may run again."""
        return self._regions is not None and self._regions.met

    @property
    def meets_regions(self) -> bool:
        """Whether a marked region was met for the first time, so that the next step is not like this one."""
        return self._regions is not None and self._regions.watched

    def begin_step(self, *, record: bool) -> None:
        """A step begins.

        Args:
            record: whether it is recorded.
        """
        if self._regions is not None:
            self._regions.begin_step(record=record and not self.has_chosen)

    def plan_known(self, known: PlannedStep) -> PlannedStep:
        """Plans a step that is known before it runs, by swaps alone: no region of it was met yet.

        Args:
            known: step, and the plan that it has; None has one made.
        """
        policy = SWAP if self.policy.recomputes else self.policy
        memory = replace(self.split.for_plans(self.policy.memory), staying_bytes=0)
        asks = known.plan is None or self.maker.searches(policy)  # a better one than it has may be found
        made = self.maker.plan(known.step, policy, memory) if asks else None
        plan = made if known.plan is None else known.plan
        if plan is not None and made_by(plan) in PAGING_PLANNERS:
            self.split.use(replace(self.policy, advice=by_role(plan)))
        return PlannedStep(known.step, plan)

    @property
    def circumstances(self) -> dict[str, str | int | None]:
        """What the plans of all steps have in common, for `identity_of`."""
        device = self.maker.device
        return {
            "device": device.key,
            "small": int(device.small),
            "virtual_time": int(self.state.device.keeps_time),
            "budget_bytes": self.split.room_bytes,
            "chunk_bytes": self.split.chunk_bytes,
            "rung": self.policy.name,
            "planner": self.policy.planner,
        }

    def improved(self) -> list[tuple[str, RecordedStep, Plan | RecordAgain]]:
        """Steps that `planning` was asked about, and better plans for them that were found since the last call.

        Beside each is the rung that it was planned for.

        To be called at each step's edge, where these plans take over.
        """
        found: list[tuple[str, RecordedStep, Plan | RecordAgain]] = []
        for policy, each in self.maker.improved() if self._maker is not None else ():
            if policy not in (self._planned_policy, SWAP) or each.plan is None:
                continue  # found for a rung that steps have left
            applied = self._applied(each.plan, each.step)
            found.append((policy.name, each.step, each.plan if applied is None else applied))
        return found

    @property
    def _planned_policy(self) -> Policy:
        """Once ops run again the step that has them is planned by swaps alone."""
        return SWAP if self.has_chosen else self.policy

    def _plan(self, step: RecordedStep) -> Plan | RecordAgain | None:
        policy = self._planned_policy
        memory = self.split.for_plans(self.policy.memory)
        if self.has_chosen:
            return self.maker.plan(step, policy, memory)
        plan = self.maker.plan(step, policy, memory, self._regions.recorded if self._regions is not None else ())
        if plan is None and self.policy.memory == Memory.CHUNKED and self.split.divide_further():
            log.info("ops on every parameter go in smaller parts from here on: the step is recorded again")
            return RecordAgain()
        if plan is None:
            return None
        applied = self._applied(plan, step)  # a plan may have no actions
        return self.maker.plan(step, SWAP, memory) if applied is None else applied

    def _applied(self, plan: Plan, step: RecordedStep) -> Plan | RecordAgain | None:
        """Does what a plan asks of others than the device; None: what it makes again lies in no marked region."""
        if recomputes(plan):
            return self._choose_what_runs_again(plan, step)
        if made_by(plan) in PAGING_PLANNERS:
            self.split.use(replace(self.policy, advice=by_role(plan)))
        return plan

    def _choose_what_runs_again(self, plan: Plan, step: RecordedStep) -> RecordAgain | None:
        """From the next step on; that is another step then, which is recorded, and planned by swaps alone.

        None, with a line in the log, where nothing of the plan lies in a marked region.
        """
        assert self._regions is not None
        choice = choose(ops_of(plan, step.trace), self._regions.recorded)
        if choice.complaint is not None:
            log.warning("%s: %s", self.policy.planner, choice.complaint)
        self.has_chosen = True
        if not choice.by_region:
            return None
        log.info(
            "%d ops in %d marked regions run again", sum(map(len, choice.by_region.values())), len(choice.by_region)
        )
        self._regions.run_again(choice)
        return RecordAgain()

    # ---- predictions ----------------------------------------------------------------------------------------------

    def predicted(self, program: PlannedStep) -> GpuSimulation | None:
        """Simulated steps with a plan; None where the plan is not one of swaps.

        Raises:
            BudgetError: an op finds no room.
        """
        plan = program.plan
        if plan is None or pages(plan):
            return None
        alive = self.state.device.allocations()
        stays = {each.serial: each.address for each in alive if each.reserved_bytes < PART_BYTES}
        addresses = [stays.get(each, 0) for each in program.serials.tolist()]
        memory = self.split.for_plans(Memory.CHUNKED)
        on_host = {each.serial for each in alive if each.serial not in stays and not each.seen}  # until an op uses it
        memory = replace(memory, elsewhere=memory.elsewhere | on_host)
        return self.maker.simulate(program.step, plan, memory, np.array(addresses, np.uint64))

    def predictions(self, step: RecordedStep, enough_bytes: int | None = None) -> tuple[RungPrediction, ...]:
        """Simulated times of a steady step on the rungs that it can run on, for the report.

        And on the one in force with more memory, parts of what the step lacks, and after changes of the program.

        Args:
            step: the recorded step.
            enough_bytes: budget with which everything fits; None where it is not known.
        """
        features = self.state.device.features()
        rungs = [
            rung
            for rung in (ADVISE, WINDOW, SWAP)
            if features[CHUNKS if rung.memory == Memory.CHUNKED else MIGRATION] is None
        ]
        maker = self._maker or PlanMaker(self.device, PlanCache.of_user())  # ours knows better plans
        alive = self.state.device.allocations()
        exported = [each for each in alive if each.exports]
        held_bytes = sum(each.reserved_bytes for each in exported)
        memory = {rung.name: self.split.for_plans(rung.memory) for rung in rungs}
        taken = {WINDOW.name: scattered_bytes(alive)}  # its plans have other advice than the first step
        held = without(step, frozenset(each.serial for each in exported))

        def predicted(
            rung: str, of: RecordedStep, more_bytes: int = 0, *, less_bytes: int = held_bytes, **what: Any
        ) -> Iterator[RungPrediction]:
            less_bytes += taken.get(rung, 0)
            asked = replace(memory[rung], budget_bytes=max(memory[rung].budget_bytes + more_bytes - less_bytes, 0))
            step_ns = maker.predict(of, {rung: asked}).get(rung, 0)
            if step_ns > 0:
                yield RungPrediction(rung=rung, step_ns=step_ns, more_bytes=more_bytes, **what)

        found = [each for rung in memory for each in predicted(rung, held)]
        if self.rung not in memory:
            return tuple(found)
        lacking_bytes = max(step.trace.peak_bytes - memory[self.rung].budget_bytes, 0)
        more = [int(part * lacking_bytes) for part in _MORE if lacking_bytes]
        found += [each for more_bytes in more if more_bytes > 0 for each in predicted(self.rung, held, more_bytes)]
        capacity_bytes = self.state.device.info().total_bytes
        if enough_bytes is not None and self.split.room_bytes < enough_bytes <= capacity_bytes:
            found += self._with_enough(
                enough_bytes, capacity_bytes, lambda more_bytes: [*predicted(self.rung, held, more_bytes)]
            )
        if len(idle := held_for_nothing(step)):
            found += predicted(self.rung, freed_sooner(held), change="freed_sooner", about=maker_of(step, idle))
        found += predicted(self.rung, stateless(held), change="stateless")
        if exported:
            found += predicted(self.rung, step, less_bytes=0, change="unpinned")
        return tuple(found)

    def _with_enough(
        self, enough_bytes: int, capacity_bytes: int, predicted: Callable[[int], list[RungPrediction]]
    ) -> list[RungPrediction]:
        """Of budgets that should do the first with which nothing has to leave, by simulation; else all that there is.

        What is missing by little costs much: each step evicts what the next one begins with.
        """
        plenty = predicted(_PLENTY * enough_bytes)
        found: list[RungPrediction] = []
        for part in _ENOUGH:
            budget_bytes = min(int(part * enough_bytes), capacity_bytes) >> 20 << 20
            found = predicted(budget_bytes - self.split.room_bytes)
            as_fast = found and plenty and found[0].step_ns <= plenty[0].step_ns * _AS_FAST
            if as_fast or budget_bytes == capacity_bytes >> 20 << 20:
                break
        return found
