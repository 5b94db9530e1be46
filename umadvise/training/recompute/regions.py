"""Ops of a plan that run again in backward, in regions that the user marked with torch.utils.checkpoint.

A region is a call of `torch.utils.checkpoint.checkpoint(function, ..., use_reentrant=False)`. While regions are
followed the call does not do what it does by itself: of the region's ops only those that the plan names run again, and
all else is kept as if there were no checkpoint.

That is the same to the last bit only where a region that runs twice changes nothing but its own tensors. One in which
an op writes to a tensor from outside of it (running statistics, an embedding's renormalisation) is left to torch, for
ever: torch runs it twice, and so must whoever wants the same numbers. So a region runs under torch's own checkpoint the
first time, watched for such writes, and is followed from the next step on.

Why not torch's own selective checkpointing (2.13.0, torch/utils/checkpoint.py): it runs the whole function again, with
every op of it passing through the dispatcher, and keeps the outputs of all ops that are not run again, also of those
that backward has no use for, where no saved-tensor hook sees them. Here nothing runs again but the ops that were named.
"""

from collections.abc import Callable, Collection, Generator, Hashable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from umadvise.recording.operators import full_name
from umadvise.records.plan import ActionKind, Plan
from umadvise.records.trace import Access, Trace
from umadvise.torch_seam.replacements import Replacements
from umadvise.training.recompute.region_watch import Watch, identity_of
from umadvise.training.recompute.run_again import (
    Tape,
    counts_as_op,
    is_plain,
    may_run_again,
    storage_key,
    tensors_in,
    tensors_written,
)


@dataclass(frozen=True)
class Region:
    """One call of a checkpointed function, as it was recorded.

    Attributes:
        place: how many calls of the step came before it, those that are left to torch among them.
        first_op: how many ops of the step came before it.
        operators: names of its ops, with their overloads, in order.
        repeatable: of each, whether it may run again: it draws no random numbers, and what it writes to can be made
            again.
    """

    place: int
    first_op: int
    operators: tuple[str, ...]
    repeatable: tuple[bool, ...]


@dataclass(frozen=True)
class Choice:
    """Which ops run again, and what of a plan cannot be had.

    Attributes:
        by_region: for each region, by its place in the step, the indices of its ops.
        unmarked: ops of the step in no region.
        never_twice: ops in one that may not run again.
    """

    by_region: dict[int, frozenset[int]]
    unmarked: frozenset[int]
    never_twice: frozenset[int]

    @property
    def complaint(self) -> str | None:
        """What to tell the user; None where the plan can be had whole."""
        if not self.unmarked:
            return None
        return (
            f"the plan runs {len(self.unmarked)} ops again that lie in no marked region, so their results are kept: "
            "mark regions by calling torch.utils.checkpoint.checkpoint(function, ..., use_reentrant=False), as "
            'model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False}) does. '
            "Regions that write to tensors from outside of them, such as running statistics, stay torch's own"
        )


def ops_of(plan: Plan, trace: Trace) -> frozenset[int]:
    """The ops that run again by a plan of a trace: its recomputations' ops, but those whose results are still there."""
    written: dict[int, list[int]] = {}  # by op, the storages
    writers: dict[int, list[int]] = {}  # by storage, the ops
    rows = (trace.accesses.flags & Access.WRITE) != 0
    for op, storage in zip(trace.accesses.op[rows].tolist(), trace.accesses.storage[rows].tolist(), strict=True):
        written.setdefault(op, []).append(storage)
        writers.setdefault(storage, []).append(op)
    table, deaths = plan.actions, trace.deaths
    found: set[int] = set()
    for row in (table.kind == ActionKind.RECOMPUTE).nonzero()[0].tolist():
        target, anchor, first = int(table.storage[row]), int(table.op[row]), int(table.argument[row])
        last = max((op for op in writers.get(target, ()) if op < anchor), default=-1)
        for op in range(first, last + 1):
            if any(storage == target or deaths[storage] < anchor for storage in written.get(op, ())):
                found.add(op)
    return frozenset(found)


def choose(ops: Collection[int], regions: Collection[Region]) -> Choice:
    """Finds a step's ops in its regions.

    Args:
        ops: indices into the step's ops.
        regions: of that step.
    """
    by_region: dict[int, set[int]] = {}
    unmarked, never_twice = set(ops), set()
    for region in regions:
        inside = {op for op in unmarked if 0 <= op - region.first_op < len(region.operators)}
        unmarked -= inside
        for op in inside:
            if region.repeatable[op - region.first_op]:
                by_region.setdefault(region.place, set()).add(op - region.first_op)
            else:
                never_twice.add(op)
    chosen = {place: frozenset(indices) for place, indices in by_region.items()}
    return Choice(chosen, frozenset(unmarked), frozenset(never_twice))


class Regions:
    """Follows the regions of each step: records them, or has chosen ops of them run again.

    Attributes:
        watched: whether a region of this step, or of the last one between steps, was met for the first time.
    """

    def __init__(self, op_count: Callable[[], int]) -> None:
        """Nothing changes before `install`.

        Args:
            op_count: how many ops have begun; only differences matter.
        """
        self._op_count = op_count
        self._ops_before = 0
        self._entered = 0
        self._within_followed = self._within_torchs = False
        self._recording = False
        self._keeps_to_itself: dict[Hashable, bool] = {}  # by place and function, of those that were watched
        self._chosen: dict[int, frozenset[int]] = {}
        self._recorded: list[Region] = []
        self.watched = False

    def install(self, replaced: Replacements) -> None:
        """Replaces what `checkpoint` calls, however the script has imported it."""
        replaced.replace(checkpoint, "_checkpoint_without_reentrant_generator", self._make)

    def begin_step(self, *, record: bool = False) -> None:
        """A step begins: its regions are counted from 0, and recorded if so."""
        self._ops_before = self._op_count()
        self._entered = 0
        self._recording = record
        self.watched = False
        if record:
            self._recorded = []

    @property
    def recorded(self) -> tuple[Region, ...]:
        """The regions that were followed in the step that was recorded last."""
        return tuple(self._recorded)

    def run_again(self, choice: Choice | None) -> None:
        """From the next step on these ops run again; None: none."""
        self._chosen = {} if choice is None else choice.by_region

    def _make(self, original: Callable[..., Generator[None, None, None]]) -> Callable[..., Generator[None, None, None]]:
        """What comes before and after the function of a region; the caller runs it in between."""

        def around(
            function: Any, preserve_rng_state: bool, context_fn: Any, *others: Any, **named: Any
        ) -> Generator[None, None, None]:
            torchs = partial(original, function, preserve_rng_state, context_fn, *others, **named)
            selects = context_fn is not checkpoint.noop_context_fn  # the script's own selection stands
            in_backward = torch._C._current_graph_task_id() != -1  # where torch runs a region again
            if selects or in_backward or self._within_torchs:
                yield from torchs()
            elif self._within_followed or not torch.is_grad_enabled():
                yield
            else:
                yield from self._enter(function, torchs, draws_twice=not preserve_rng_state)

        return around

    def _enter(
        self, function: Any, torchs: Callable[[], Generator[None, None, None]], *, draws_twice: bool
    ) -> Generator[None, None, None]:
        place, self._entered = self._entered, self._entered + 1
        known = (place, draws_twice, identity_of(function))
        if self._keeps_to_itself.get(known):
            yield from self._follow(place)
            return
        self._within_torchs = True
        try:
            if known in self._keeps_to_itself:
                yield from torchs()
            else:
                self.watched = True
                watch = Watch(draws_twice=draws_twice)
                with watch:
                    yield from torchs()
                self._keeps_to_itself[known] = watch.keeps_to_itself
        finally:
            self._within_torchs = False

    def _follow(self, place: int) -> Generator[None, None, None]:
        chosen = self._chosen.get(place, frozenset())
        self._within_followed = True
        try:
            with ExitStack() as entered:
                recorder = None
                if self._recording:
                    recorder = entered.enter_context(_Recorder(place, self._op_count() - self._ops_before))
                elif chosen:
                    tape = Tape(chosen)
                    entered.callback(tape.close)
                    entered.enter_context(saved_tensors_hooks(tape.pack, tape.unpack))
                    entered.enter_context(tape)
                yield
            if recorder is not None:
                self._recorded.append(recorder.region())
        finally:
            self._within_followed = False


class _Recorder(TorchDispatchMode):
    """Writes down a region's ops."""

    def __init__(self, place: int, first_op: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._place, self._first_op = place, first_op
        self._operators: list[str] = []
        self._repeatable: list[bool] = []
        # Storages that the ops which may run again have made; the references keep addresses from being used again.
        self._made: dict[int, StorageWeakRef] = {}

    def region(self) -> Region:
        """What was written down."""
        return Region(self._place, self._first_op, tuple(self._operators), tuple(self._repeatable))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an op."""
        named = kwargs or {}
        if not counts_as_op(func):
            return func(*args, **named)
        repeatable = may_run_again(func, args, named, lambda tensor: storage_key(tensor) in self._made)
        self._operators.append(full_name(func._schema))
        self._repeatable.append(repeatable)
        for tensor in tensors_written(func, args, named):
            self._made.pop(storage_key(tensor), None)
        made = func(*args, **named)
        if repeatable:
            self._made |= {
                storage_key(each): StorageWeakRef(each.untyped_storage()) for each in filter(is_plain, tensors_in(made))
            }
        return made
