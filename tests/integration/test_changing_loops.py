"""Loops within a step that run more often than ever before, and layers that train now and then."""

from collections.abc import Callable
from random import Random

import pytest
import torch
from torch import nn

import umadvise
from umadvise.records.counters import SwapCounters

pytestmark = pytest.mark.usefixtures("unpatched")

WIDTH, ROWS = 512, 512  # a weight and a state of the loop are 1 MiB each


class Recurrent(nn.Module):
    """A loop of as many rounds as it is told, before a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.enter, self.again, self.leave = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, rows: torch.Tensor, rounds: int) -> torch.Tensor:
        state = self.enter(rows)
        for _ in range(rounds):
            state = torch.tanh(self.again(state))
        return self.leave(state).square().mean()


class Stacked(nn.Module):
    """Layers of which a step runs those that it names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))

    def forward(self, rows: torch.Tensor, left_out: int) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            if index != left_out:
                rows = torch.relu(layer(rows))
        return rows.square().mean()


class Dropping(nn.Module):
    """Blocks of which each step drops some by chance: no step has those of another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.wide = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(10))
        self.narrow = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(10))

    def forward(self, rows: torch.Tensor, number: int) -> torch.Tensor:
        chance = Random(number)
        for wide, narrow in zip(self.wide, self.narrow, strict=True):
            if chance.random() > 0.3:
                rows = rows + narrow(nn.functional.gelu(wide(rows)))
        return rows.square().mean()


def train(
    build: Callable[[], nn.Module], numbers: list[int], budget: str | None
) -> tuple[list[float], list[SwapCounters]]:
    """The losses, and what had been counted after each step; without a budget plain PyTorch, which counts nothing."""
    model = build()
    optimizer = torch.optim.Adam(model.parameters())
    losses: list[float] = []
    counted: list[SwapCounters] = []

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = model(torch.ones(ROWS, WIDTH), number)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    if budget is None:
        for number in numbers:
            step(number)
        return losses, counted
    device = umadvise.EmulatedDevice("1GiB", clock="v100-16gb")
    with umadvise.session(model, optimizer, device=device, budget=budget, policy="swap") as um:
        for number in numbers:
            with um.step():
                step(number)
            counted.append(um.swap_counters())
    return losses, counted


def on_demand(counted: list[SwapCounters], step: int) -> tuple[int, int]:
    """Swap-ins of a step, and those of them that nobody had ordered."""
    now, before = counted[step], counted[step - 1]
    return now.swap_ins - before.swap_ins, now.on_demand_swap_ins - before.on_demand_swap_ins


def test_more_rounds_than_ever_before_find_their_states_in_backward() -> None:
    rounds = [8, 8, 8, 8, 14]
    losses, counted = train(Recurrent, rounds, "22MiB")
    ins, demanded = on_demand(counted, 4)
    assert ins > 8  # the states of the last rounds alone do not fit
    assert demanded < ins / 2  # nobody could expect so many rounds, but those that lie below come as backward frees
    assert losses == train(Recurrent, rounds, None)[0]


def test_a_layer_that_trains_for_the_first_time_is_known_in_the_step_after() -> None:
    left_out = [0, 1, 2, -1, -1]
    losses, counted = train(Stacked, left_out, "24MiB")
    assert on_demand(counted, 4)[0] > 0
    assert on_demand(counted, 4)[1] == 0
    assert losses == train(Stacked, left_out, None)[0]


def test_what_blocks_made_is_known_in_backward_where_no_step_had_all_of_them() -> None:
    numbers = list(range(14))
    losses, counted = train(Dropping, numbers, "64MiB")
    each = [on_demand(counted, step) for step in numbers[5:]]
    ins, demanded = (sum(column) for column in zip(*each, strict=True))
    assert ins > 500
    assert demanded < ins / 20
    assert losses == train(Dropping, numbers, None)[0]
