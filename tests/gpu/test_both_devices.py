"""The same programs on the emulated device and, with `-m gpu`, on CUDA."""

from collections.abc import Callable
from typing import Any

import pytest

from umadvise.doctor import trials

MIB = 1 << 20
pytestmark = pytest.mark.parametrize("device", ["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])


@pytest.fixture
def program(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *words: run("programs.py", *words)


@pytest.mark.parametrize("network", ["cnn", "transformer"])
def test_training_gives_what_vanilla_torch_gives(program: Callable[..., Any], device: str, network: str) -> None:
    vanilla = program("train", device, network)
    assert program("train_unified", device, network) == {
        "plain": {**vanilla, "paged": False},
        "read": {**vanilla, "paged": False},
        "budget": {**vanilla, "paged": True},
    }


def test_role_and_advice_arrive(program: Callable[..., Any], device: str) -> None:
    assert program("placement", device) == {
        "read_mostly": ["INPUT", "READ_MOSTLY"],
        "moved": ["INPUT", "PREFERRED_LOCATION"],
        "parameter": ["PARAMETER", "ACCESSED_BY"],
        "plain": ["INPUT", "NONE"],
        "made": ["INTERMEDIATE", "PREFETCH"],
        "gradient": ["INTERMEDIATE", "PREFETCH"],
        "same": True,
        "values": True,
        "empty": 0,
    }


def test_unpatch_ends_it_and_patch_takes_it_up_again(program: Callable[..., Any], device: str) -> None:
    assert program("unpatch", device) == {
        "managed": [True, False, True],
        "values": [1000.0, 4000.0, 3000.0],
        "set_unified": True,
    }


def test_a_budget_keeps_residency(program: Callable[..., Any], device: str) -> None:
    seen = program("budget", device)
    assert 0 < seen["resident_peak"] <= 64 * MIB
    assert seen["host"] >= (12 * 16 - 64) * MIB
    assert seen["values"] == [[index + 3.0] * 2 for index in range(12)]


def test_out_of_memory_says_why_and_leaves_everything_working(program: Callable[..., Any], device: str) -> None:
    seen = program("out_of_memory", device)
    assert "out of host memory for managed memory: tried to allocate 67108864 MiB" in seen["message"]
    assert seen["after"] == 1000.0


def test_a_session_reports(program: Callable[..., Any], device: str) -> None:
    seen = program("session", device, "0")
    assert (seen["steps"], seen["provider"]) == (2, device)
    assert seen["ops"] > 0
    assert (seen["fault_groups"] is None) == (device == "cuda")  # only CUPTI could tell, of sampled steps


def test_faults_are_counted_or_it_says_why_not(program: Callable[..., Any], device: str) -> None:
    seen = program("session", device, "1")
    assert seen["fault_groups"] is not None or seen["reason"]


def test_the_doctors_trial_passes(device: str) -> None:
    found = trials.run(device)
    assert found["error"] is None
    assert trials.check_trial(device, found).ok
