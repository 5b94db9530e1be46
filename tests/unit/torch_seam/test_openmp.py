"""The team that makes OpenMP share its processors: it is there while the emulated device is, and changes no number."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import umadvise
from umadvise.torch_seam.openmp import SleepingTeam


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def team_is_there() -> bool:
    return any(each.name == "umadvise-openmp" for each in threading.enumerate())


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_a_team_has_a_thread_for_each_that_computes_until_it_ends() -> None:
    torch.ones(1 << 20).add_(1)  # this thread's own team
    before = threads()
    team = SleepingTeam()
    assert threads() == before + torch.get_num_threads()
    team.end()
    team.end()
    assert not team_is_there()


def test_one_thread_needs_none() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        team = SleepingTeam()
        assert not team_is_there()
        team.end()
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_it_is_there_while_the_emulated_device_is() -> None:
    torch.manual_seed(0)
    left, right = torch.randn(300, 400), torch.randn(400, 300)
    expected = left @ right
    umadvise.patch(device="emulated")
    try:
        assert team_is_there()
        assert torch.equal(left @ right, expected)
        assert torch.get_num_threads() == 2
    finally:
        umadvise.unpatch()
    assert not team_is_there()
