"""Workers, forks, threads, errors in the middle and what comes afterwards: as in plain torch, in any memory."""

import json
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]
POLICIES = ("swap", "window", "advise", "resident")
PROGRAMS = ("loader", "fork", "threads", "raises", "resumed", "addresses", "then_plain")
LATER = {"STAND_IN_ASYNC": 1, "STAND_IN_DELAY_US": 100}


@pytest.fixture(scope="module")
def plain(run: Run) -> Any:
    return run("processes.py", json.dumps([f"{name} plain" for name in ("loader", "resumed", "then_plain")]))


@pytest.fixture(scope="module", params=POLICIES)
def seen(run: Run, request: pytest.FixtureRequest) -> Any:
    """By program, of one policy, kernels running later."""
    told = run("processes.py", json.dumps([f"{name} {request.param}" for name in PROGRAMS]), **LATER)
    return {"policy": request.param, **{call.split()[0]: each for call, each in told.items()}}


@pytest.fixture(scope="module")
def losses(plain: Any) -> Any:
    return plain["then_plain plain"]


def test_workers_and_page_locked_batches(plain: Any, seen: Any) -> None:
    assert len(seen["loader"]) == 12
    assert seen["loader"] == plain["loader plain"]


def test_a_forked_child_takes_nothing_along(losses: Any, seen: Any) -> None:
    assert seen["fork"] == losses[:4]


def test_threads_in_streams_of_their_own(losses: Any, seen: Any) -> None:
    assert seen["threads"] == {"losses": losses[:4], "threads": [0.0] * 6}


def test_a_step_that_raises_leaves_the_next_ones_right(losses: Any, seen: Any) -> None:
    assert seen["raises"] == losses[:4]


def test_a_checkpoint_goes_on_in_a_new_session(plain: Any, seen: Any) -> None:
    assert seen["resumed"] == plain["resumed plain"] == plain["then_plain plain"][:6]


@pytest.mark.parametrize("policy", ["swap", "swap+recompute"])
def test_after_a_budget_that_is_too_small_the_model_is_whole(run: Run, losses: Any, policy: str) -> None:
    seen = run("processes.py", json.dumps([f"too_small {policy}"]), **LATER)[f"too_small {policy}"]
    assert len(seen["errors"]) == 2
    assert all("later ops may need more" in error for error in seen["errors"])
    assert seen["losses"] == losses[:4]


def test_an_address_is_good_and_what_is_loaded_leaves(seen: Any) -> None:
    assert seen["addresses"] == [1.0, float(1 << 20), seen["policy"] == "swap"]


def test_a_session_then_plain_torch_then_a_session(losses: Any, seen: Any) -> None:
    assert seen["then_plain"] == losses
