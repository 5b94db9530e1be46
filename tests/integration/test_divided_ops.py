"""Ops on every parameter under a budget, where many of the parameters are small, or the driver pages."""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from small_networks import same_bits
from torch import nn

import umadvise
from umadvise.torch_seam import runtime

pytestmark = pytest.mark.usefixtures("unpatched")

STEPS = 4


def network() -> nn.Sequential:
    """24 MiB of parameters in tensors of 1 MiB, which share chunks, and 32 MiB in tensors of 4 MiB."""
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


def test_an_update_of_small_parameters_fits() -> None:
    expected, found = trained(None, decay=False), trained("swap", decay=False)
    assert found[0] == expected[0]
    assert all(map(same_bits, found[1], expected[1]))
    assert found[2] > 0


# Before the forward pass all parameters fit at once, small ones among them, and all of them leave.
def test_a_step_of_small_parameters_is_planned_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    expected = trained(None, decay=True)
    with caplog.at_level(logging.INFO, logger="umadvise"):
        found = trained("swap", decay=True)
    assert found[0] == expected[0]
    assert all(map(same_bits, found[1], expected[1]))
    assert found[2] > 0
    assert not any("go in smaller parts" in record.message for record in caplog.records)


# ---- unified memory --------------------------------------------------------------------------------------------------

LISTED = 120
BYTES_EACH = 2 << 20


def lists() -> list[torch.Tensor]:
    return [torch.full((BYTES_EACH // 4,), float(index)) for index in range(LISTED)]


# As on a GPU, where torch.optim takes lists of its own accord. The inputs alone are more than the budget.
@pytest.mark.parametrize("divided", [False, True])
def test_an_op_on_lists_moves_what_it_must(divided: bool) -> None:
    expected = torch._foreach_add(lists(), 1.5)
    umadvise.patch(umadvise.EmulatedDevice(capacity="1GiB"), budget=LISTED * BYTES_EACH * 4 // 5)
    device = runtime.current().device
    with umadvise.session(nn.Linear(2, 2), policy="advise") if divided else nullcontext():
        inputs = [each.to("cuda") for each in lists()]
        before, oversized = device.calls("cuMemPrefetchAsync"), device.counters().oversized_ops
        found = torch._foreach_add(inputs, 1.5)
        torch.zeros(BYTES_EACH // 4).to("cuda").add_(1)  # what was too much leaves before the next op
        assert device.calls("cuMemPrefetchAsync") - before <= 480
        assert (device.counters().oversized_ops == oversized) == divided
        assert all(map(same_bits, found, expected))


@pytest.mark.parametrize("policy", ["advise", "window"])
@pytest.mark.parametrize("how", [{"foreach": True}, {"fused": True}])
def test_updates_of_a_whole_model_are_divided_in_unified_memory(policy: str, how: dict[str, bool]) -> None:
    def run(policy: str | None) -> tuple[list[float], list[torch.Tensor], int | None]:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(8)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **how)  # type: ignore[arg-type]

        def steps(around: Callable[[], Any]) -> list[float]:
            losses = []
            for number in range(3):
                with around():
                    loss = model(torch.full((4, 512), 0.1 * number + 0.1)).square().mean()
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(loss.item())
            return losses

        if policy is None:
            return steps(nullcontext), list(model.parameters()), None
        with umadvise.session(
            model, optimizer, device="emulated", capacity="64MiB", budget="20MiB", policy=policy
        ) as um:
            losses, oversized = steps(um.step), um.counters().oversized_ops
        return losses, list(model.parameters()), oversized

    expected, found = run(None), run(policy)
    assert found[0] == expected[0]
    assert all(map(same_bits, found[1], expected[1]))
    assert found[2] == 0  # parameters, gradients and states are 32 MiB
