"""On torch's CUDA build a switch of rung moves everything that lives, and no bit changes for that."""

from collections.abc import Callable
from typing import Any

import pytest

ON = {"advise": "managed", "window": "managed", "swap": "chunks", "swap+recompute": "chunks"}


@pytest.mark.parametrize("seed", [None, "1"])
@pytest.mark.parametrize("rungs", [("swap", "window", "swap"), ("swap+recompute", "advise", "resident", "swap")])
def test_live_tensors_follow_a_switch(rungs: tuple[str, ...], seed: str | None, run: Callable[..., Any]) -> None:
    settings = {} if seed is None else {"STAND_IN_ASYNC": "1", "STAND_IN_DELAY_US": "200", "STAND_IN_SEED": seed}
    digest, seen = run("switches.py", "switched", *rungs, **settings)
    assert digest == run("switches.py", "plain")
    expected = ["advise"] * 3 + [rung for rung in rungs for _ in range(2)]
    assert [rung for rung, _ in seen][: len(expected)] == expected
    for rung, kinds in seen:
        if rung != "resident":
            assert kinds == [ON[rung]], (rung, seen)
