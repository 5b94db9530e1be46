"""Which rung of the ladder a session's steps run on: the one that was asked for, or the governor's choice."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from umadvise import _native
from umadvise._native.abi import Memory
from umadvise.devices.rungs import ADVISE, LADDER, RESIDENT, RUNGS, SWAP, SWAP_RECOMPUTE, WINDOW, Policy
from umadvise.errors import NativeError
from umadvise.planners.judging.score import PAGING_PLANNERS, made_by, pages
from umadvise.planners.paging.advice import by_role
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records.fault_profile import RungChange, RungPrediction
from umadvise.records.plan import Plan
from umadvise.records.trace import Trace
from umadvise.records.units import format_bytes
from umadvise.simulator.swap import SwapSimulation
from umadvise.torch_seam.replacements import Replacements
from umadvise.torch_seam.runtime import Runtime
from umadvise.training.loop.driving import Driver, RecordAgain
from umadvise.training.memory_split import MemorySplit
from umadvise.training.plans.cache import PlanCache
from umadvise.training.plans.device import planning_device
from umadvise.training.plans.maker import PlanMaker, recomputes
from umadvise.training.policy.course import Course, course_of_rung
from umadvise.training.policy.degraded import CHUNKS
from umadvise.training.policy.governor import FAULT_THRESHOLD, Governor, StepRecord, Switch
from umadvise.training.policy.remedies import predicted_rungs
from umadvise.training.recompute.regions import Regions, choose, ops_of
from umadvise.training.watch.observer import Observer

log = logging.getLogger("umadvise")

FITS = 0.9
"""A step that needs up to this share of the budget fits; the rest is for what varies."""


_SAME_SIZE = 0.01
_MOST_SMALL = 0.5
"""Part of the budget for tensors that never leave their chunks."""


class Steering:
    """Keeps a session's policy, driver and governor together.

    Attributes:
        course: what runs now.
        driver: of its steps.
        split: of the device's memory; to be released when no tensor of the session is left in it.
    """

    def __init__(
        self,
        state: Runtime,
        observer: Observer,
        split: MemorySplit,
        maker: PlanMaker | None,
        course: Course,
        governor: Governor | None,
        follow: Callable[[Policy], None],
        *,
        state_is_known: bool,
    ) -> None:
        """Sets the first rung.

        Args:
            state: of the process.
            observer: of its steps.
            split: of its memory.
            maker: of plans; None where nothing is planned.
            course: of the first rung.
            governor: that chooses the others; None where the user has chosen.
            follow: moves what lives into the memory of the policy, after the one that is given.
            state_is_known: the first rung was chosen by what will be there between steps.

        Raises:
            NativeError: there is no memory for it.
        """
        self._state, self._observer, self.split, self._maker = state, observer, split, maker
        self._governor, self._follow, self._state_is_known = governor, follow, state_is_known
        self._structures: set[str] = set()
        self._considered = self._last = (0, 0)  # shapes of steps: the one that the rung was chosen for, and the last
        self._regions: Regions | None = None
        self._chosen = False  # which ops run again
        self._rescued = False  # an op of this step that chunks could not hold
        self._replaced = Replacements()
        self.course = course
        split.use(LADDER[self.rung])
        self._follow_regions()
        self.driver = Driver(state.device, observer, self._make_plan if course.planner else None)
        if governor is not None and split.follows:
            _native.set_rescuer(self._rescue)
        if governor is not None:
            self._note(governor.history[0])
        else:
            observer.rungs.append(RungChange(step=1, rung=self.rung, reason="chosen by the user"))

    @property
    def rung(self) -> str:
        """Of the ladder."""
        assert self.course.rung is not None
        return self.course.rung

    @property
    def plan(self) -> Plan | None:
        """That drives the steps now."""
        return None if self.driver.program is None else self.driver.program.plan

    @property
    def planned_step(self) -> Trace | None:
        """The step that the plan is for; without a plan the steady one that was recorded last."""
        if self.plan is not None:
            assert self.driver.program is not None
            return self.driver.program.trace
        return None if self.driver.step is None else self.driver.step.trace

    def predicted(self) -> SwapSimulation | None:
        """What the simulator says that the device does in a step with the plan; None without a plan of swaps.

        Raises:
            NoRoomError: by its rules an op finds no room.
        """
        plan, step = self.plan, self.driver.step
        if plan is None or step is None or pages(plan):
            return None
        assert self._maker is not None
        return self._maker.simulate(step, plan, self.split.for_plans(Memory.CHUNKED))

    def predictions(self) -> tuple[RungPrediction, ...]:
        """What the simulator says that the steady step takes on each rung; nothing where none was recorded."""
        step = self.driver.step
        return () if step is None else predicted_rungs(self._state, step, self.split)

    # ---- edges of steps -------------------------------------------------------------------------------------------

    def before_step(self, number: int) -> None:
        """A step is about to begin."""
        watched = self._regions is not None and self._regions.watched
        step = self.driver.take_recording(typical=not watched)
        if step is not None and self._governor is not None:
            self._consider(number, step)
        self.driver.before_step(number)
        if self._regions is not None:
            self._regions.begin_step(record=self.driver.recording and not self._chosen)

    def after_step(self, number: int, *, whole: bool, refused: bool = False) -> None:
        """A step has ended; not `whole`: by an exception. `refused`: as the memory that there is cannot hold it."""
        if refused or self._rescued:
            self._retreat(number + 1)
        recorded = self.driver.recording
        self.driver.after_step(number, whole=whole)
        if self.course.planner is not None:
            self._observer.note_plan(number, self.driver.why_undriven)
        cost = self._observer.last_step
        if self._governor is None or not whole or cost is None:
            return
        record = StepRecord(
            number=number,
            duration_ns=cost.duration_ns,
            stall_ns=self._stall_ns(cost.counters.fault_service_ns),
            fault_groups=cost.counters.fault_groups,
            typical=self.driver.followed if self.course.planner else bool(self._structures),
        )
        self._look_again(cost.counters.op_count or 0)
        if not self._state_is_known:
            self._look_at_state(number + 1)
        if not recorded:  # it takes longer, and a switch would move what it is about
            self._go(self._governor.observe(record))

    def _retreat(self, number: int) -> None:
        """In unified memory an op may use more than there is."""
        self._rescued = False
        if self._governor is None or LADDER[self.rung].memory != Memory.CHUNKED:
            return
        chunked = [rung for rung in RUNGS if LADDER[rung].memory == Memory.CHUNKED]
        reason = f"step {number - 1} found no room in chunks"
        self._go(self._governor.retreat(number, ADVISE.name, chunked, reason))

    def _rescue(self) -> bool:
        """Chunks have no room for an op: whether it may be tried in unified memory, where this step's tensors go now.

        Called by the hooks, within the op. The rest follows at the step's edge.
        """
        if LADDER[self.rung].memory != Memory.CHUNKED:
            return False
        try:
            self.split.use(ADVISE)
        except NativeError as error:
            log.warning("an op finds no room in chunks, and unified memory cannot be had: %s", error)
            return False
        if not self._rescued:
            log.warning("an op finds no room in chunks: it and the rest of its step run in unified memory")
        self._rescued = True
        return True

    def _stall_ns(self, service_ns: int | None) -> int | None:
        return (service_ns or 0) + self.driver.waited_ns if self._observer.faults_are_known else None

    def _look_at_state(self, number: int) -> None:
        """After a script's first step, what there is between steps is known: where it cannot fit, chunks may be best.

        On the emulated device, where what lives follows, a rung is chosen when a step is known.
        """
        self._state_is_known = True
        if self.split.follows or self._governor is None:
            return
        sizes = [each.bytes for each in self._state.device.allocations()]
        rung, reason = first_rung(sizes, self.split.room_bytes, self.split.chunk_bytes)
        if rung != ADVISE.name:
            self._go(self._governor.go(number, rung, reason))

    def _look_again(self, op_count: int) -> None:
        """Where nothing is planned, nothing tells when a step has changed for good but its size, twice in a row."""
        shape = op_count, self._observer.memory().requested_peak_bytes
        changed = not _alike(shape, self._considered) and _alike(shape, self._last)
        self._last = shape
        if changed and self._structures and self.course.planner is None and not self.driver.recording:
            self.driver.change(None, afresh=True)

    def close(self) -> None:
        """Nothing is driven any more, and torch's checkpoints are its own again."""
        if self._governor is not None and self.split.follows:
            _native.set_rescuer(None)
        self._replaced.undo()
        self.driver.close()

    # ---- plans ----------------------------------------------------------------------------------------------------

    def _make_plan(self, step: RecordedStep) -> Plan | RecordAgain | None:
        assert self._maker is not None
        policy, course = LADDER[self.rung], self.course
        memory = self.split.for_plans(policy.memory)
        if self._chosen:
            return self._maker.plan(step, course_of_rung(SWAP.name), memory)
        plan = self._maker.plan(step, course, memory)
        if plan is None and policy.memory == Memory.CHUNKED and self.split.divide_further():
            log.info("ops on every parameter go in smaller parts from here on: the step is recorded again")
            return RecordAgain()
        if plan is not None and recomputes(plan):
            return self._choose_what_runs_again(plan, step) or self._maker.plan(step, course_of_rung(SWAP.name), memory)
        if plan is not None and made_by(plan) in PAGING_PLANNERS:
            self.split.use(replace(policy, advice=by_role(plan)))
        return plan

    # ---- what runs again ------------------------------------------------------------------------------------------

    def _follow_regions(self) -> None:
        """Where tensors may be made again: regions that the user marked with torch.utils.checkpoint."""
        if self.course.recomputes and self._regions is None:
            device = self._state.device
            self._regions = Regions(lambda: device.counters().op_count or 0)
            self._regions.install(self._replaced)

    def _choose_what_runs_again(self, plan: Plan, step: RecordedStep) -> RecordAgain | None:
        """From the next step on; that is another step then, which is recorded, and planned by swaps alone.

        None, with a line in the log, where nothing of the plan lies in a marked region.
        """
        assert self._regions is not None
        choice = choose(ops_of(plan, step.trace), self._regions.recorded)
        if choice.complaint is not None:
            log.warning("%s: %s", self.course.planner, choice.complaint)
        self._chosen = True
        if not choice.by_region:
            return None
        log.info(
            "%d ops in %d marked regions run again", sum(map(len, choice.by_region.values())), len(choice.by_region)
        )
        self._regions.run_again(choice)
        return RecordAgain()

    # ---- the governor ---------------------------------------------------------------------------------------------

    def _consider(self, number: int, step: RecordedStep) -> None:
        """A steady step is known: what each rung would make of it, when it is a new one."""
        governor = self._governor
        assert governor is not None
        assert self._maker is not None
        self._considered = self._last
        if step.digest in self._structures:  # two structures in turns must not make rungs change in turns
            return
        if self._structures:
            governor.restructure()
        self._structures.add(step.digest)
        stays = LADDER[governor.rung].memory == Memory.CHUNKED and not self.split.follows
        if stays or self._state.intermediate_advice is not None:
            return  # what is in chunks stays there, and where the user has advised the counters decide
        needed, room = self._observer.memory().requested_peak_bytes, self.split.room_bytes
        if needed <= FITS * room:
            reason = f"a step needs {format_bytes(needed)} of {format_bytes(room)}"
            self._go(governor.go(number, RESIDENT.name, reason))
            return
        rungs = [each for each in (ADVISE, WINDOW, SWAP) if governor.has(each.name)]
        predicted = self._maker.predict(step, {each.name: self.split.for_plans(each.memory) for each in rungs})
        governor.exclude({WINDOW.name, SWAP.name} - predicted.keys())
        if SWAP.name not in predicted:
            governor.exclude([SWAP_RECOMPUTE.name])
        self._go(governor.choose(number, predicted))

    def _go(self, switch: Switch | None) -> None:
        if switch is None:
            return
        assert self._governor is not None
        if switch.rung != switch.before:
            before = _policy_of(self.rung)
            if self._state.policy.memory == before.memory:
                before = self._state.policy  # with the advice of a plan
            try:
                self._change(_policy_of(switch.rung), before)
            except NativeError as error:
                switch = self._governor.take_back(switch, f"{switch.rung} cannot be had: {error}")
                self._note(switch)
                self._change(before, _policy_of(self.rung))
                return
        self._note(switch)
        if switch.rung == switch.before:
            return
        self.course = course_of_rung(switch.rung)
        self._follow_regions()
        self.driver.change(self._make_plan if self.course.planner else None, afresh=self.course.recomputes)

    def _change(self, policy: Policy, before: Policy) -> None:
        """New tensors have the memory of a policy, and where they can, those that live go with them."""
        if self.split.follows and (before.memory, policy.memory) == (Memory.PREFER_DEVICE, Memory.CHUNKED):
            self._change(ADVISE, before)  # plain memory leaves no room for chunks, unified memory needs none
            before = ADVISE
        self.split.use(policy)
        if self.split.follows and policy.memory != before.memory:
            self._follow(before)
            if Memory.CHUNKED in (policy.memory, before.memory):
                self.split.divide()

    def _note(self, switch: Switch) -> None:
        self._observer.rungs.append(RungChange(step=switch.step, rung=switch.rung, reason=switch.reason))
        stays = " still" if switch.rung == switch.before else ""
        log.info("policy auto: %s%s from step %d on: %s", switch.rung, stays, switch.step, switch.reason)


def steer(
    state: Runtime,
    observer: Observer,
    course: Course,
    *,
    budget_bytes: int | None,
    fault_threshold: float = FAULT_THRESHOLD,
    persistent_sizes: Callable[[], Sequence[int]] | None = None,
    follow: Callable[[Policy], None],
) -> Steering:
    """Sets the first rung of a session, or of a script: the one that was chosen, or what the governor guesses.

    Args:
        state: of the process.
        observer: of its steps.
        course: of the policy.
        budget_bytes: of device memory; None: what was patched with.
        fault_threshold: see `umadvise.training.policy.governor`.
        persistent_sizes: bytes of the tensors that will be there between steps; None where nobody knows them yet.
        follow: moves what lives into the memory of the policy, after the one that is given.

    Raises:
        NativeError: there is no memory for the rung.
    """
    sizes = () if persistent_sizes is None else persistent_sizes()
    split, governor = MemorySplit(state, budget_bytes, sizes), None
    advised = state.intermediate_advice is not None
    if course.rung is None:
        rungs = rungs_of(state)
        rung, reason = first_rung(sizes, split.room_bytes, split.chunk_bytes)
        if persistent_sizes is None:
            reason = "what parameters, gradients and optimizer state need is not known before the script runs"
        if split.follows or rung not in rungs:
            rung = ADVISE.name
        if advised:  # by the user, and for unified memory
            governor = Governor(ADVISE.name, reason, rungs=(ADVISE.name, WINDOW.name), threshold=fault_threshold)
        else:
            governor = Governor(rung, reason, rungs=rungs, threshold=fault_threshold)
        course = course_of_rung(governor.rung)
    elif advised and LADDER[course.rung].memory == Memory.CHUNKED:
        log.warning("torch.cuda.set_unified asks for unified memory: policy %s goes without its chunks", course.rung)
        course = course_of_rung(ADVISE.name)
    plans = governor is not None or course.planner is not None
    maker = PlanMaker(planning_device(state.device), PlanCache.of_user()) if plans else None
    try:
        known = persistent_sizes is not None
        return Steering(state, observer, split, maker, course, governor, follow, state_is_known=known)
    except BaseException:
        split.release()
        raise


def _policy_of(rung: str) -> Policy:
    """Of `auto`: on `resident` what does not fit after all is paged."""
    policy = LADDER[rung]
    return replace(policy, memory=Memory.PREFER_DEVICE) if rung == RESIDENT.name else policy


def rungs_of(state: Runtime) -> tuple[str, ...]:
    """The rungs that a device has: without management of virtual memory there are no chunks."""
    if state.device.features()[CHUNKS] is None:
        return RUNGS
    return tuple(rung for rung in RUNGS if LADDER[rung].memory != Memory.CHUNKED)


def _alike(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two steps have as many ops, and about the same peak."""
    return one[0] == other[0] and abs(one[1] - other[1]) <= _SAME_SIZE * other[1]


def first_rung(persistent_sizes: Sequence[int], room_bytes: int, chunk_bytes: int) -> tuple[str, str]:
    """The rung that a session starts on while nothing is known but its model and optimizer, and why.

    Chunks from the beginning where that does not fit, unless most of it is in tensors that would never leave.
    """
    needed_bytes = sum(persistent_sizes)
    needed, room = format_bytes(needed_bytes), format_bytes(room_bytes)
    reason = f"parameters, gradients and optimizer state need {needed} of {room}"
    if needed_bytes <= room_bytes:
        return ADVISE.name, reason
    small_bytes = sum(size for size in persistent_sizes if size * 2 <= chunk_bytes)
    if small_bytes > _MOST_SMALL * room_bytes:
        return ADVISE.name, f"{reason}, {format_bytes(small_bytes)} of it in tensors too small to be swapped"
    return SWAP.name, reason
