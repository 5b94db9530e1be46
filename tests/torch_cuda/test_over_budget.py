"""Every process that a test starts on torch's CUDA build watches its budgets: see budget_watch.py."""

from collections.abc import Callable
from typing import Any

import pytest

PROGRAM = "../integration/over_budget.py"


def test_a_planted_breach_is_caught(run: Callable[..., Any]) -> None:
    run(PROGRAM, "cuda")
    with pytest.raises(AssertionError, match=r"over budget: .* bytes resident at most, of 25165824"):
        run(PROGRAM, "cuda", "planted")
