"""One training loop under a budget: what happens at the edges of its steps, in order."""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar

from torch.nn import Module
from torch.optim import Optimizer

from umadvise._native.abi import Memory
from umadvise.devices.rungs import ADVISE, AUTO, LADDER, Policy
from umadvise.recording.dry.rehearsal import Rehearsal
from umadvise.records.fault_profile import FaultProfile, RungChange, RungPrediction
from umadvise.records.plan import Plan
from umadvise.records.trace import Target, Trace
from umadvise.reports.counters.step_picture import KnownStep
from umadvise.reports.findings import budget_that_fits, stands_still
from umadvise.simulator.gpu import GpuSimulation
from umadvise.torch_seam import signals
from umadvise.torch_seam.runtime import Runtime
from umadvise.training.loop.plan_cycle import PlanCycle
from umadvise.training.loop.rung_choice import RungChoice, first_governor
from umadvise.training.loop.step_planner import StepPlanner
from umadvise.training.loop.step_shapes import StepShapes
from umadvise.training.memory_split import MemorySplit
from umadvise.training.plans.planned_step import PlannedStep
from umadvise.training.plans.shelf import StepShelf, identity_of
from umadvise.training.policy.governor import FAULT_THRESHOLD
from umadvise.training.watch.observer import Observer

log = logging.getLogger("umadvise")


class Loop:
    """The parts of one training loop: what watches it, divides its memory, plans and drives its steps, picks its rung.

    Attributes:
        shared: the loop of a script that `umadvise run` runs, until a session of the script puts its own in its place.
        observer: watcher of the steps; a session in a script shares that of `umadvise run`.
        split: division of the device's memory; to be released when no tensor of the session is left in it.
        cycle: driver of the steps.
        optimizers: optimizers of a script, of which nobody knows what they train before its first step has ended.
        split_around: division by `umadvise run` of a session in its script, which holds again after the session; None
            elsewhere.
        in_marked_step: whether a step that the user marks has begun and not ended.
    """

    shared: ClassVar["Loop | None"] = None

    def __init__(
        self,
        state: Runtime,
        observer: Observer,
        policy: Policy,
        *,
        fault_threshold: float = FAULT_THRESHOLD,
    ) -> None:
        """Sets the first rung: the one that was chosen, or the governor's first.

        Args:
            state: patched state of the process.
            observer: watcher of its steps.
            policy: policy of the steps; `AUTO` lets the governor choose rungs.
            fault_threshold: part of a step that stalls may take, or a number of fault groups (`check_threshold`).

        Raises:
            NativeError: there is no memory for the rung.
        """
        self.observer = observer
        self.split = MemorySplit(state)
        self.split_around: MemorySplit | None = None
        self.in_marked_step = False
        self._choice: RungChoice | None = None
        self._shapes = StepShapes()
        self._shelf = StepShelf.of_user()
        self.optimizers: Collection[Optimizer] = ()
        self._identity: str | None = None
        self._kept: list[PlannedStep] = []  # by an earlier run
        governor = None
        if policy == AUTO:
            governor = first_governor(state, fault_threshold)
            policy = LADDER[governor.rung]
        elif state.intermediate_advice is not None and policy.memory == Memory.CHUNKED:
            log.warning("torch.cuda.set_unified asks for unified memory: policy %s has no chunks here", policy.name)
            policy = ADVISE
        plans = governor is not None or policy.planner is not None
        self._planner = StepPlanner(state, self.split, policy, plans=plans, chooses=governor is not None)
        try:
            self.split.use(policy, limited=policy.keeps_budget)
            parts_of_cycle = state.device, observer.recorder, self._planner.planning
            self.cycle = PlanCycle(*parts_of_cycle, h2d_bytes_per_s=self._planner.h2d_bytes_per_s)
        except BaseException:
            self._planner.close()
            self.split.release()
            raise
        if governor is None:
            observer.rungs.append(RungChange(step=1, rung=self.rung, reason="the policy of the run"))
        else:
            self._choice = RungChoice(governor, self._planner, self.cycle, observer)

    def close(self) -> None:
        """Stops driving steps and searching for plans, and gives torch's checkpoints back to torch."""
        self.observer.refused.follow((), ())
        self._keep_steps()
        if self._choice is not None:
            self._choice.close()
        self._planner.close()
        self.cycle.close()

    def plan_ahead(
        self, step: Callable[[], object], modules: Sequence[Module], optimizers: Sequence[Optimizer]
    ) -> None:
        """Records the next step and one of those that follow before they run, and has them driven.

        Args:
            step: function that runs one whole step.
            modules: the modules that are trained.
            optimizers: optimizers of the modules' parameters.

        Raises:
            UsageError: the step needs values of tensors.
        """
        if self._planner.planning is None:
            return
        state = self._planner.state
        device = state.device
        target: Target = "cpu" if state.emulated else "cuda"
        rehearsal = Rehearsal(modules, optimizers, target, self._planner.device.profile, under_mode=device.keeps_time)
        with self.observer.rehearsing():
            first, steady = rehearsal.record(step)
        steps = [first] if first.digest == steady.digest else [first, steady]
        self.cycle.expect(self._planner.plan_known(PlannedStep(each)) for each in steps)

    def begin_with_kept(self, modules: Sequence[Module], optimizers: Sequence[Optimizer]) -> None:
        """Has steps driven that an earlier run of the same training has kept, and keeps this run's at the end.

        A refused step gives back what it did to the modules and to the optimizers' parameters.

        Args:
            modules: the modules that are trained; none where only the optimizers are known.
            optimizers: optimizers of the modules' parameters.
        """
        if modules:  # a script's optimizers are not kept alive: its steps name them where they are refused
            self.observer.refused.follow(modules, optimizers)
        if self._planner.planning is None:
            return
        self._identity = identity_of(modules, optimizers, **self._planner.circumstances)
        self._kept = self._shelf.load(self._identity)
        self.cycle.expect(map(self._planner.plan_known, self._kept))

    def _keep_steps(self) -> None:
        known = self.cycle.kept
        if self._identity is None or not known or self._planner.has_chosen:
            return  # steps in which ops run again come only after one that was planned for that
        digests = {each.step.digest for each in known}
        self._shelf.keep(self._identity, [*(each for each in self._kept if each.step.digest not in digests), *known])

    # ---- edges of steps -------------------------------------------------------------------------------------------

    def before_step(self, number: int) -> None:
        """Does what is due before a step: plans it, chooses its rung, has it recorded."""
        signals.keep()
        self.observer.clock.approach_step()
        if number > 1 and self._identity is None and self.optimizers:
            self.begin_with_kept((), list(self.optimizers))
        for rung, planned, plan in self._planner.improved():
            self.cycle.improve(planned, plan)
            if self._choice is not None:
                self._choice.renew(rung)
        if self._choice is not None:
            self._choice.begin_step(number)
        step = self.cycle.take_recording(typical=not self._planner.meets_regions)
        if step is not None:
            self._shapes.recorded()
        if step is not None and self._choice is not None:
            self._choice.consider(number, step)
        self.cycle.before_step(number)
        self._planner.begin_step(record=self.cycle.recording)

    def after_step(self, number: int, *, whole: bool, refused: bool = False) -> None:
        """Does what is due after a step: sees whether it followed its plan, and what it cost.

        Args:
            number: number of the step.
            whole: whether it ended without an exception.
            refused: whether it ended because the memory that there is cannot hold it.
        """
        if self._choice is not None:
            self._choice.retreat(number + 1, refused=refused)
        recorded = self.cycle.recording
        self.cycle.after_step(number, whole=whole)
        if self._planner.policy.planner is not None:
            self.observer.clock.note_plan(number, self.cycle.why_undriven)
        if whole:
            self._look_again()
        if self._choice is not None and whole:
            self._choice.observe(number, recorded=recorded and not self.cycle.known)  # else nobody reads it

    def _look_again(self) -> None:
        """Has a step recorded once steps are other ones for good, where nothing is planned and no program tells."""
        last = self.observer.clock.last_step
        if last is None:
            return
        changed = self._shapes.changed(last.op_count, last.requested_peak_bytes)
        if changed and self._planner.planning is None and not self.cycle.recording:
            self.cycle.change(None, afresh=True)

    def drop_step(self, number: int) -> None:
        """Forgets what has begun: it was no step."""
        self.cycle.after_step(number, whole=False)

    def forget_steps(self) -> None:
        """Begins afresh on the rung in force: what came until now, in an evaluation or a loader, were no steps."""
        if self._choice is not None:
            self._choice.forget()
        self._shapes = StepShapes()
        self.cycle.change(self._planner.planning, afresh=True)
        self._identity = None  # so that steps of an earlier run are expected again

    # ---- what drives ----------------------------------------------------------------------------------------------

    @property
    def rung(self) -> str:
        """The rung of the ladder that steps run on."""
        return self._planner.rung

    @property
    def plan(self) -> Plan | None:
        """The plan that drives the steps now."""
        return None if self.cycle.program is None else self.cycle.program.plan

    @property
    def planned_step(self) -> Trace | None:
        """The step that the plan is for; without a plan the steady one that was recorded last."""
        return None if self.cycle.step is None else self.cycle.step.trace

    def predicted(self) -> GpuSimulation | None:
        """Simulated steps with the plan that drives now, until they are all alike; None without a plan of swaps.

        Raises:
            BudgetError: an op finds no room.
        """
        return None if self.cycle.program is None else self._planner.predicted(self.cycle.program)

    def predictions(self, enough_bytes: int | None = None) -> tuple[RungPrediction, ...]:
        """Simulated time of the steady step on each rung; nothing where no step was recorded.

        Args:
            enough_bytes: budget with which everything fits; None where it is not known.
        """
        return () if self.cycle.step is None else self._planner.predictions(self.cycle.step, enough_bytes)

    def profile(self, *, predict: bool) -> FaultProfile:
        """The fault profile so far.

        Args:
            predict: whether to ask the simulator how long a step would take on other rungs, where steps stood still too
                long.
        """
        step = self.cycle.step
        known = None if step is None else KnownStep(step.trace, self._planner.link_bytes_per_s)
        profile = self.observer.profile(known=known)
        if not (predict and stands_still(profile)):
            return profile
        return self.observer.profile(self.predictions(budget_that_fits(profile)), known)
