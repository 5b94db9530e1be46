"""On torch's CUDA build too, an address is an identity: a storage keeps it, and no two live storages share one."""

from collections.abc import Callable
from typing import Any

import pytest
from address_programs import PROGRAMS


@pytest.mark.parametrize("policy", ["swap", "auto"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_take_addresses_for_identities(name: str, policy: str, run: Callable[..., Any]) -> None:
    seen = run("addresses.py", "ran", name, policy)
    assert seen["losses"] == run("addresses.py", "ran", name)["losses"]
    assert seen["moved"]


def test_a_steady_step_maps_nothing_for_addresses_that_were_asked_for_once(run: Callable[..., Any]) -> None:
    assert run("addresses.py", "mapped_once")[-4:] == [0, 0, 0, 0]
