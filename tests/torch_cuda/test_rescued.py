"""On torch's CUDA build `auto` ends no training that plain PyTorch runs, and computes the same bits."""

from collections.abc import Callable
from typing import Any

import pytest

STEADY = ["1024"] * 7
LARGER = ["16"] * 5 + ["6144", "16", "6144"]
"""Activations of 12 MiB beside weights of 1, after steps of which all ops fit."""


PAGED = ("advise", "window")
ANY = (*PAGED, "swap", "resident")
"""Autograd's clones of what an activation overwrites can be evicted, so chunks hold each op of a steady step."""


@pytest.mark.parametrize("seed", [None, "1"])
@pytest.mark.parametrize(
    ("activation", "budget", "rungs", "rows", "ends"),
    [
        pytest.param("silu", "26MiB", "", STEADY, ANY, id="in place"),
        pytest.param("silu", "26MiB", "swap", STEADY, ("swap",), id="in place, in chunks"),
        pytest.param("mul", "26MiB", "swap", STEADY, ("swap",), id="a product in place, in chunks"),
        pytest.param("relu", "28MiB", "swap", LARGER, PAGED, id="a larger step than the one recorded"),
        pytest.param("relu", "100MiB", "resident", LARGER, PAGED, id="a larger step than plain memory holds"),
    ],
)
def test_an_op_that_does_not_fit_runs_in_unified_memory(
    activation: str,
    budget: str,
    rungs: str,
    rows: list[str],
    ends: tuple[str, ...],
    seed: str | None,
    run: Callable[..., Any],
) -> None:
    settings = {} if seed is None else {"STAND_IN_ASYNC": "1", "STAND_IN_DELAY_US": "200", "STAND_IN_SEED": seed}
    words = (activation, budget, rungs, *rows)
    found = run("rescued.py", "trained", "auto", *words, **settings)
    assert found["numbers"] == run("rescued.py", "trained", "plain", *words)["numbers"]
    if rungs:
        assert rungs in found["rungs"]
    assert found["rungs"][-1] in ends


def test_a_training_after_an_evaluation_keeps_what_it_computes(run: Callable[..., Any]) -> None:
    found = run("rescued.py", "evaluated_first", "auto", "48MiB")
    assert found["numbers"] == run("rescued.py", "evaluated_first", "plain", "48MiB")["numbers"]
    assert found["rungs"][4] == "resident"
    assert "resident" not in found["rungs"][6:]
