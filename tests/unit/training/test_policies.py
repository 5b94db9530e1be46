"""Where tensors of each role go: the policies, and what the user says beside them."""

from dataclasses import replace

import pytest

from umadvise._native.abi import Memory, Placement
from umadvise.devices.rungs import (
    ADVISE,
    ARENA_ROLES,
    AUTO,
    LADDER,
    RESIDENT,
    RUNGS,
    SWAP,
    SWAP_RECOMPUTE,
    UNADVISED,
    WINDOW,
)
from umadvise.errors import PolicyError
from umadvise.planners import PLANNERS
from umadvise.records.enums import Advice, Role
from umadvise.training.policy.parsing import parse_policy


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


def test_a_rung_is_a_policy_and_has_a_planner_where_it_needs_one() -> None:
    assert RUNGS == ("resident", "advise", "window", "swap", "swap+recompute")
    assert [parse_policy(rung) for rung in RUNGS] == list(LADDER.values())
    assert {rung: LADDER[rung].planner for rung in RUNGS} == {
        "resident": None,
        "advise": None,
        "window": "um-window",
        "swap": "best",
        "swap+recompute": "best",
    }
    assert [rung for rung in RUNGS if LADDER[rung].recomputes] == ["swap+recompute"]
    assert [LADDER[rung].memory for rung in RUNGS] == [
        Memory.DEVICE,
        Memory.MANAGED,
        Memory.MANAGED,
        Memory.CHUNKED,
        Memory.CHUNKED,
    ]
    assert parse_policy("auto") == AUTO


def test_every_planner_can_be_pinned() -> None:
    assert parse_policy("um-window") == WINDOW
    assert parse_policy("advice") == ADVISE
    for planner in set(PLANNERS) - {"window", "um-window", "advice"}:
        assert parse_policy(planner) == replace(SWAP_RECOMPUTE, planner=planner)
        assert parse_policy(f"swap:{planner}") == replace(SWAP, planner=planner)
    assert parse_policy("swap:window") == replace(SWAP, planner="window")  # whose name is a rung's too


@pytest.mark.parametrize(
    "name", ["fast", "", "swap:", "swap:fast", "window:best", "advise:best", "swap:advice", "auto:x"]
)
def test_what_is_no_policy(name: str) -> None:
    with pytest.raises(PolicyError, match=r"unknown policy.*resident, advise, window, swap.*best"):
        parse_policy(name)
