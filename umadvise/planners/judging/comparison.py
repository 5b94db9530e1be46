"""Compares planners: runs each of them for each budget, on all cores, and scores their plans."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from umadvise import parallel, planners
from umadvise._version import __version__
from umadvise.errors import UmadviseError
from umadvise.planners.bounds.bound import Bound, lower_bound, regret
from umadvise.planners.judging.score import Score, pages, score, unlimited_step_ns
from umadvise.records import plan_file as io
from umadvise.records.counters import Count, Record
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Option, Plan
from umadvise.records.trace import Trace
from umadvise.simulator.swap import simulate_swap

SCHEMA = "umadvise.comparison/1"
MOST_POINTS = 500
"""Most points of a curve: more than a drawing shows."""


class Curve(Record, frozen=True):
    """Memory over time: the most bytes on the device, from each time up to the next, in one steady step."""

    planner: str
    budget_bytes: Count
    time_ns: tuple[int, ...]
    bytes: tuple[int, ...]


class PlannerComparison(Record, frozen=True, tag_field="schema", tag=SCHEMA):
    """Scores of planners for one step on one device.

    Attributes:
        workload: name of the step, from its trace.
        device: name of the device.
        peak_bytes: most bytes of the step that live at once in unlimited memory.
        unlimited_ns: length of the step in unlimited memory.
        umadvise_version: version of this package that computed the scores.
        scores: scores that are ready, by budget from the largest down, and for each in the order of the competitors.
        missing: number of scores that an interrupt has cut off.
        curves: memory over time of each plan in the smallest budget; empty where not asked for.
    """

    workload: str
    device: str
    peak_bytes: Count
    unlimited_ns: Count
    umadvise_version: str
    scores: tuple[Score, ...]
    missing: Count = 0
    curves: tuple[Curve, ...] = ()

    @classmethod
    def of(cls, trace: Trace, device: DeviceProfile, scores: Sequence[Score]) -> "PlannerComparison":
        """A comparison of scores that are there, with what the step takes in unlimited memory."""
        return cls(
            workload=trace.workload,
            device=device.name,
            peak_bytes=trace.peak_bytes,
            unlimited_ns=unlimited_step_ns(trace, device),
            umadvise_version=__version__,
            scores=tuple(scores),
        )


@dataclass(frozen=True, slots=True)
class Competitor:
    """What takes part in a comparison: a planner, or a plan that was made before.

    Attributes:
        name: name in the comparison.
        planner: name of the planner, one of `planners.PLANNERS`; empty where there is a plan.
        options: pairs of name and value of the planner's options.
        plan_file: path of a plan that `umadvise plan` wrote, in place of a planner; None for a planner.
    """

    name: str
    planner: str = ""
    options: tuple[tuple[str, Option], ...] = ()
    plan_file: str | None = None

    @property
    def follows(self) -> bool:
        """Whether it is a planner that begins with the others' plans."""
        return self.plan_file is None and planners.begins_with_plans(self.planner)

    def plan(
        self, trace: Trace, device: DeviceProfile, budget_bytes: int, others: Sequence[Plan]
    ) -> tuple[Plan, int | None]:
        """The plan, and the nanoseconds that making it took; None for a plan that was read from a file."""
        if self.plan_file is not None:
            return io.read(self.plan_file, trace), None
        planners.planner(self.planner)  # what is imported for it is no planning
        began_ns = time.perf_counter_ns()
        plan = planners.run(self.planner, trace, device, budget_bytes, None, others, **dict(self.options))
        return plan, time.perf_counter_ns() - began_ns


@dataclass(frozen=True, slots=True)
class _Plan:
    """One competitor, one budget; for one that begins with the others' plans these."""

    competitor: Competitor
    budget_bytes: int
    curve: bool
    others: tuple[bytes, ...] = field(default=(), compare=False)  # as files have them

    def run(self, trace: Trace, device: DeviceProfile) -> tuple[Score, Curve | None, bytes | None]:
        """Plans and simulates; what refuses has its reason for a problem."""
        name = self.competitor.name
        if (problem := device.too_large(self.budget_bytes)) is not None:
            return self.failed(problem), None, None
        others = [io.decode(plan, trace) for plan in self.others]
        try:
            plan, planning_ns = self.competitor.plan(trace, device, self.budget_bytes, others)
            result = score(trace, device, plan, budget_bytes=self.budget_bytes, planning_ns=planning_ns)
            curve = memory_over_time(trace, device, plan, self.budget_bytes) if self.curve else None
        except UmadviseError as error:
            return self.failed(str(error)), None, None
        named = None if curve is None else msgspec.structs.replace(curve, planner=name)
        return msgspec.structs.replace(result, planner=name), named, io.encode(plan)

    def failed(self, problem: str) -> Score:
        """The score of a plan that there is not."""
        return Score(planner=self.competitor.name, budget_bytes=self.budget_bytes, problem=problem)


@dataclass(frozen=True, slots=True)
class _Bound:
    """The least time of a step in one budget, for all plans of one kind."""

    budget_bytes: int
    recompute: bool

    def run(self, trace: Trace, device: DeviceProfile) -> Bound | None:
        """The bound; None where the solver gives up or is not there."""
        try:
            return lower_bound(trace, device, self.budget_bytes, recompute=self.recompute)
        except UmadviseError:
            return None


def compare(
    trace: Trace,
    device: DeviceProfile,
    competitors: Sequence[Competitor | str],
    budgets: Sequence[int],
    *,
    curves: bool = False,
    regrets: bool = True,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> PlannerComparison:
    """Runs planners and simulates their plans. An interrupt (Ctrl-C) ends that early, with what is ready.

    A planner that begins with others' plans begins with those of the others here, and waits for them.

    Args:
        trace: one step, with the durations of the device.
        device: profile of the device that plans are for.
        competitors: planners and plans, no two of one name; a word stands for the planner of that name.
        budgets: numbers of bytes that tensors may take on the device.
        curves: whether memory over time is wanted, of the smallest budget that any plan of swaps keeps.
        regrets: whether to look for the lower bounds, which takes longer than most planners.
        workers: number of processes; None is one a core.
        progress: callback that gets the number of tasks (plans, and bounds to judge them by) that are done, and of all.

    Raises:
        PolicyError: no such planner.
        FormatError: a file is no plan of this trace.
    """
    taking_part = list(dict.fromkeys(Competitor(each, each) if isinstance(each, str) else each for each in competitors))
    for each in taking_part:
        if each.plan_file is not None:
            io.read(each.plan_file, trace)
        else:
            planners.known_options(each.planner, dict(each.options))
    ordered = sorted(dict.fromkeys(budgets), reverse=True)
    jobs = [_Plan(each, size, curves) for size in ordered for each in taking_part]
    first: list[_Plan | _Bound] = [job for job in jobs if not job.competitor.follows] or [*jobs]
    scores: dict[_Plan, Score] = {}
    bounds: dict[_Bound, Bound | None] = {}
    drawn: list[Curve] = []
    found: dict[_Plan, bytes | None] = {}

    def follow(task: _Plan | _Bound, result: Any) -> Iterator[_Plan | _Bound]:
        if isinstance(task, _Bound):
            return
        wanted = _bound_of(result[0]) if regrets else None
        if wanted is not None and wanted not in bounds:
            bounds[wanted] = None
            yield wanted
        found[task] = result[2]
        of_size = [job for job in jobs if job.budget_bytes == task.budget_bytes]
        waiting = [job for job in of_size if job not in first and job not in found]
        if task in first and all(job in found for job in of_size if job in first):
            plans = (found[job] for job in of_size if job in first)
            others = tuple(plan for plan in plans if plan is not None)
            yield from (replace(job, others=others) for job in waiting)

    finished = parallel.run(functools.partial(_run, trace, device), first, workers=workers, follow=follow)
    done = 0
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(finished):
        progress(0, len(jobs))
        for task, result in finished:
            if isinstance(task, _Bound):
                bounds[task] = result
            elif result is None:
                scores[task] = task.failed("the process that planned has died: too little memory?")
            else:
                scores[task], curve, _ = result
                drawn += [] if curve is None else [curve]
            done += 1
            progress(done, len(jobs) + len(bounds))
    ready = [job for job in jobs if job in scores]
    comparison = PlannerComparison.of(trace, device, [_judged(scores[job], bounds) for job in ready])
    return msgspec.structs.replace(comparison, missing=len(jobs) - len(ready), curves=_of_smallest(drawn, taking_part))


def _judged(given: Score, bounds: Mapping[_Bound, Bound | None]) -> Score:
    """A score with its lower bound, and its regret: how much longer than the bound its step is."""
    wanted = _bound_of(given)
    bound = None if wanted is None else bounds.get(wanted)
    if bound is None:
        return given
    assert given.step_ns is not None
    kind = f"{bound.kind} with recomputation" if given.recomputed_ops else bound.kind
    return msgspec.structs.replace(given, bound_ns=bound.step_ns, bound=kind, regret=regret(given.step_ns, bound))


def _of_smallest(curves: Sequence[Curve], competitors: Sequence[Competitor]) -> tuple[Curve, ...]:
    """The curves of the smallest budget, in the order of the competitors."""
    names = [each.name for each in competitors]
    smallest = min((curve.budget_bytes for curve in curves), default=0)
    kept = (curve for curve in curves if curve.budget_bytes == smallest)
    return tuple(sorted(kept, key=lambda curve: names.index(curve.planner)))


def with_regret(given: Score, trace: Trace, device: DeviceProfile) -> Score:
    """A score judged by the bound of its kind of plan, where there is one."""
    wanted = _bound_of(given)
    return given if wanted is None else _judged(given, {wanted: wanted.run(trace, device)})


def _bound_of(given: Score) -> _Bound | None:
    """Bounds are of explicit swaps: under unified memory an op may work on what is not on the device."""
    if given.problem is not None or given.fault_groups is not None:
        return None
    return _Bound(given.budget_bytes, recompute=bool(given.recomputed_ops))


def _run(trace: Trace, device: DeviceProfile, task: _Plan | _Bound) -> Any:
    return task.run(trace, device)


def memory_over_time(trace: Trace, device: DeviceProfile, plan: Plan, budget_bytes: int) -> Curve | None:
    """The device memory that a step with a plan holds; None for unified memory, where nobody knows it op by op."""
    if pages(plan) or not len(trace.ops):
        return None
    simulation = simulate_swap(trace, device, plan, budget_bytes=budget_bytes)
    start_ns = np.maximum.accumulate(simulation.op_starts_ns())
    bins = np.arange(0, len(start_ns), -(-len(start_ns) // MOST_POINTS))
    most = np.maximum.reduceat(simulation.live_bytes, bins)
    return Curve(
        planner=plan.planner,
        budget_bytes=budget_bytes,
        time_ns=(*start_ns[bins].tolist(), simulation.step_ns),
        bytes=(*most.tolist(), int(most[-1])),
    )
