"""Library scratch of single ops, in bytes: what a kernel allocates for itself and gives back before it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from umadvise.trace.schema import Target

Model = Callable[[tuple[Any, ...], dict[str, Any], Any], int]
"""Called with an op's arguments, keyword arguments and result."""

_MODELS: dict[Target, dict[str, Model]] = {"cpu": {}, "cuda": {}}


def model_of(name: str, target: Target) -> Model | None:
    """The model of an operator's scratch on a target, None where it takes none."""
    return _MODELS[target].get(name)
