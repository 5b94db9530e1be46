"""Where tensors of each role go: the policies, and what the user says beside them."""

import pytest

from umadvise._abi import Advice, Memory, Placement, Role
from umadvise.errors import PolicyError
from umadvise.roles import ADVISE, ARENA_ROLES, RESIDENT, UNADVISED, check_policy


def test_patch_starts_with_unified_memory_and_no_advice() -> None:
    for role in ARENA_ROLES:
        assert UNADVISED.placement(role) == Placement(Memory.MANAGED, role, Advice.NONE)


def test_the_papers_best_advice() -> None:
    """Choi and Lee 2021, section 5.1: parameters stay, inputs are duplicated, intermediates are fetched ahead."""
    assert [ADVISE.placement(role).advice for role in ARENA_ROLES] == [
        Advice.PREFERRED_LOCATION,
        Advice.READ_MOSTLY,
        Advice.PREFETCH,
    ]


def test_explicit_advice_beats_policy_and_asks_for_unified_memory() -> None:
    for policy in (UNADVISED, ADVISE, RESIDENT):
        for advice in Advice:
            expected = Placement(Memory.MANAGED, Role.INPUT, advice)
            assert policy.placement(Role.INPUT, advice) == expected
            assert policy.with_advice(Role.INPUT, advice).placement(Role.INPUT) == expected
    assert RESIDENT.placement(Role.INPUT).memory == Memory.DEVICE
    changed = ADVISE.with_advice(Role.INTERMEDIATE, Advice.NONE)
    assert changed.placement(Role.PARAMETER).advice == Advice.PREFERRED_LOCATION
    assert ADVISE.placement(Role.INTERMEDIATE).advice == Advice.PREFETCH


def test_policies_of_this_version() -> None:
    assert [check_policy(name) for name in ("resident", "advise", "auto")] == ["resident", "advise", "auto"]
    for later in ("window", "swap", "swap+recompute"):
        with pytest.raises(PolicyError, match=r"not in this version.*resident, advise, auto"):
            check_policy(later)
    with pytest.raises(PolicyError, match=r"unknown policy 'fast'.*resident, advise, auto"):
        check_policy("fast")
