"""Ops on every parameter under a budget of which small tensors, which never leave, take more than was thought."""

import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from small_networks import same_bits
from torch import nn

import umadvise
from umadvise import runtime

STEPS = 4


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    yield
    if runtime.is_patched():
        umadvise.unpatch()


def network() -> nn.Sequential:
    """24 MiB of parameters in tensors of 1 MiB, which share chunks, and 32 MiB in tensors of 4 MiB, which can leave."""
    torch.manual_seed(0)
    small = [each for _ in range(24) for each in (nn.Linear(512, 512, bias=False), nn.GELU())]
    return nn.Sequential(*small, nn.Linear(512, 1024), *(nn.Linear(1024, 1024) for _ in range(8)))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, around: Callable[[], Any], *, decay: bool) -> list[float]:
    losses = []
    for number in range(STEPS):
        torch.manual_seed(number)
        inputs = torch.randn(480, 512)
        with around():
            if decay:
                with torch.no_grad():
                    torch._foreach_mul_(list(model.parameters()), 0.999)
            loss = model(inputs).square().mean()
            loss.backward()
            if not decay:
                optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def trained(policy: str | None, *, decay: bool) -> tuple[list[float], list[torch.Tensor], int]:
    """Losses, parameters, and how many steps a plan drove."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    followed = 0
    if policy is None:
        losses = train(model, optimizer, nullcontext, decay=decay)
    else:
        with umadvise.session(
            model, optimizer, device="emulated", capacity="256MiB", budget="100MiB", policy=policy
        ) as um:
            losses = train(model, optimizer, um.step, decay=decay)
            followed = um.swap_counters().programs_followed
            assert um.swap_counters().used_peak_bytes <= 100 << 20
    return losses, [parameter.detach() for parameter in model.parameters()], followed


# The first guess, half of the budget, fits beside nothing that stays: 74 MiB are with small gradients by then.
def test_an_update_fits_beside_what_never_leaves() -> None:
    expected, found = trained(None, decay=False), trained("swap", decay=False)
    assert found[0] == expected[0]
    assert all(map(same_bits, found[1], expected[1]))
    assert found[2] > 0


# Before the forward pass all parameters fit at once, but a plan must reckon with what the backward pass takes.
def test_a_step_that_no_plan_fits_is_recorded_in_smaller_parts(caplog: pytest.LogCaptureFixture) -> None:
    expected = trained(None, decay=True)
    with caplog.at_level(logging.INFO, logger="umadvise"):
        found = trained("swap", decay=True)
    assert found[0] == expected[0]
    assert all(map(same_bits, found[1], expected[1]))
    assert found[2] > 0
    assert sum("go in smaller parts" in record.message for record in caplog.records) == 1
