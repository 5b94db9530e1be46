"""What `umadvise fit` says of a card is what happens there: the largest batch trains, a tenth more is refused."""

import os

import pytest
from check_fit import NETWORKS, check

ALL = bool(os.environ.get("UMADVISE_FULL"))
SWAPPED = NETWORKS if ALL else ("gpt2", "char_lstm")


@pytest.mark.parametrize("network", SWAPPED)
def test_the_largest_batch_on_swap(network: str) -> None:
    found = check(network, "swap")
    assert found.largest is not None
    assert found.runs
    assert found.refused is not None
    assert "no room for aten::" in found.refused


def test_the_largest_batch_in_plain_memory() -> None:
    found = check("vgg16", "resident")
    assert found.largest is not None
    assert found.runs
    assert found.refused is not None
    assert "out of device memory" in found.refused
