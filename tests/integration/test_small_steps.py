"""Loops whose steps would take less time than their edges: none of these is taken for steps, and numbers stay."""

from collections.abc import Callable

import pytest
import torch
from small_loops import SMALL_LOOPS

import umadvise
from umadvise import EmulatedDevice
from umadvise.records.fault_profile import FaultProfile

ROUNDS = 12


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """No session knows the steps of one before it."""
    monkeypatch.setenv("UMADVISE_PLAN_CACHE", "off")


def in_session(loop: Callable[[], torch.Tensor], policy: str) -> tuple[torch.Tensor, FaultProfile]:
    """What a loop returns in a session that marks nothing, and its profile."""
    torch.manual_seed(0)
    with umadvise.session([], device=EmulatedDevice("256MiB", clock="v100-16gb"), policy=policy) as um:
        return loop(), um.profile()


@pytest.mark.parametrize("loop", SMALL_LOOPS, ids=lambda loop: loop.__name__)
def test_small_steps_have_no_edges(loop: Callable[[int], torch.Tensor]) -> None:
    torch.manual_seed(0)
    expected = loop(ROUNDS)
    for policy in ("swap", "auto"):
        numbers, profile = in_session(lambda: loop(ROUNDS), policy)
        assert torch.equal(numbers, expected)
        assert profile.step_count == 0
        assert not profile.steps_are_found


def test_single_ops_outside_of_modules_are_no_steps() -> None:
    def fill() -> torch.Tensor:
        tensor = torch.zeros(1000)
        for place in range(1000):
            tensor[place] = place
        return tensor

    for policy in ("resident", "advise", "swap", "auto"):
        numbers, profile = in_session(fill, policy)
        assert torch.equal(numbers, torch.arange(1000.0))
        assert profile.step_count == 0


def means_of_many_points(rounds: int) -> torch.Tensor:
    """K-means of so many points that the step takes longer than its edge."""
    points = torch.randn(100_000, 16)
    means = points[:10].clone()
    for _ in range(rounds):
        nearest = torch.cdist(points, means).argmin(1)
        for mean in range(10):
            means[mean] = points[nearest == mean].mean(0)
    return means


def test_the_same_loop_has_steps_where_they_are_large_enough() -> None:
    torch.manual_seed(0)
    expected = means_of_many_points(ROUNDS)
    for policy in ("resident", "swap"):
        numbers, profile = in_session(lambda: means_of_many_points(ROUNDS), policy)
        assert torch.equal(numbers, expected)
        assert profile.steps_are_found
        assert profile.step_count == ROUNDS - 3


def test_an_epoch_of_small_batches_is_a_step() -> None:
    """What comes once an epoch begins the steps, as a batch takes less than its edge."""

    def train() -> torch.Tensor:
        weight = torch.ones(32)
        rows, order = torch.randn(400, 32), torch.arange(400)
        for _ in range(10):
            order.copy_(torch.randperm(400))
            for row in order.tolist():
                weight.mul_(0.99).add_(rows[row], alpha=0.01)
        return weight

    torch.manual_seed(0)
    expected = train()
    numbers, profile = in_session(train, "swap")
    assert torch.equal(numbers, expected)
    assert profile.step_count == 10 - 3


def test_a_session_that_is_run_again_finds_the_same_steps() -> None:
    profiles = [in_session(lambda: means_of_many_points(ROUNDS), "swap")[1] for _ in range(2)]
    first, second = ([(step.index, step.duration_ns, step.counters) for step in each.steps] for each in profiles)
    assert first == second
