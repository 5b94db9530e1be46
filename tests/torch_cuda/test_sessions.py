"""Training under umadvise gives what it gives in plain torch on the same stand-ins, to the last bit.

Every pair of policy, loop, network and optimizer occurs. With a seed all kernels run later, in their stream's thread,
after random delays; without one, at once. The cases of a seed share a process, as the cells of a notebook do.
"""

import json
import os
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
from cuda_loops import NETWORKS, VARIANTS
from pairwise import Case, covering

FACTORS = {
    "policy": ("swap", "auto", "swap+recompute", "window", "advise", "no-advice", "resident"),
    "variant": tuple(VARIANTS),
    "network": tuple(NETWORKS),
    "optimizer": ("adamw-foreach", "adamw-fused", "sgd-foreach", "adamw"),
}
SEEDS = ("1", "2", "none", "3")
EVERY = 5 if os.environ.get("UMADVISE_SHORT") else 1
"""Of so many cases one runs."""
BUDGET_PERCENT = {"lstm": 90}
"""Of what a program needs, by network, else 75. Much of an LSTM are small tensors, which stay in chunks."""
Run = Callable[..., Any]


def program(case: Case) -> str:
    """What gives the same numbers whatever umadvise does."""
    return "-".join(case[name] for name in ("network", "variant", "optimizer"))


def parameters() -> list[Any]:
    """Cases with the names of what they run, spread over the seeds."""
    found = []
    for case, seed in zip(covering(FACTORS), cycle(SEEDS), strict=False):
        name = "-".join([*case.values(), seed])
        found.append(pytest.param({**case, "seed": seed, "name": name, "program": program(case)}, id=name))
    return found[::EVERY]


def budget_of(case: Case, plain: Any) -> int:
    """Bytes that a case may take on the GPU."""
    return int(plain.get("need_bytes", 0) * BUDGET_PERCENT.get(case["network"], 75) // 100)


class Outcomes:
    """What the selected cases come to; those of a seed run when the first of them is asked for."""

    def __init__(self, run: Run, selected: list[Case]) -> None:
        self._run, self._selected = run, selected
        self._seen: dict[str, tuple[Any, Any]] = {}

    def of(self, case: Case) -> tuple[Any, Any]:
        """In plain torch and under umadvise."""
        if case["name"] not in self._seen:
            self._seen |= self._of_seed(case["seed"])
        return self._seen[case["name"]]

    def _of_seed(self, seed: str) -> dict[str, tuple[Any, Any]]:
        cases = [case for case in self._selected if case["seed"] == seed]
        plain = self._run("sessions.py", "plain", json.dumps(cases))
        asynchronously = (
            {} if seed == "none" else {"STAND_IN_ASYNC": 1, "STAND_IN_DELAY_US": 200, "STAND_IN_SEED": seed}
        )
        limited = [{**case, "budget_bytes": budget_of(case, plain[case["program"]])} for case in cases]
        seen = self._run("sessions.py", "sessions", json.dumps(limited), **asynchronously)
        return {case["name"]: (plain[case["program"]], seen[case["name"]]) for case in cases}


@pytest.fixture(scope="module")
def outcomes(run: Run, request: pytest.FixtureRequest) -> Outcomes:
    selected = [item.callspec.params["case"] for item in request.session.items if item.function is test_it_is_the_same]
    return Outcomes(run, selected)


@pytest.mark.parametrize("case", parameters())
def test_it_is_the_same(outcomes: Outcomes, case: Case) -> None:
    plain, seen = outcomes.of(case)
    assert "error" not in seen, seen["error"]
    assert (seen["losses"], seen["state"]) == (plain["losses"], plain["state"])
    assert seen["left_bytes"] == 0
    assert seen["moved"] == (case["policy"] != "resident")
