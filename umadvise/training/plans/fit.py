"""What runs on a card, before anything runs: a step of each batch is recorded dry, and simulated on each rung.

Memory is that of the engine itself: on `resident` its heaps of plain device memory, in chunks its guard with all that
an op is given and makes, small tensors and whole chunks. So what is said to run does, and what is not is refused, as
far as the dry recorder knows what the kernels take for themselves.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from umadvise import planners
from umadvise._native.abi import Memory
from umadvise._version import __version__
from umadvise.devices.rungs import ADVISE, LADDER, RESIDENT, SWAP, SWAP_RECOMPUTE, WINDOW
from umadvise.errors import BudgetError, UmadviseError, UsageError
from umadvise.planners.judging.score import score
from umadvise.recording.dry import recorder
from umadvise.recording.recorded_step import RecordedStep, in_canonical_order
from umadvise.recording.workload import Workload
from umadvise.records.fit_report import BatchFit, FitReport, LargestFit, RungFit
from umadvise.records.trace import Target, Trace
from umadvise.simulator.gpu import OP_NS
from umadvise.simulator.swap import simulate_resident
from umadvise.simulator.unified import simulate_plain
from umadvise.torch_seam import split_updates
from umadvise.torch_seam.replacements import Replacements
from umadvise.training.plans.cache import PlanCache
from umadvise.training.plans.device import PlanningDevice
from umadvise.training.plans.maker import PlanMaker
from umadvise.training.plans.plan_memory import (
    PlanMemory,
    capacity_of,
    chunk_bytes_of,
    movable_storages,
    spare_bytes,
    staying_bytes,
)

RUNGS = (RESIDENT.name, ADVISE.name, WINDOW.name, SWAP.name)
"""The rungs that are looked at where nobody says which."""
FIRST_STEPS = 3
"""Steps after which what lies where in plain memory does not change any more."""
_AT_ONCE = ("aten::_foreach_", "aten::_fused_")
_OP = re.compile(r"\bat op (\d+) of the trace: ")


@dataclass(frozen=True)
class Batches:
    """The batches that are asked about.

    Attributes:
        shown: those whose steps are simulated in any case, from the smallest up.
        searched: whether the largest that runs is looked for between the smallest and the largest of them.
    """

    shown: tuple[int, ...]
    searched: bool = False

    @classmethod
    def between(cls, least: int, most: int) -> "Batches":
        """Both ends, the powers of two between them, and the largest that runs on each rung."""
        powers = [1 << power for power in range(most.bit_length())]
        return cls(tuple(sorted({least, *(each for each in powers if least < each < most), most})), searched=True)


@dataclass(frozen=True, eq=False)
class Fitting:
    """A training whose batch is to be chosen, and the card.

    Attributes:
        build: function that makes the workload of a batch on torch's default device.
        device: device that it is to train on.
        budget_bytes: bytes that tensors may take on the device.
        rungs: rungs of the ladder to look at.
    """

    build: Callable[[int], Workload]
    device: PlanningDevice
    budget_bytes: int
    rungs: Sequence[str] = RUNGS
    _steps: dict[int, "_Step"] = field(default_factory=dict)

    def report(self, batches: Batches, progress: Callable[[int, int], None] = lambda _done, _all: None) -> FitReport:
        """Records and simulates.

        That a larger batch needs more memory is taken for granted where the largest that runs is looked for.

        Args:
            batches: batches to look at.
            progress: callback that gets the number of batches that are done, and the number of all of them.

        Raises:
            UsageError: a step cannot be recorded dry, or there is no such rung.
        """
        unknown = [each for each in self.rungs if each not in LADDER]
        if unknown:
            raise UsageError(f"no rung {unknown[0]!r}: expected some of {', '.join(LADDER)}")
        wanted = set(batches.shown)
        if batches.searched:
            for rung in self.rungs:
                wanted |= {self._largest(rung, batches.shown[0], batches.shown[-1])} - {0}
        rows = []
        for batch in sorted(wanted):
            rows.append(self._batch(batch))
            progress(len(rows), len(wanted))
        return FitReport(
            workload=self._step(rows[0].batch).whole.workload,
            device=self.device.profile.name,
            emulated=self.device.synchronous,
            budget_bytes=self.budget_bytes,
            umadvise_version=__version__,
            largest=tuple(_largest_of(rung, rows) for rung in self.rungs),
            batches=tuple(rows),
        )

    def _batch(self, batch: int) -> BatchFit:
        step, profile = self._step(batch), self.device.profile
        issue_ns = 0 if self.device.synchronous else OP_NS
        unlimited_ns = simulate_resident(
            step.whole, profile, allocator="exact", op_issue_ns=issue_ns
        ).simulation.step_ns
        return BatchFit(
            batch=batch,
            peak_bytes=step.whole.peak_bytes,
            unlimited_ns=unlimited_ns,
            rungs=tuple(self._on(rung, batch, unlimited_ns) for rung in self.rungs),
        )

    def _on(self, rung: str, batch: int, unlimited_ns: int) -> RungFit:
        try:
            step_ns = self._step_ns(rung, batch, unlimited_ns)
        except (UmadviseError, ValueError) as error:  # a plan that cannot be executed is a ValueError
            return RungFit(rung=rung, problem=str(error))
        return RungFit(
            rung=rung,
            step_ns=step_ns,
            times_unlimited=step_ns / unlimited_ns if unlimited_ns else None,
            samples_per_s=batch * 1e9 / step_ns if step_ns else None,
        )

    def _step_ns(self, rung: str, batch: int, unlimited_ns: int) -> int:
        """Nanoseconds of a step.

        Raises:
            UmadviseError: it does not run so.
        """
        self._require(rung, batch)
        step, maker = self._step(batch).divided, self._maker
        if rung == RESIDENT.name:
            return unlimited_ns
        if rung != SWAP_RECOMPUTE.name:
            return maker.predicted_ns(step, rung, self._memory(rung))
        memory, profile = self._memory(rung), self.device.profile
        capacity = capacity_of(step.trace, memory, movable_storages(step, memory))
        plan = planners.run("best", step.trace, profile, capacity, trials=0, paging=False)
        return score(step.trace, profile, plan, capacity=capacity).step_ns or 0

    def _require(self, rung: str, batch: int) -> None:
        """Checks that memory is enough for every op; in unified memory it always is, as the driver pages.

        Raises:
            BudgetError: it is not.
        """
        memory = LADDER[rung].memory
        if memory == Memory.DEVICE:
            first_steps = self._recorded(batch, from_first=FIRST_STEPS)
            with _ops_named(first_steps):
                simulate_plain(first_steps, self.device.profile, capacity_bytes=self.budget_bytes)
        elif memory == Memory.CHUNKED:
            step = self._step(batch).divided
            with _ops_named(step.trace):
                self._maker.simulate(step, None, self._memory(rung))

    def _largest(self, rung: str, least: int, most: int) -> int:
        """The largest batch from one to another that has the memory, by bisection; 0 where none has."""

        def runs(batch: int) -> bool:
            try:
                self._require(rung, batch)
            except BudgetError:
                return False
            return True

        if not runs(least):
            return 0
        low, high = least, most + 1
        if runs(most):
            return most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if runs(middle) else (low, middle)
        return low

    @property
    def _maker(self) -> PlanMaker:
        return PlanMaker(self.device, PlanCache(None))

    @property
    def _target(self) -> Target:
        return "cpu" if self.device.synchronous else "cuda"

    @property
    def _chunk_bytes(self) -> int:
        return chunk_bytes_of(self.budget_bytes)

    def _memory(self, rung: str) -> PlanMemory:
        return PlanMemory(self.budget_bytes, self._chunk_bytes if LADDER[rung].memory == Memory.CHUNKED else 0)

    def _step(self, batch: int) -> "_Step":
        if batch not in self._steps:
            whole = self._recorded(batch)
            divided = whole
            if any(name.startswith(_AT_ONCE) for name in whole.strings):
                spare = spare_bytes(self.budget_bytes, self._chunk_bytes)
                left_bytes = self.budget_bytes - spare - staying_bytes(whole)
                with _divided(max(left_bytes // 2, self._chunk_bytes), self._chunk_bytes):
                    divided = self._recorded(batch)
            self._steps[batch] = _Step(whole, _steady(divided))
        return self._steps[batch]

    def _recorded(self, batch: int, from_first: int = 0) -> Trace:
        profile = self.device.profile
        return recorder.record(lambda: self.build(batch), target=self._target, device=profile, from_first=from_first)


@dataclass(frozen=True, eq=False)
class _Step:
    """A step of one batch: as the script has it, and with the optimizer's part divided as in a session."""

    whole: Trace
    divided: RecordedStep


def _steady(trace: Trace) -> RecordedStep:
    trace, order = in_canonical_order(trace)
    return RecordedStep(trace, np.zeros(len(order), np.uint64), "roofline")


@contextmanager
def _divided(limit_bytes: int, chunk_bytes: int) -> Iterator[None]:
    """Optimizers take as many parameters at a time as `umadvise.training.memory_split` lets them."""
    replaced = Replacements()
    split_updates.install(replaced, lambda: limit_bytes, chunk_bytes)
    try:
        yield
    finally:
        replaced.undo()


def _largest_of(rung: str, rows: Sequence[BatchFit]) -> LargestFit:
    running = [each.batch for each in rows if each.on(rung).problem is None]
    return LargestFit(rung=rung, batch=max(running, default=None), more=bool(running) and running[-1] == rows[-1].batch)


@contextmanager
def _ops_named(trace: Trace) -> Iterator[None]:
    """Names the op in a refusal of the simulated engine, which knows it by its number alone."""
    try:
        yield
    except BudgetError as error:
        problem = str(error)
        if (found := _OP.search(problem)) is None:
            raise
        op = trace.op(int(found[1]))
        raise BudgetError(f"{op.name}{f' of {op.module}' if op.module else ''}: {problem[found.end() :]}") from error
