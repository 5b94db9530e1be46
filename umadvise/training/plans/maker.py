"""From a recorded step to the plan that drives the next one: the view, the planner, and plans known already."""

import hashlib
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from umadvise import planners
from umadvise.errors import UmadviseError
from umadvise.planners.judging.score import PAGING_PLANNERS, score
from umadvise.recording.recorded_step import RecordedStep
from umadvise.records.enums import Role
from umadvise.records.plan import ActionKind, Actions, Option, Plan, alive
from umadvise.records.trace import Trace
from umadvise.records.units import PART_BYTES, format_bytes
from umadvise.simulator.gpu import GpuSimulation
from umadvise.training.plans.cache import PlanCache, PlanKey
from umadvise.training.plans.device import PlanningDevice
from umadvise.training.plans.prediction import predict_swaps
from umadvise.training.plans.view import PlanningView, transferred, view_of
from umadvise.training.policy.course import Course, course_of_rung
from umadvise.training.recompute.choice import Region, repeatable_ops, with_inputs_held

log = logging.getLogger("umadvise")

SEARCH_SECONDS = 20.0
"""After which a planner that searches ends with the best plan so far; a step is planned once."""
MOST_STAYING_BYTES = 12 << 20
"""The most that small tensors take which never leave (`csrc/memory/movable_memory.h`)."""
_SPARE_CHUNKS = 3
"""Small tensors of each kind share chunks with their own kind: the last one of each is not full."""
_SPARE_SHARE = 200
"""One part of the budget in so many: arenas of small tensors are kept while they are empty. With three chunks alone
ResNet-50 at a third of its peak evicted a tensor in each step (`tools/benchmark_async.py`)."""
_BLOCK_BYTES = 512


def spare_bytes(budget_bytes: int, chunk_bytes: int) -> int:
    """The part of a budget for chunks that plans leave to small tensors, beside what these take at once.

    Args:
        budget_bytes: device memory for chunks, in bytes.
        chunk_bytes: size of a chunk in bytes.
    """
    return max(_SPARE_CHUNKS, budget_bytes // _SPARE_SHARE // chunk_bytes) * chunk_bytes


@dataclass(frozen=True)
class PlanMemory:
    """The device memory that a plan may use.

    Attributes:
        budget_bytes: bytes of device memory.
        chunk_bytes: size of a chunk; 0 where the driver pages.
        staying_bytes: bytes of the budget that memory took at most in the step that never leaves its chunks.
        elsewhere: serial numbers of allocations that lie in no chunks.
    """

    budget_bytes: int
    chunk_bytes: int = 0
    staying_bytes: int = 0
    elsewhere: frozenset[int] = field(default_factory=frozenset)


class PlanMaker:
    """Makes plans for one device, each only once."""

    def __init__(self, device: PlanningDevice, cache: PlanCache, seconds: float = SEARCH_SECONDS) -> None:
        """Takes what all plans have in common.

        Args:
            device: device that the plans are for.
            cache: place where plans are kept.
            seconds: time that a search may take.
        """
        self._device = device
        self._cache = cache
        self._seconds = seconds
        self._known: dict[str, Plan] = {}

    @property
    def h2d_bytes_per_s(self) -> int:
        """Speed of the link to the device in bytes a second."""
        return round(self._device.profile.bandwidth_h2d)

    def plan(
        self, step: RecordedStep, course: Course, memory: PlanMemory, regions: Collection[Region] = ()
    ) -> Plan | None:
        """The plan of a step for a course of a policy; None, with a line in the log, where its planner has none.

        Args:
            step: the recorded step to plan.
            course: rung and planner to plan for.
            memory: device memory that the step has.
            regions: marked regions of the step, whose ops may run again; none leaves the planner all ops of the step.
        """
        assert course.planner is not None
        try:
            return self._plan(step, course, memory, regions)
        except (UmadviseError, ValueError) as error:  # a plan that cannot be executed is a ValueError
            log.warning(
                "planner %s has no plan for %s: %s. What is used furthest ahead leaves first",
                course.planner,
                format_bytes(memory.budget_bytes),
                error,
            )
            return None

    def _plan(self, step: RecordedStep, course: Course, memory: PlanMemory, regions: Collection[Region] = ()) -> Plan:
        paging = course.planner in PAGING_PLANNERS
        if not (course.recomputes and course.planner == "best"):
            regions = ()
        trace = with_inputs_held(step.trace, regions) if regions else step.trace
        movable = movable_storages(step, memory)
        view = PlanningView(trace, memory.budget_bytes, 0) if paging else self._view(trace, memory, movable)
        options = self._options(course)
        used = movable[: len(step.structure.storages)]
        where = "" if used.all() else hashlib.sha256(np.packbits(used).tobytes()).hexdigest()
        again = hashlib.sha256(repr(tuple(regions)).encode()).hexdigest() if regions else ""
        key = PlanKey(
            structure=step.digest + where + again,
            budget_bytes=view.budget_bytes,
            chunk_bytes=view.chunk_bytes,
            device=self._device.key,
            planner=course.planner or "",
            options=options,
            durations=step.durations,
        )
        known = self._known.get(key.name) or self._cache.load(key, step.structure)
        source = "was known"
        if known is None:
            begun = time.monotonic()
            made = planners.run(
                course.planner or "",
                view.trace,
                self._device.profile,
                view.budget_bytes,
                None,
                (),
                repeatable_ops(trace, regions) if regions else None,
                **options,
            )
            known = transferred(_of_the_living(made, step.trace), step.structure)
            source = f"took {time.monotonic() - begun:.2f} s"
            self._cache.keep(key, known)
        self._known[key.name] = known
        log.info("a plan of %s with %d actions for %d ops: %s", course.planner, len(known), len(step.trace.ops), source)
        return transferred(known, step.trace)

    def _options(self, course: Course) -> dict[str, Option]:
        if course.planner != "best":
            return {}
        return {"recompute": course.recomputes, "paging": False, "seconds": self._seconds}

    def _view(self, trace: Trace, memory: PlanMemory, movable: NDArray[np.bool_]) -> PlanningView:
        least = staying_bytes(trace) + spare_bytes(memory.budget_bytes, memory.chunk_bytes)
        return view_of(
            trace,
            budget_bytes=memory.budget_bytes,
            chunk_bytes=memory.chunk_bytes,
            staying_bytes=min(least, memory.staying_bytes) if memory.staying_bytes else least,
            movable=movable,
            least_bytes=least_leaving_bytes(trace),
        )

    def predict(self, step: RecordedStep, rungs: dict[str, PlanMemory]) -> dict[str, int]:
        """Nanoseconds of the step on each of some rungs, simulated; those that it cannot run on are left out."""
        predicted: dict[str, int] = {}
        for rung, memory in rungs.items():
            try:
                predicted[rung] = self._predict(step, rung, memory)
            except (UmadviseError, ValueError) as error:
                log.info("rung %s is out of the question: %s", rung, error)
        return predicted

    def _predict(self, step: RecordedStep, rung: str, memory: PlanMemory) -> int:
        course, profile, trace = course_of_rung(rung), self._device.profile, step.trace
        if course.planner is None:
            plan = planners.run("advice", trace, profile, memory.budget_bytes)
        elif course.planner in PAGING_PLANNERS:
            plan = self._plan(step, course, memory)
        else:
            return round(self.simulate(step, self._plan_if_any(step, course, memory), memory).mean_step_ns)
        return score(trace, profile, plan, budget_bytes=memory.budget_bytes).step_ns or 0

    def _plan_if_any(self, step: RecordedStep, course: Course, memory: PlanMemory) -> Plan | None:
        try:
            return self._plan(step, course, memory)
        except (UmadviseError, ValueError) as error:
            log.info("a step on %s is predicted without a plan: %s", course.rung, error)
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
            self._device,
            budget_bytes=memory.budget_bytes,
            chunk_bytes=memory.chunk_bytes,
            in_chunks=storages_in_chunks(step, memory),
            addresses=addresses,
        )


def _of_the_living(plan: Plan, trace: Trace) -> Plan:
    """A plan without its actions on what is gone by then in a step that frees earlier than the one planned for."""
    table = plan.actions
    rows = alive(table, trace)
    return replace(plan, actions=Actions(**{name: getattr(table, name)[rows] for name in Actions.DTYPES}))


def movable_storages(step: RecordedStep, memory: PlanMemory) -> NDArray[np.bool_]:
    """Which storages of a step may leave the device when they are large enough.

    What is no tensor's storage stays where it is, and so does what lies in no chunks.
    """
    trace = step.trace
    fleeting = trace.births == trace.deaths  # inside one op: it counts there, and no plan is about it
    movable: NDArray[np.bool_] = (trace.storages.role != Role.WORKSPACE) | fleeting
    movable &= storages_in_chunks(step, memory)
    replaced = np.flatnonzero(trace.storages.successor >= 0)  # next time it is what its successor is now
    movable[replaced] = movable[trace.storages.successor[replaced]]
    return movable


def storages_in_chunks(step: RecordedStep, memory: PlanMemory) -> NDArray[np.bool_]:
    """Which storages of a step lie in chunks, or will."""
    found: NDArray[np.bool_] = ~np.isin(step.serials, np.array(sorted(memory.elsewhere), np.uint64))
    return found


def staying_bytes(trace: Trace) -> int:
    """The most at once of what never leaves: what is small, and scratch memory that outlives its op."""
    scratch = (trace.storages.role == Role.WORKSPACE) & (trace.births != trace.deaths)
    small_bytes = _most_at_once(trace, (trace.storages.bytes < PART_BYTES) & ~scratch)
    return min(small_bytes, MOST_STAYING_BYTES) + _most_at_once(trace, scratch)


def least_leaving_bytes(trace: Trace) -> int:
    """Size in bytes of the least storages of a step that leave: where there are too many small ones, they do too."""
    return PART_BYTES if _most_at_once(trace, trace.storages.bytes < PART_BYTES) <= MOST_STAYING_BYTES else 1


def _most_at_once(trace: Trace, chosen: NDArray[np.bool_]) -> int:
    events = trace.events
    sizes = np.where(chosen, -(-trace.storages.bytes // _BLOCK_BYTES) * _BLOCK_BYTES, 0)
    sign = (events.kind == 0).astype(np.int64) - (events.kind == 1)
    return int(np.cumsum(sign * sizes[events.storage]).max(initial=0))


def recomputes(plan: Plan) -> bool:
    """Whether a plan has any result made again by its ops."""
    return bool((plan.actions.kind == ActionKind.RECOMPUTE).any())
