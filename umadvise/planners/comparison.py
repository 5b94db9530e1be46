"""Planners side by side: every one of them for every budget, on all cores."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import msgspec
import numpy as np

from umadvise import __version__, planners
from umadvise.counters.records import Count, Record
from umadvise.device_profile import DeviceProfile
from umadvise.errors import UmadviseError
from umadvise.planners.plan import Plan
from umadvise.planners.score import Score, pages, score, unlimited_step_ns
from umadvise.simulator.swap import simulate_swap
from umadvise.simulator.timeline import SpanKind, Track
from umadvise.trace.schema import Trace

SCHEMA = "umadvise.comparison/1"
MOST_POINTS = 500
"""Of a curve: more than a drawing shows."""


class Curve(Record, frozen=True):
    """Memory over time: the most bytes on the device, from each time up to the next, in one steady step."""

    planner: str
    budget_bytes: Count
    time_ns: tuple[int, ...]
    bytes: tuple[int, ...]


class Comparison(Record, frozen=True, tag_field="schema", tag=SCHEMA):
    """Scores, by budget from the largest down, and therein in the order in which the planners were named.

    Attributes:
        workload: as the trace names it.
        device: its name.
        peak_bytes: of the step in unlimited memory.
        unlimited_ns: its length there.
        umadvise_version: that computed it.
        scores: what is ready.
        missing: how many were interrupted.
        curves: where asked for.
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
    def of(cls, trace: Trace, device: DeviceProfile, scores: Sequence[Score]) -> "Comparison":
        """Scores of one step on one device."""
        return cls(
            workload=trace.workload,
            device=device.name,
            peak_bytes=trace.peak_bytes,
            unlimited_ns=unlimited_step_ns(trace, device),
            umadvise_version=__version__,
            scores=tuple(scores),
        )


@dataclass(frozen=True, slots=True)
class Job:
    """One planner, one budget."""

    planner: str
    budget_bytes: int
    curve: bool = False


Outcome = tuple[Score, Curve | None]
Finished = Generator[tuple[Job, Outcome], None, None]


def compare(
    trace: Trace,
    device: DeviceProfile,
    names: Sequence[str],
    budgets: Sequence[int],
    *,
    curves: bool = False,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Comparison:
    """Runs planners and simulates their plans. An interrupt (Ctrl-C) ends that early, with what is ready.

    Args:
        trace: one step, with the durations of the device.
        device: what it is for.
        names: of planners.
        budgets: of device memory, in bytes.
        curves: whether memory over time is wanted, of the smallest budget that any plan of swaps keeps.
        workers: processes; by default one a core.
        progress: is told how many are done, and how many there are.

    Raises:
        PolicyError: no such planner.
    """
    for name in names:
        planners.planner(name)
    ordered = sorted(dict.fromkeys(budgets), reverse=True)
    jobs = [Job(name, size, curves) for size in ordered for name in dict.fromkeys(names)]
    if workers is None:
        workers = len(os.sched_getaffinity(0))
    workers = min(workers, len(jobs))
    ready: dict[Job, Outcome] = {}
    finished = _on_all_cores(trace, device, jobs, workers) if workers > 1 else _one_by_one(trace, device, jobs)
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(finished):
        progress(0, len(jobs))
        for job, outcome in finished:
            ready[job] = outcome
            progress(len(ready), len(jobs))
    comparison = Comparison.of(trace, device, [ready[job][0] for job in jobs if job in ready])
    drawn = [curve for job in jobs if job in ready and (curve := ready[job][1]) is not None]
    smallest = min((curve.budget_bytes for curve in drawn), default=0)
    kept = tuple(curve for curve in drawn if curve.budget_bytes == smallest)
    return msgspec.structs.replace(comparison, missing=len(jobs) - len(ready), curves=kept)


def evaluate(trace: Trace, device: DeviceProfile, job: Job) -> Outcome:
    """Plans and simulates; what refuses has its reason for a problem."""
    began_ns = time.perf_counter_ns()
    try:
        plan = planners.run(job.planner, trace, device, job.budget_bytes)
        planning_ns = time.perf_counter_ns() - began_ns
        result = score(trace, device, plan, planning_ns=planning_ns)
    except UmadviseError as error:
        return Score(planner=job.planner, budget_bytes=job.budget_bytes, problem=str(error)), None
    return result, memory_over_time(trace, device, plan) if job.curve else None


def memory_over_time(trace: Trace, device: DeviceProfile, plan: Plan) -> Curve | None:
    """The device memory that a step with a plan holds; None for unified memory, where nobody knows it op by op."""
    if pages(plan) or not len(trace.ops):
        return None
    simulation = simulate_swap(trace, device, plan)
    timeline = simulation.timeline
    assert timeline is not None
    rows = (timeline.track == Track.COMPUTE) & (timeline.kind == SpanKind.OP)
    start_ns = np.zeros(len(trace.ops), np.int64)
    start_ns[timeline.op[rows]] = timeline.start_ns[rows]
    start_ns = np.maximum.accumulate(start_ns - start_ns.min())
    bins = np.arange(0, len(start_ns), -(-len(start_ns) // MOST_POINTS))
    most = np.maximum.reduceat(simulation.live_bytes, bins)
    return Curve(
        planner=plan.planner,
        budget_bytes=plan.budget_bytes,
        time_ns=(*start_ns[bins].tolist(), simulation.step_ns),
        bytes=(*most.tolist(), int(most[-1])),
    )


# ---- processes -----------------------------------------------------------------------------------------------------

_given: tuple[Trace, DeviceProfile] | None = None
"""What all jobs of a worker process are about."""


def _begin(trace: Trace, device: DeviceProfile) -> None:
    global _given
    _given = trace, device


def _work(job: Job) -> Outcome:
    assert _given is not None
    return evaluate(*_given, job)


def _one_by_one(trace: Trace, device: DeviceProfile, jobs: Sequence[Job]) -> Finished:
    for job in jobs:
        yield job, evaluate(trace, device, job)


def _on_all_cores(trace: Trace, device: DeviceProfile, jobs: Sequence[Job], workers: int) -> Finished:
    others = set(multiprocessing.active_children())
    # Processes that start anew share no lock and no native handle with this one.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_begin, initargs=(trace, device))
    complete = False
    try:
        with _interrupts_wait():
            futures: dict[Future[Outcome], Job] = {pool.submit(_work, job): job for job in jobs}
        for future in as_completed(futures):
            job = futures[future]
            try:
                yield job, future.result()
            except BrokenProcessPool:
                problem = "a process that planned has died: too little memory?"
                yield job, (Score(planner=job.planner, budget_bytes=job.budget_bytes, problem=problem), None)
        complete = True
    finally:
        pool.shutdown(wait=complete, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()  # at work on what nobody waits for any more


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C comes when this ends: one in the midst of starting a process would leave that behind.

    It reaches the whole group, but is for this process, which ends the others: they inherit the mask. The mask alone
    does not keep it from here, since other threads take it.
    """
    if threading.current_thread() is not threading.main_thread():  # which gets none
        yield
        return
    came: list[int] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handler = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if came and callable(handler):
        handler(signal.SIGINT, None)
