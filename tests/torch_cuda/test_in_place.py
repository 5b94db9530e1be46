"""On torch's CUDA build autograd's clones of what in-place activations overwrite are evicted like other tensors."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("seed", [None, "1"])
@pytest.mark.parametrize("activation", ["SiLU", "Hardswish", "sin_", "out of place"])
def test_in_place_activations_train_where_a_few_layers_fit(
    activation: str, seed: str | None, run: Callable[..., Any]
) -> None:
    settings = {} if seed is None else {"STAND_IN_ASYNC": "1", "STAND_IN_DELAY_US": "200", "STAND_IN_SEED": seed}
    plain = run("in_place.py", activation)
    swapped = run("in_place.py", activation, "swap", **settings)
    assert swapped["losses"] == plain["losses"]
    assert swapped["swap_outs"] > 14
    assert 0 < swapped["peak_bytes"] <= 26 << 20


def test_auto_trains_them_too(run: Callable[..., Any]) -> None:
    assert run("in_place.py", "SiLU", "auto")["losses"] == run("in_place.py", "SiLU")["losses"]
