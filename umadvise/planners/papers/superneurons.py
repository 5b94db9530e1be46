"""The planner `superneurons` (Wang et al., PPoPP 2018): liveness, an LRU cache of tensors, cost-aware recomputation.

- Liveness: what no op uses any more leaves with its last use.
- Recomputation: outputs of layers that cost much (CONV, FC) or where the net branches (FORK, JOIN, CONCAT) are
  checkpoints; all others are dropped after forward and made again in backward, from the last checkpoint. A segment is
  made again at once and kept ("speed-centric") where its memory stays below the largest working set of a layer in
  backward; else anew for every layer that needs it ("memory-centric").
- The cache: where there is no room, what was used longest ago leaves for the host, and comes back on demand; the
  released code prefetches nothing.

Layers are found in ops: convolution is CONV, matrix products and attention are FC, cat and stack CONCAT; FORK is an
output that two ops of forward read, JOIN an elementwise op of two results of one size. What torch itself frees in
forward is no checkpoint; results that could be made again only from such are treated like checkpoints.
"""

from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from umadvise.errors import BudgetError, UsageError
from umadvise.planners.recomputation import Segments, recomputable
from umadvise.planners.recompute_walk import Walk, walk
from umadvise.planners.step_lists import StepLists
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Plan
from umadvise.records.trace import OpClass, Trace

Strategy: TypeAlias = Literal["cost-aware", "speed-centric", "memory-centric"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

_COSTLY = (OpClass.CONVOLUTION, OpClass.MATMUL, OpClass.ATTENTION)
_CONCAT = ("aten::cat", "aten::concat", "aten::stack")


def superneurons(
    trace: Trace,
    _device: DeviceProfile,
    budget_bytes: int,
    *,
    recompute_on: bool = True,
    lru_on: bool = True,
    strategy: Strategy = "cost-aware",
) -> Plan:
    """Plans what SuperNeurons would do in a step. A step that fits as it is keeps everything.

    Args:
        trace: trace of one training step.
        budget_bytes: bytes that tensors may take on the device.
        recompute_on: whether plans may recompute (RECOMPUTE_ON in the released code).
        lru_on: whether plans may swap what was used longest ago (LRU_ON in the released code).
        strategy: how segments are made again. Where cost-aware segments do not fit, all are made memory-centric.

    Raises:
        UsageError: no such strategy.
        BudgetError: what has to be there at once does not fit.
    """
    if strategy not in STRATEGIES:
        raise UsageError(f"unknown strategy {strategy!r}: expected one of {', '.join(STRATEGIES)}")
    step = StepLists(trace)
    step.graph.require_room(budget_bytes)
    walked = _walk(step, budget_bytes, strategy, recompute_on=recompute_on, lru_on=lru_on)
    options = {"recompute_on": recompute_on, "lru_on": lru_on, "strategy": strategy}
    return Plan.from_actions(trace, walked.actions, "superneurons", budget_bytes, options)


def _walk(step: StepLists, budget_bytes: int, strategy: Strategy, *, recompute_on: bool, lru_on: bool) -> Walk:
    nothing = Segments({}, [], [])
    try:
        return Walk(step, nothing, budget_bytes).run()
    except BudgetError:
        if not (recompute_on or lru_on):
            raise
    segments = _segments(step, strategy) if recompute_on else nothing
    swappable = frozenset(
        each for each, movable in enumerate(step.movable) if lru_on and movable and each not in segments.of
    )
    try:
        return walk(step, segments, budget_bytes, swappable, liveness=True)
    except BudgetError:
        if strategy != "cost-aware" or not any(segments.speed_centric):
            raise
    frugal = Segments(segments.of, segments.first_op, [False] * len(segments.speed_centric))
    return walk(step, frugal, budget_bytes, swappable, liveness=True)


def _segments(step: StepLists, strategy: Strategy) -> Segments:
    """What is between two checkpoint layers, in the order of forward."""
    segment_of, first_op = [], [0]
    for op, checkpoint in enumerate(_checkpoint_ops(step)):
        segment_of.append(-1 if checkpoint or not step.forward[op] else len(first_op) - 1)
        if checkpoint or not step.forward[op]:
            first_op.append(op + 1)
    wanted: dict[int, int] = {}
    for storage, (last, _) in step.gaps.items():
        segments = {segment_of[op] for op in step.written_by[storage] if op <= last}
        if len(segments) == 1 and -1 not in segments:
            wanted[storage] = segments.pop()
    working_sets = step.trace.working_set_bytes()
    largest = int(working_sets[np.array(step.backward, bool)].max(initial=0))
    result = Segments(recomputable(step, wanted, first_op), first_op, [False] * len(first_op))
    for segment, members in result.members.items():
        result.speed_centric[segment] = strategy == "speed-centric" or (
            strategy == "cost-aware" and _bytes_at_once(step, members, working_sets) <= largest
        )
    return result


def _checkpoint_ops(step: StepLists) -> list[bool]:
    """Which ops of forward are the layers whose outputs stay."""
    ops, strings = step.trace.ops, step.trace.strings
    readers: dict[int, set[int]] = {}
    for op, touches in enumerate(step.touches):
        if not step.forward[op]:
            continue
        written = {touch.storage for touch in touches if touch.writes}
        for touch in touches:
            if touch.reads and touch.storage not in written:
                readers.setdefault(touch.storage, set()).add(op)
    checkpoint: list[bool] = (np.isin(ops.op_class, _COSTLY) & np.array(step.forward, bool)).tolist()
    for op, touches in enumerate(step.touches):
        if not step.forward[op] or checkpoint[op]:
            continue
        concat = strings[ops.name[op]].split(".")[0] in _CONCAT
        fork = any(touch.writes and len(readers.get(touch.storage, ())) > 1 for touch in touches)
        checkpoint[op] = concat or fork or (ops.op_class[op] == OpClass.ELEMENTWISE and _joins(step, op))
    return checkpoint


def _joins(step: StepLists, op: int) -> bool:
    read = {touch.storage for touch in step.touches[op] if touch.reads and step.movable[touch.storage]}
    return len({step.sizes[each] for each in read}) < len(read)


def _bytes_at_once(step: StepLists, members: list[int], working_sets: NDArray[np.int64]) -> int:
    """What is on the device of a segment that is made again at once, with the first op that needs it."""
    first = min(step.gaps[each][1] for each in members)
    used = {touch.storage for touch in step.touches[first]}
    besides = sum(step.sizes[each] for each in members if each not in used)
    return int(working_sets[first]) + besides
