"""Two GPUs: a session on either, tensors and copies on the other, and what "cuda" means."""

import json
from collections.abc import Callable
from typing import Any

import pytest

DEVICES = ("cuda:0", "cuda:1")
POLICIES = ("swap", "window", "advise", "resident", "auto")
Run = Callable[..., Any]


def calls(policies: tuple[str, ...]) -> list[str]:
    found = [f"trained {policy} {device}" for policy in policies for device in DEVICES]
    return found + [f"pipeline {policy}" for policy in policies]


@pytest.fixture(scope="module", params=[{}, {"STAND_IN_ASYNC": 1, "STAND_IN_DELAY_US": 200}], ids=["at once", "later"])
def plain_and_seen(run: Run, request: pytest.FixtureRequest) -> Any:
    plain = run("two_gpus.py", json.dumps([*calls(("plain",)), "current plain", "streams plain"]), STAND_IN_DEVICES=2)
    ours = [*calls(POLICIES), "current cuda:0"]
    ours += [f"{name} {device}" for name in ("spellings", "streams") for device in DEVICES]
    return plain, run("two_gpus.py", json.dumps(ours), STAND_IN_DEVICES=2, **request.param)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_session_trains_on_either(plain_and_seen: Any, device: str, policy: str) -> None:
    plain, seen = plain_and_seen
    assert plain[f"trained plain {device}"]["where"] == device
    assert seen[f"trained {policy} {device}"] == plain[f"trained plain {device}"]


@pytest.mark.parametrize("policy", POLICIES)
def test_half_of_a_model_is_in_a_session_and_half_on_the_other_gpu(plain_and_seen: Any, policy: str) -> None:
    plain, seen = plain_and_seen
    assert len(plain["pipeline plain"]["losses"]) == 5
    assert seen[f"pipeline {policy}"] == plain["pipeline plain"]


@pytest.mark.parametrize("device", DEVICES)
def test_the_gpu_in_use_has_unified_memory_and_the_other_plain_memory(plain_and_seen: Any, device: str) -> None:
    for where, made in plain_and_seen[1][f"spellings {device}"].items():
        memory = "MANAGED" if where == device else "DEVICE"
        assert made == {name: [where, memory] for name in made}


def test_without_an_index_it_is_the_current_gpu(plain_and_seen: Any) -> None:
    plain, seen = plain_and_seen
    assert seen["current cuda:0"] == plain["current plain"]


@pytest.mark.parametrize("device", DEVICES)
def test_memory_that_is_freed_while_it_is_copied_across_is_not_given_away(plain_and_seen: Any, device: str) -> None:
    plain, seen = plain_and_seen
    assert seen[f"streams {device}"] == plain["streams plain"] == 0
