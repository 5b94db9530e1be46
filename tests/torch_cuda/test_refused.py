"""On torch's CUDA build a refused step does not train either: statistics and generators are given back."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("policy", ["swap", "resident"])
def test_halving_the_batch_trains_as_plain_torch(policy: str, run: Callable[..., Any]) -> None:
    seen = run("refused.py", policy)
    assert seen["messages"]
    assert not any("stay changed" in each for each in seen["messages"])
    assert seen["found"] == run("refused.py", "plain", str(seen["rows"][-1]))["found"]
