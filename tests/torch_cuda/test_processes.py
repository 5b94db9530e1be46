"""Workers, forks, threads, errors in the middle and what comes afterwards: as in plain torch, on every kind of memory."""

from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]
FILE = "processes.py"
POLICIES = ("swap", "window", "advise", "resident")
on_each = pytest.mark.parametrize("policy", POLICIES)


@pytest.fixture(scope="module")
def plain_losses(run: Run) -> Any:
    return run(FILE, "then_plain", "plain")


@on_each
def test_workers_and_page_locked_batches(run: Run, policy: str) -> None:
    assert run(FILE, "loader", policy) == run(FILE, "loader", "plain")


@on_each
def test_a_forked_child_takes_nothing_along(run: Run, plain_losses: Any, policy: str) -> None:
    assert run(FILE, "fork", policy) == plain_losses[:4]


@on_each
def test_threads_in_streams_of_their_own(run: Run, plain_losses: Any, policy: str) -> None:
    seen = run(FILE, "threads", policy)
    assert seen == {"losses": plain_losses[:4], "threads": [0.0] * 6}


@on_each
def test_a_step_that_raises_leaves_the_next_ones_right(run: Run, plain_losses: Any, policy: str) -> None:
    assert run(FILE, "raises", policy) == plain_losses[:4]


@on_each
def test_a_session_then_plain_torch_then_a_session(run: Run, plain_losses: Any, policy: str) -> None:
    assert run(FILE, "then_plain", policy) == plain_losses
