"""Steps of a training with their plans, kept for the next run, whose first step they can drive.

They are kept by what model and optimizer are made of.

A step is kept as it was recorded, with the names of what it finds: parameters and the optimizer's state have the same
names in every run. The first step of a training, which makes that state, is kept beside those that follow it.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch.nn.parameter import is_lazy

from umadvise._version import __version__
from umadvise.errors import FormatError
from umadvise.recording.recorded_step import DurationSource, RecordedStep
from umadvise.records import plan_file, trace_file
from umadvise.records.counters import Record
from umadvise.records.files import read_whole
from umadvise.training.plans.kept_files import KeptFiles, user_directory
from umadvise.training.plans.planned_step import PlannedStep

SCHEMA = "umadvise.steps/2"
MOST_STEPS = 16
"""Steps of one training; of more the first ones go."""
MOST_FILE_BYTES = 64 << 20
_MOST_FILES = 64
_MOST_BYTES = 512 << 20


class _Step(Record, frozen=True):
    durations: DurationSource
    trace: bytes
    plan: bytes | None


class _Document(Record, frozen=True, tag_field="schema", tag=SCHEMA):
    steps: tuple[_Step, ...]


_decoder = msgspec.json.Decoder(_Document)


class StepShelf:
    """The steps of all trainings of a user."""

    def __init__(self, directory: Path | None) -> None:
        """Keeps steps in a directory, which need not exist yet; nowhere where it is None."""
        self._files = KeptFiles(directory, ".steps", "steps are recorded again", _MOST_FILES, _MOST_BYTES)

    @classmethod
    def of_user(cls) -> "StepShelf":
        """The steps in the user's cache directory; none where UMADVISE_PLAN_CACHE is "off"."""
        return cls(user_directory("steps"))

    def load(self, identity: str) -> list[PlannedStep]:
        """The steps of a training; none where none were kept. A damaged file is none, and the log says so.

        Args:
            identity: what tells the training from others, from `identity_of`.
        """
        found = self._files.read(identity, lambda path: read_whole(path, MOST_FILE_BYTES, "file of kept steps", decode))
        return found or []

    def keep(self, identity: str, steps: Sequence[PlannedStep]) -> None:
        """Keeps the steps of a training in the place of those that were kept before.

        Args:
            identity: what tells the training from others, from `identity_of`.
            steps: its steps; the first ones are left out where they are too many, or too much.
        """
        packed = [_packed(each) for each in steps[-MOST_STEPS:]]
        while packed and len(document := msgspec.json.encode(_Document(steps=tuple(packed)))) > MOST_FILE_BYTES:
            del packed[0]
        if packed:
            self._files.keep(identity, document)


def _packed(each: PlannedStep) -> _Step:
    plan = None if each.plan is None else plan_file.encode(each.plan)
    return _Step(durations=each.step.durations, trace=trace_file.encode(each.step.trace), plan=plan)


def decode(document: bytes) -> list[PlannedStep]:
    """Reads kept steps.

    Raises:
        FormatError: it is no such document, or one of its traces or plans is damaged.
    """
    try:
        kept = _decoder.decode(document).steps
    except msgspec.MsgspecError as error:
        raise FormatError(f"holds no kept steps: {error}") from None
    return [_unpacked(each) for each in kept]


def _unpacked(kept: _Step) -> PlannedStep:
    trace = trace_file.decode(kept.trace)
    plan = None if kept.plan is None else plan_file.decode(kept.plan, trace)
    return PlannedStep(RecordedStep(trace, np.zeros(len(trace.storages), np.uint64), kept.durations), plan)


# ---- which training it is ------------------------------------------------------------------------------------------


def identity_of(
    models: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer], **circumstances: str | int | None
) -> str:
    """A digest that is equal for trainings whose steps may be the same ones.

    It counts what modules and optimizers are made of: classes, and names, shapes and types of parameters and buffers.
    Of an optimizer's options it counts whether they are on, not how large they are.

    Args:
        models: the modules that are trained.
        optimizers: optimizers of the modules' parameters.
        circumstances: what else plans depend on, such as device and budget.
    """
    models = list(models)
    names = {id(each): name for model in models for name, each in model.named_parameters()}
    words = {
        "models": [_model_words(each) for each in models],
        "optimizers": sorted((_optimizer_words(each, names) for each in optimizers), key=repr),
        "versions": (str(torch.__version__), __version__),
        "circumstances": circumstances,
    }
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


def _model_words(model: torch.nn.Module) -> Any:
    classes = [(name, _class(each)) for name, each in model.named_modules()]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return classes, [(name, *_form(each)) for name, each in tensors]


def _form(tensor: torch.Tensor) -> tuple[tuple[int, ...] | None, str, bool]:
    return None if is_lazy(tensor) else tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad


def _optimizer_words(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> Any:
    groups = [
        (
            [(names.get(id(each), ""), *_form(each)) for each in group["params"]],
            sorted((name, _is_on(value)) for name, value in group.items() if name != "params"),
        )
        for group in optimizer.param_groups
    ]
    return _class(optimizer), groups


def _class(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _is_on(value: object) -> bool:
    return bool(value) if isinstance(value, int | float) else value is not None
