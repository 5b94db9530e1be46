"""torch.cuda's and torch.accelerator's questions about memory, compared with what plain torch answers."""

from collections.abc import Callable
from typing import Any

import pytest

MIB = 1 << 20
Run = Callable[..., Any]
FILE = "memory_questions.py"
TWO_GPUS = {"STAND_IN_DEVICES": "2", "STAND_IN_MIB": "512"}


@pytest.fixture(scope="module")
def plain(run: Run) -> Any:
    return run(FILE, "asked", "plain", "0", **TWO_GPUS)


@pytest.mark.parametrize("ordinal", ["0", "1"])
@pytest.mark.parametrize("memory", ["patched", "unpatched", "swap", "advise", "resident"])
def test_what_comes_and_goes_is_counted_as_torch_counts_it(run: Run, plain: Any, memory: str, ordinal: str) -> None:
    seen = run(FILE, "asked", memory, ordinal, **TWO_GPUS)
    assert seen["steps"] == plain["steps"]
    assert seen["kept"] == plain["kept"]
    assert set(seen["keys"]) >= set(plain["keys"])
    assert seen["accelerator"] is True


@pytest.mark.parametrize("memory", ["plain", "patched", "swap", "resident"])
def test_empty_cache_gives_back_what_nothing_uses(run: Run, memory: str) -> None:
    assert run(FILE, "given_back", memory, STAND_IN_MIB="512") == [True, True, True, True]


def test_free_memory_is_what_a_budget_leaves(run: Run) -> None:
    seen = run(FILE, "free", "64MiB", **TWO_GPUS)
    assert seen["before"][0] == [64 * MIB, 64 * MIB]
    assert seen["now"][0] == [40 * MIB, 64 * MIB]
    other_before, other_now = seen["before"][1], seen["now"][1]
    assert other_before[1] == other_now[1] == seen["total"] == 512 * MIB
    assert other_before[0] - other_now[0] >= 24 * MIB


def test_without_a_budget_free_memory_is_the_drivers_word(run: Run) -> None:
    seen = run(FILE, "free", "", **TWO_GPUS)
    for before, now in zip(seen["before"], seen["now"], strict=True):
        assert before[1] == now[1] == 512 * MIB
        assert before[0] - now[0] >= 24 * MIB


@pytest.mark.parametrize("memory", ["patched", "unpatched", "swap", "advise", "resident"])
def test_running_out_of_memory_is_torchs_own_error_and_is_counted(run: Run, memory: str) -> None:
    seen = run(FILE, "out_of_memory", memory, STAND_IN_MIB="512")
    assert seen["num_ooms"] == 1
    assert seen["after"] == 1000.0
    assert "4194304 MiB" in seen["message"]
