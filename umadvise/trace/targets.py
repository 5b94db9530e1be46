"""What a target would run where torch's meta device runs something else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from umadvise.trace.schema import Target


@contextmanager
def pretending(target: Target) -> Iterator[None]:
    """Meta tensors are treated as the target's until the end."""
    yield
