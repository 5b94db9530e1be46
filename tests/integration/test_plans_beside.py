"""Plans from beside the training: searched for in another process, which may end in any way, and take over at edges."""

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from test_driving import Training, assert_same, session, vanilla

from umadvise import EmulatedDevice
from umadvise._native.abi import ProgramStatus

STEPS = 7


OTHERS: set[int] = set()
"""Processes that tests before this one have left."""


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMADVISE_PLAN_SEARCH", "")
    OTHERS.clear()
    OTHERS.update(children())


def children() -> set[int]:
    """Processes that this one has started in this test and that have not been waited for."""
    found = {int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}
    return found - OTHERS


def trained(after: Callable[[int], None] = lambda _: None) -> tuple[Training, list[object], list[int]]:
    """In virtual time: the training, and after each step the plan that drives and how many steps programs have driven.

    Args:
        after: called with the number of each step that has ended.
    """
    training, plans, driven = Training(), [], []
    device = EmulatedDevice("128MiB", clock="v100-16gb")
    with session(training, "swap", device=device, capacity=None) as um:
        for number in range(1, STEPS + 1):
            with um.step():
                training.step()
            after(number)
            plans.append(um.plan)
            driven.append(um.swap_counters().programs_followed)
        assert um.swap_counters().program == ProgramStatus.WAITING
    assert children() == set()
    return training, plans, driven


def test_a_searched_plan_takes_over_at_a_fixed_edge(caplog: pytest.LogCaptureFixture) -> None:
    """Planned at the edge before step 3, searched until two edges later; every step from the third one on is driven."""
    with caplog.at_level(logging.INFO, logger="umadvise"):
        training, plans, driven = trained()
    assert driven == [0, 1, 2, 3, 4, 5, 6]
    assert plans[2] is plans[3]
    assert plans[4] is not plans[3]
    assert plans[4] is plans[6]
    assert "found by its search" in caplog.text
    assert_same(training, vanilla(STEPS))


def test_a_search_that_is_killed_leaves_the_plan_in_force(caplog: pytest.LogCaptureFixture) -> None:
    def kill(number: int) -> None:
        if number == 3:
            [pid] = children()
            os.kill(pid, signal.SIGKILL)

    with caplog.at_level(logging.INFO, logger="umadvise"):
        training, plans, driven = trained(kill)
    assert driven == [0, 1, 2, 3, 4, 5, 6]
    assert plans[2] is plans[6] is not None
    assert "signal 9 ended its process" in caplog.text
    assert_same(training, vanilla(STEPS))
