"""torch.cuda's and torch.accelerator's questions about memory, compared with what plain torch answers."""

import json
from collections.abc import Callable
from typing import Any

import pytest

MIB = 1 << 20
MEMORIES = ("patched", "unpatched", "swap", "advise", "resident")
ASKED = [f"asked {memory} {ordinal}" for memory in MEMORIES for ordinal in (0, 1)]
CALLS = [*ASKED, "free 64MiB", "free none", *(f"out_of_memory {memory}" for memory in MEMORIES)]
CALLS += [f"given_back {memory}" for memory in ("patched", "swap", "resident")]
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def plain(run: Run) -> Any:
    return run("memory_questions.py", json.dumps(["asked plain 0", "given_back plain"]), STAND_IN_DEVICES=2)


@pytest.fixture(scope="module")
def seen(run: Run) -> Any:
    return run("memory_questions.py", json.dumps(CALLS), STAND_IN_DEVICES=2)


@pytest.mark.parametrize("call", ASKED)
def test_what_comes_and_goes_is_counted_as_torch_counts_it(plain: Any, seen: Any, call: str) -> None:
    expected, told = plain["asked plain 0"], seen[call]
    assert told["steps"] == expected["steps"]
    assert told["kept"] == expected["kept"]
    assert set(told["keys"]) >= set(expected["keys"])
    assert told["accelerator"] is True


@pytest.mark.parametrize("memory", ["patched", "swap", "resident"])
def test_empty_cache_gives_back_what_nothing_uses(plain: Any, seen: Any, memory: str) -> None:
    assert seen[f"given_back {memory}"] == plain["given_back plain"] == [True] * 4


def test_free_memory_is_what_a_budget_leaves(seen: Any) -> None:
    told = seen["free 64MiB"]
    assert told["before"][0] == [64 * MIB, 64 * MIB]
    assert told["now"][0] == [40 * MIB, 64 * MIB]
    before, now = told["before"][1], told["now"][1]
    assert before[1] == now[1] == told["total"] == 512 * MIB
    assert before[0] - now[0] >= 24 * MIB


def test_without_a_budget_free_memory_is_the_drivers_word(seen: Any) -> None:
    for before, now in zip(seen["free none"]["before"], seen["free none"]["now"], strict=True):
        assert before[1] == now[1] == 512 * MIB
        assert before[0] - now[0] >= 24 * MIB


@pytest.mark.parametrize("memory", MEMORIES)
def test_running_out_of_memory_is_torchs_own_error_and_is_counted(seen: Any, memory: str) -> None:
    told = seen[f"out_of_memory {memory}"]
    assert (told["num_ooms"], told["after"]) == (1, 1000.0)
    assert "4194304 MiB" in told["message"]
