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

from collections.abc import Callable, Generator, Hashable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from umadvise.recording.operators import full_name
from umadvise.torch_seam.replacements import Replacements
from umadvise.torch_seam.traced import is_rehearsed
from umadvise.training.recompute.choice import Region, RerunChoice
from umadvise.training.recompute.side_effects import SideEffects, identity_of
from umadvise.training.recompute.tape import (
    Tape,
    counts_as_op,
    may_run_again,
    storage_key,
    storages_of,
    tensors_written,
)


class Regions:
    """Follows the regions of each step: records them, or has chosen ops of them run again.

    Attributes:
        recorded: regions that were followed in the step that was recorded last.
        watched: whether a region of this step, or of the last one between steps, was met for the first time.
        follows: whether regions are followed; else all of them are torch's own.
        met: whether there was any region that could have been followed.
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
        self.recorded: list[Region] = []
        self.watched = self.met = False
        self.follows = True

    def install(self, replaced: Replacements) -> None:
        """Replaces what `checkpoint` calls, however the script has imported it."""
        replaced.around(checkpoint, "_checkpoint_without_reentrant_generator", self._around)

    def begin_step(self, *, record: bool = False) -> None:
        """Begins a step: counts its regions from 0, and records them if it is to."""
        self._entered = 0
        self._recording = record
        self.watched = False
        if record:
            self._ops_before = self._op_count()
            self.recorded = []

    def run_again(self, choice: RerunChoice | None) -> None:
        """Sets the ops that run again from the next step on; None: none."""
        self._chosen = {} if choice is None else choice.by_region

    def _around(
        self, original: Any, function: Any, preserve_rng_state: bool, context_fn: Any, /, *others: Any, **named: Any
    ) -> Generator[None, None, None]:
        """What comes before and after the function of a region; the caller runs it in between."""
        torchs = partial(original, function, preserve_rng_state, context_fn, *others, **named)
        selects = context_fn is not checkpoint.noop_context_fn  # the script's own selection stands
        in_backward = torch._C._current_graph_task_id() != -1  # where torch runs a region again
        if selects or in_backward or self._within_torchs or is_rehearsed():
            yield from torchs()
        elif self._within_followed or not torch.is_grad_enabled():
            yield
        else:
            self.met = True
            following = self._enter(function, torchs, draws_twice=not preserve_rng_state) if self.follows else torchs()
            yield from following

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
                effects = SideEffects(draws_twice=draws_twice)
                with effects:
                    yield from torchs()
                self._keeps_to_itself[known] = effects.keeps_to_itself
        finally:
            self._within_torchs = False

    def _follow(self, place: int) -> Generator[None, None, None]:
        chosen = self._chosen.get(place, frozenset())
        self._within_followed = True
        try:
            with ExitStack() as entered:
                recorder = None
                if self._recording:
                    recorder = entered.enter_context(_RegionRecorder(place, self._op_count() - self._ops_before))
                elif chosen:
                    tape = Tape(chosen)
                    entered.callback(tape.close)
                    entered.enter_context(saved_tensors_hooks(tape.pack, tape.unpack))
                    entered.enter_context(tape)
                yield
            if recorder is not None:
                self.recorded.append(recorder.region())
        finally:
            self._within_followed = False


class _RegionRecorder(TorchDispatchMode):
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
            self._made |= storages_of(made)
        return made
