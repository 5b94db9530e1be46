"""Two GPUs: a session on either, tensors and copies on the other, and what "cuda" means."""

from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]
FILE = "two_gpus.py"
TWO = {"STAND_IN_DEVICES": "2", "STAND_IN_MIB": "512"}


@pytest.fixture(scope="module", params=["cuda:0", "cuda:1"])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("policy", ["swap", "window", "advise", "resident", "auto"])
def test_a_session_trains_on_either(run: Run, device: str, policy: str) -> None:
    assert run(FILE, "trained", policy, device, **TWO) == run(FILE, "trained", "plain", device, **TWO)


@pytest.mark.parametrize("policy", ["swap", "window", "resident"])
def test_half_of_a_model_is_in_a_session_and_half_on_the_other_gpu(run: Run, policy: str) -> None:
    assert run(FILE, "pipeline", policy, **TWO) == run(FILE, "pipeline", "plain", **TWO)


def test_the_gpu_in_use_has_unified_memory_and_the_other_plain_memory(run: Run, device: str) -> None:
    seen = run(FILE, "spellings", device, **TWO)
    for where, made in seen.items():
        memory = "MANAGED" if where == device else "DEVICE"
        assert made == dict.fromkeys(made, [where, memory])


def test_without_an_index_it_is_the_current_gpu(run: Run) -> None:
    assert run(FILE, "current", "patched", **TWO) == run(FILE, "current", "plain", **TWO)


@pytest.mark.parametrize("policy", ["plain", "patched"])
def test_memory_that_is_freed_while_it_is_copied_across_is_not_given_away(run: Run, policy: str) -> None:
    assert run(FILE, "streams", policy, STAND_IN_ASYNC="1", STAND_IN_DELAY_US="300", **TWO) == 0
