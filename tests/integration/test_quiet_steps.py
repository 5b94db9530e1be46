"""Steps in which no event is recorded are summed up unseen: the profile is that of steps which are looked at."""

import logging

import pytest
import torch
from torch import nn

import umadvise
from umadvise import EmulatedDevice
from umadvise.records.fault_profile import FaultProfile
from umadvise.training.session import Session
from umadvise.training.watch.quiet_steps import QuietSteps

STEPS = 90
"""More than a profile keeps."""


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """No session knows the steps of one before it."""
    monkeypatch.setenv("UMADVISE_PLAN_CACHE", "off")


def trains(um: Session) -> None:
    """Steps with labels of new gradients, of which every seventh has another size."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for step in range(STEPS):
        with um.step():
            optimizer.zero_grad()
            model(torch.randn(8 + 8 * (step % 7 == 0), 64)).square().mean().backward()
            optimizer.step()


def pages(um: Session) -> None:
    """Steps of which some need more than there is."""
    large, small = [torch.ones(1 << 20) for _ in range(8)], torch.ones(1000)
    for step in range(STEPS):
        with um.step():
            small.add_(1)
            if step % 30 >= 28:
                for each in large:
                    each.add_(1)


def leaves_steps(um: Session) -> None:
    """Steps that end with an exception, and ops between steps."""
    tensor = torch.ones(1000)
    for step in range(STEPS):
        tensor.mul_(2)
        try:
            with um.step():
                tensor.add_(1)
                if step % 10 == 5:
                    raise InterruptedError
        except InterruptedError:
            pass


def profile_of(program: object, policy: str, level: int) -> FaultProfile:
    """The profile of a program in virtual time, asked for twice: what was known in the middle changes nothing."""
    logger = logging.getLogger("umadvise")
    before = logger.level
    logger.setLevel(level)
    try:
        with umadvise.session([], device=EmulatedDevice("16MiB", clock="v100-16gb"), policy=policy) as um:
            program(um)  # type: ignore[operator]
            um.profile()
            program(um)  # type: ignore[operator]
            return um.profile()
    finally:
        logger.setLevel(before)


@pytest.mark.parametrize("policy", ["advise", "swap", "auto"])
@pytest.mark.parametrize("program", [trains, pages, leaves_steps], ids=lambda program: program.__name__)
def test_the_profile_is_that_of_steps_that_are_looked_at(program: object, policy: str) -> None:
    looked_at = profile_of(program, policy, logging.DEBUG)
    assert profile_of(program, policy, logging.WARNING) == looked_at
    assert looked_at.step_count == 2 * STEPS


def test_most_steps_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    flush = QuietSteps.flush

    def counted(self: QuietSteps) -> None:
        counts.append(self.sums.count)
        flush(self)

    monkeypatch.setattr(QuietSteps, "flush", counted)
    profile_of(trains, "resident", logging.WARNING)
    assert sum(counts) > STEPS
    assert sum(map(bool, counts)) < STEPS
