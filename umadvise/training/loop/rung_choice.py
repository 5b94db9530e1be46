"""The rung that the next step of `auto` runs on: the governor is asked, and what it says is done to the memory.

A rung is chosen from steps of one kind. Once a training step has been measured, steps without a backward pass, as in an
evaluation, change nothing. Where only such steps were measured and an optimizer steps, `auto` returns to unified memory
until a training step has been measured. An op that does not fit beside plain memory or in chunks within the budget is
never run there: what lives is converted to unified memory first, in the middle of its step.
"""

import logging
from dataclasses import replace

from umadvise import _native
from umadvise._native.abi import Memory, Owners
from umadvise.devices.rungs import ADVISE, LADDER, RESIDENT, RUNGS, SWAP, SWAP_RECOMPUTE, WINDOW, Policy
from umadvise.errors import NativeError
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records.enums import Phase
from umadvise.records.fault_profile import RungChange
from umadvise.records.units import format_bytes
from umadvise.torch_seam.runtime import Runtime
from umadvise.training.loop.plan_cycle import PlanCycle
from umadvise.training.loop.step_planner import StepPlanner
from umadvise.training.memory_split import FITS
from umadvise.training.policy.degraded import CHUNKS
from umadvise.training.policy.governor import Governor, StepRecord, Switch
from umadvise.training.watch.observer import Observer

log = logging.getLogger("umadvise")

_WORDS = {Memory.DEVICE: "plain memory", Memory.CHUNKED: "chunks", Memory.MANAGED: "unified memory"}


class RungChoice:
    """Keeps the governor informed, and follows it from rung to rung."""

    def __init__(
        self,
        governor: Governor,
        planner: StepPlanner,
        cycle: PlanCycle,
        observer: Observer,
    ) -> None:
        """Stays on the governor's first rung, which is in force.

        Args:
            governor: judge of the rungs.
            planner: planner of steps, with the memory that they have.
            cycle: driver of steps.
            observer: watcher of steps.
        """
        self._governor, self._planner, self._cycle = governor, planner, cycle
        self._observer = observer
        self._state, self._split = planner.state, planner.split
        self._structures: set[str] = set()
        self._trains = False  # a training step has been measured
        self._updates = 0  # of optimizers, until the last step that was measured
        self._rescued = False  # an op of this step that the rung's memory could not hold
        self._state.device.remember_owners(Owners.CONVERTED_IN_OPS)
        _native.set_rescuer(self._rescue)
        self._note(governor.history[0])

    def close(self) -> None:
        """Nothing changes its memory any more, and an op that does not fit is refused."""
        self._state.device.remember_owners(self._state.owners)
        _native.set_rescuer(None)

    def forget(self) -> None:
        """Begins afresh on the rung in force: what was measured until now were no steps."""
        self._governor.begin_again()
        self._structures.clear()

    # ---- a step has ended -----------------------------------------------------------------------------------------

    def renew(self, rung: str) -> None:
        """A better plan drives steps on a rung from now on: what was measured there says nothing any more."""
        self._governor.renew(rung)

    def observe(self, number: int, *, recorded: bool) -> None:
        """Shows the governor a whole step that has ended, and follows its decision.

        Args:
            number: number of the step.
            recorded: whether it was recorded; that takes longer, and a switch would move what the recording is about.
        """
        clock, planned = self._observer.clock, self._planner.policy.planner is not None
        cost = clock.last_step
        if cost is None:
            return
        service_ns = cost.fault_service_ns or 0
        record = StepRecord(
            number=number,
            duration_ns=cost.duration_ns,
            stall_ns=service_ns + self._cycle.waited_ns if clock.faults_are_known else None,
            fault_groups=cost.fault_groups,
            typical=self._cycle.known if planned else bool(self._structures),
            settling=LADDER[self._planner.rung].memory == Memory.CHUNKED and not self._cycle.laid_out,
        )
        if not recorded:
            self._go(self._governor.observe(record))

    def retreat(self, number: int, *, refused: bool) -> None:
        """Goes to unified memory, where ops of any size run, before the step of that number.

        Args:
            number: number of the next step.
            refused: whether the last one ended because the memory that there is cannot hold it.
        """
        refused, self._rescued = refused or self._rescued, False
        if not refused or LADDER[self._planner.rung].memory == Memory.MANAGED:
            return
        memory = LADDER[self._planner.rung].memory
        alike = [rung for rung in RUNGS if LADDER[rung].memory == memory]
        reason = f"step {number - 1} did not fit in {_WORDS[memory]}"
        self._go(self._governor.retreat(number, ADVISE.name, alike, reason))

    def _rescue(self) -> bool:
        """Converts what lives to unified memory for an op that does not fit; returns whether it may be tried again.

        The hooks call it in the thread of the op. The rung follows at the step's edge.
        """
        before = _policy_of(self._planner.rung)
        words = _WORDS[LADDER[self._planner.rung].memory]
        try:
            if before.memory == Memory.MANAGED:  # an earlier op was using what is to be converted now
                self._state.convert(before)
                self._split.divide()
                return True
            self._split.change(ADVISE, before)
        except NativeError as error:
            log.warning("an op does not fit in %s, and unified memory cannot be had: %s", words, error)
            return False
        if not self._rescued:
            log.warning("an op does not fit in %s: it and the rest of its step run in unified memory", words)
        self._rescued = True
        return True

    # ---- a step is known ------------------------------------------------------------------------------------------

    def begin_step(self, number: int) -> None:
        """Returns to unified memory where an optimizer has stepped and no training step has been measured.

        Args:
            number: number of the step that begins.
        """
        if self._trains or self._planner.rung == ADVISE.name or self._observer.clock.update_count == self._updates:
            return
        reason = "an optimizer has stepped, and only steps without a backward pass were measured"
        self._go(self._governor.retreat(number, ADVISE.name, (), reason))

    def consider(self, number: int, step: RecordedStep) -> None:
        """Has a new steady step simulated on each rung, and goes to the best.

        Args:
            number: number of the step that begins.
            step: steady step that was recorded before.
        """
        governor, split = self._governor, self._split
        if self._planner.has_regions and self._planner.policy.recomputes:
            return  # the rung has made another step of it, not the script
        trains = bool((step.trace.ops.phase >= Phase.BACKWARD).any())
        if self._trains and not trains:
            return
        if trains and not self._trains:
            self.forget()
        self._trains, self._updates = trains, self._observer.clock.update_count
        if step.digest in self._structures:  # two structures in turns must not make rungs change in turns
            return
        if self._structures:
            governor.restructure()
        self._structures.add(step.digest)
        if not self._planner.has_regions:  # nothing would run again
            governor.exclude([SWAP_RECOMPUTE.name])
        if self._state.intermediate_advice is not None:
            return  # where the user has advised the counters decide
        needed, room = self._observer.reader.now().memory.requested_peak_bytes, split.room_bytes
        if needed <= FITS * room:
            reason = f"a step needs {format_bytes(needed)} of {format_bytes(room)}"
            self._go(governor.go(number, RESIDENT.name, reason))
            return
        rungs = [each for each in (ADVISE, WINDOW, SWAP) if governor.has(each.name)]
        memory = {each.name: split.for_plans(each.memory) for each in rungs}
        # On CUDA a step without a plan may not fit, and its conversion in the middle of a step waits for the device.
        predicted = self._planner.maker.predict(step, memory, without_plans=self._state.emulated)
        governor.exclude({WINDOW.name, SWAP.name} - predicted.keys())
        if SWAP.name not in predicted:
            governor.exclude([SWAP_RECOMPUTE.name])
        self._go(governor.choose(number, predicted))

    # ---- from rung to rung ----------------------------------------------------------------------------------------

    def _go(self, switch: Switch | None) -> None:
        if switch is None:
            return
        if switch.rung == switch.before:
            self._note(switch)
            return
        before = _policy_of(self._planner.rung)
        if self._state.policy.memory == before.memory:
            before = self._state.policy  # with the advice of a plan
        try:
            self._split.change(_policy_of(switch.rung), before)
        except NativeError as error:
            self._note(self._governor.take_back(switch, f"{switch.rung} cannot be had: {error}"))
            self._split.change(before, _policy_of(self._planner.rung))
            return
        self._note(switch)
        recomputed = self._planner.policy.recomputes
        self._planner.follow(LADDER[switch.rung])
        self._cycle.change(self._planner.planning, afresh=recomputed or self._planner.policy.recomputes)

    def _note(self, switch: Switch) -> None:
        rungs = self._observer.rungs
        if len(rungs) > 1 and rungs[-2].rung == rungs[-1].rung == switch.rung:
            rungs.pop()  # why it came to this rung, and why it stays there now, is enough
        rungs.append(RungChange(step=switch.step, rung=switch.rung, reason=switch.reason))
        stays = " still" if switch.rung == switch.before else ""
        log.info("policy auto: %s%s from step %d on: %s", switch.rung, stays, switch.step, switch.reason)


def first_governor(state: Runtime, threshold: float) -> Governor:
    """The governor of a session or of a script, on the rung that it starts on.

    Args:
        state: patched state of the process.
        threshold: part of a step that stalls may take, or a number of fault groups (`check_threshold`).
    """
    rungs = rungs_of(state)
    if state.intermediate_advice is not None:  # by the user, and for unified memory
        rungs = ADVISE.name, WINDOW.name
    return Governor(ADVISE.name, "what a step needs is not known before it has run", rungs=rungs, threshold=threshold)


def _policy_of(rung: str) -> Policy:
    """Of `auto`: on `resident` what does not fit after all is paged, as on `advise`."""
    return replace(ADVISE, name=rung, memory=Memory.PREFER_DEVICE) if rung == RESIDENT.name else LADDER[rung]


def rungs_of(state: Runtime) -> tuple[str, ...]:
    """The rungs that a device has: without management of virtual memory there are no chunks."""
    if state.device.features()[CHUNKS] is None:
        return RUNGS
    return tuple(rung for rung in RUNGS if LADDER[rung].memory != Memory.CHUNKED)
