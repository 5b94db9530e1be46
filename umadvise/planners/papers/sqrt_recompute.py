"""The planner `sqrt-recompute`: recomputation by stages (Chen et al. 2016, arXiv:1604.06174; search of MXNet-memonger).

Forward is cut into stages. What one stage hands to the next stays, all else is dropped with its last use in forward,
and made again, a stage at a time, in backward. A stage ends where its outputs have become more than a threshold: so n
layers keep, at best, about 2 sqrt(n) of their maps at once, for up to one more forward pass.

memonger's users mark where a stage may end. Here it may end where one storage holds nine tenths of what forward takes
across; in nets with fewer than sqrt(forward ops) of such places (U-Net's skip connections, LSTM), after any op.
"""

from bisect import bisect_right
from dataclasses import dataclass
from math import isqrt, sqrt

import numpy as np
from numpy.typing import NDArray

from umadvise.errors import BudgetError, UsageError
from umadvise.planners.recomputation import Segments, recomputable
from umadvise.planners.recompute_walk import Walk, walk
from umadvise.planners.step_lists import StepLists
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Plan
from umadvise.records.trace import Trace
from umadvise.records.units import format_bytes

_UNLIMITED = 2**62


def sqrt_recompute(
    trace: Trace, _device: DeviceProfile, budget_bytes: int, *, threshold: int | None = None, ntrial: int = 6
) -> Plan:
    """Plans recomputation: the least, of the plans that the search tries, that keeps the budget at every op.

    A step that fits as it is keeps everything.

    Args:
        trace: trace of one training step.
        budget_bytes: bytes that tensors may take on the device.
        threshold: MiB of outputs after which a stage ends. None searches: 0, then twice the square root of half of
            what the last plan kept times its largest stage, then a grid from the smallest of the largest stages to
            sqrt(2) times the last square root.
        ntrial: number of thresholds on the grid.

    Raises:
        UsageError: a number is below 0.
        BudgetError: none of the plans keeps the budget.
    """
    if ntrial < 0 or (threshold is not None and threshold < 0):
        raise UsageError("threshold, ntrial: expected 0 or more")
    stages = _Stages(StepLists(trace))
    kept = Walk(stages.step, Segments({}, [], []), _UNLIMITED).run()
    if kept.peak_bytes <= budget_bytes:
        trials = [kept]
    else:
        trials = _search(stages, ntrial) if threshold is None else [stages.plan(threshold << 20).walk]
    fitting = [each for each in trials if each.peak_bytes <= budget_bytes]
    if not fitting:
        least = min(each.peak_bytes for each in trials)
        raise BudgetError(
            f"square-root recomputation reaches {format_bytes(least)} here: no plan of it keeps a budget of "
            f"{format_bytes(budget_bytes)}; give at least that, or swap"
        )
    best = min(fitting, key=lambda each: (each.recompute_ns, each.peak_bytes))
    options = {"threshold": threshold, "ntrial": ntrial}
    return Plan.from_actions(trace, best.actions, "sqrt-recompute", budget_bytes, options)


@dataclass(frozen=True, slots=True)
class _Trial:
    walk: Walk
    kept_bytes: int
    largest_stage_bytes: int


def _search(stages: "_Stages", ntrial: int) -> list[Walk]:
    """The search of memonger, in bytes where that is in MiB."""
    trials: list[_Trial] = []
    threshold = 0
    for _ in range(3):
        trials.append(stages.plan(threshold))
        threshold = isqrt(trials[-1].kept_bytes * trials[-1].largest_stage_bytes // 2)
    smallest = min(each.largest_stage_bytes for each in trials)
    step = int((threshold * sqrt(2) - smallest) / ntrial) if ntrial else 0
    if step > 0:
        trials += [stages.plan(smallest + step * (row + 1)) for row in range(ntrial)]
    return [each.walk for each in trials]


class _Stages:
    """Where stages may end, and the plan of a threshold."""

    def __init__(self, step: StepLists) -> None:
        self.step = step
        op_count = len(step.forward)
        self.output_bytes = [0] * op_count
        # When forward is done with a storage: what is never used in backward too.
        self.until: dict[int, int] = {}
        for storage, (movable, touched) in enumerate(zip(step.movable, step.touched_by, strict=True)):
            if movable and touched and step.forward[touched[0]]:
                self.output_bytes[touched[0]] += step.sizes[storage]
                self.until[storage] = step.gaps.get(storage, touched[-1:])[0]
        self.candidates = self._candidates(op_count)

    def _candidates(self, op_count: int) -> NDArray[np.bool_]:
        across, largest = np.zeros(op_count, np.int64), np.zeros(op_count, np.int64)
        for storage, until in self.until.items():
            lives, size = slice(self.step.touched_by[storage][0], until), self.step.sizes[storage]
            across[lives] += size
            np.maximum(largest[lives], size, out=largest[lives])
        forward = np.array(self.step.forward, bool)
        single: NDArray[np.bool_] = forward & (across > 0) & (largest * 10 >= across * 9)
        enough = np.count_nonzero(single) >= isqrt(int(np.count_nonzero(forward)))
        return single if enough else forward

    def plan(self, threshold_bytes: int) -> _Trial:
        """What a plan with this threshold does; no budget stops it."""
        step = self.step
        stage_of, first_op, largest_bytes = self._cut(threshold_bytes)
        wanted: dict[int, int] = {}
        kept_bytes = 0
        for storage, (last, _) in step.gaps.items():
            begin = step.touched_by[storage][0] if storage in self.until else -1
            if begin < 0:
                continue
            row = bisect_right(first_op, begin)  # the stage after the one that makes it
            if row < len(first_op) and first_op[row] <= max(last, begin + 1):
                kept_bytes += step.sizes[storage]
            else:
                wanted[storage] = stage_of[begin]
        of = recomputable(step, wanted, first_op)
        segments = Segments(of, first_op, [True] * len(first_op))
        return _Trial(walk(step, segments, _UNLIMITED), kept_bytes, largest_bytes)

    def _cut(self, threshold_bytes: int) -> tuple[list[int], list[int], int]:
        """The stage of each op, each stage's first op, and the outputs of the largest stage that was ended."""
        stage_of, first_op = [], [0]
        local_bytes = largest_bytes = 0
        for op, forward in enumerate(self.step.forward):
            if op and forward != self.step.forward[op - 1] and first_op[-1] != op:
                first_op.append(op)
                local_bytes = 0
            stage_of.append(len(first_op) - 1)
            local_bytes += self.output_bytes[op]
            if self.candidates[op] and local_bytes > threshold_bytes:
                largest_bytes = max(largest_bytes, local_bytes)
                local_bytes = 0
                first_op.append(op + 1)
        return stage_of, first_op, largest_bytes
