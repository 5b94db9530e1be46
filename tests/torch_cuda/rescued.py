"""What test_rescued.py runs: trainings with an op that does not fit in chunks, or beside plain memory, on `auto`."""

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from switches import scripted
from torch import nn
from torch.nn import functional

import umadvise

Activation = Callable[[torch.Tensor], torch.Tensor]
WIDTH, LAYERS, STEPS = 512, 24, 7
ACTIVATIONS: dict[str, Activation] = {
    "silu": lambda hidden: functional.silu(hidden, inplace=True),
    "relu": torch.relu_,
    "mul": lambda hidden: hidden.mul_(hidden.detach() * 0.5),
}


class Layers(nn.Module):
    """Weights of 1 MiB each, and activations that overwrite what backward needs."""

    def __init__(self, activation: Activation, layers: int) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.activation = activation

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = self.activation(layer(hidden))
        return hidden


class Training:
    """SGD with momentum on rows from the CPU's generator."""

    def __init__(self, activation: str, layers: int = LAYERS) -> None:
        self.model = Layers(ACTIVATIONS[activation], layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.losses: list[str] = []

    def loss(self, rows: int) -> torch.Tensor:
        seeds = torch.Generator().manual_seed(len(self.losses))
        return self.model(torch.randn(rows, WIDTH, generator=seeds).to("cuda")).square().mean()

    def step(self, rows: int) -> None:
        loss = self.loss(rows)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item().hex())

    def evaluate(self, rows: int) -> None:
        with torch.no_grad():
            self.losses.append(self.loss(rows).item().hex())

    def numbers(self) -> list[str]:
        return [*self.losses, *(each.detach().double().sum().item().hex() for each in self.model.parameters())]


def opened(training: Training, policy: str, budget: str) -> AbstractContextManager[Any]:
    if policy == "plain":
        training.model.to("cuda")
        return nullcontext()
    return umadvise.session(training.model, training.optimizer, device="cuda", budget=budget, policy=policy)


def trained(policy: str, activation: str, budget: str, rungs: str, *rows: str) -> dict[str, Any]:
    """Steps with so many rows each, with a governor that goes to these rungs where there are any."""
    training, seen = Training(activation), []
    with scripted(rungs.split(",")) if rungs else nullcontext(), opened(training, policy, budget) as um:
        for each in map(int, rows):
            with nullcontext() if um is None else um.step():
                training.step(each)
            seen.append("" if um is None else um.rung)
        memory = None if um is None else um.memory_stats()
        numbers = training.numbers()
    return {"numbers": numbers, "rungs": seen, "peak": None if memory is None else memory.resident_peak_bytes}


def evaluated_first(policy: str, budget: str) -> dict[str, Any]:
    """An evaluation that fits plain memory, then a training that does not."""
    training, seen = Training("silu", 8), []
    with opened(training, policy, budget) as um:
        for number in range(10):
            with nullcontext() if um is None else um.step():
                training.evaluate(16) if number < 5 else training.step(2048)
            seen.append("" if um is None else um.rung)
        numbers = training.numbers()
    return {"numbers": numbers, "rungs": seen}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
