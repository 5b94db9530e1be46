"""Memory of torch's CUDA allocator under another address: nobody frees it twice, or under the address from before."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("program", ["freed", "resized", "lent"])
def test_what_has_moved_is_freed_once(program: str, run: Callable[..., Any]) -> None:
    counts = run("owners.py", program)
    assert counts == counts[:1] * len(counts)


def test_training_is_what_it_is_without_moves(run: Callable[..., Any]) -> None:
    without, moved = run("owners.py", "trained")
    assert moved == without
