"""Small training loops with one thing wrong each, the same loops without it, and loops with nothing wrong.

Each runs on an emulated device in virtual time, so that its figures repeat.
"""

import functools
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import umadvise
from umadvise.records.fault_profile import FaultProfile

STEPS = 8
WIDTH = 512
MIB = 1 << 20
Step = Callable[[], object]


def layers(count: int, width: int = WIDTH) -> nn.Sequential:
    """Linear layers of `width` * `width` * 4 bytes each."""
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(count)))


def watched(
    make: Callable[[Any], Step],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    steps: int = STEPS,
    **options: Any,
) -> FaultProfile:
    """The profile of a session in which `make(session)` has made what a step does."""
    device = umadvise.EmulatedDevice("512MiB", clock="v100-16gb")
    with umadvise.session(model, optimizer, device=device, **options) as um:
        step = make(um)
        for _ in range(steps):
            with um.step():
                step()
        return um.profile(predict=True)


def training(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: int, width: int = WIDTH
) -> Callable[[Any], Step]:
    """A plain training step."""

    def make(um: Any) -> Step:
        inputs = torch.ones(batch, width)

        def step() -> None:
            optimizer.zero_grad()
            model(um.to_device(inputs)).square().mean().backward()
            optimizer.step()

        return step

    return make


def training_in_closure(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int) -> Callable[[Any], Step]:
    """The same step, by a closure that the optimizer calls."""

    def make(um: Any) -> Step:
        inputs = torch.ones(batch, WIDTH)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(um.to_device(inputs)).square().mean()
            loss.backward()
            return loss

        return lambda: optimizer.step(closure)  # type: ignore[arg-type]

    return make


# ---- planted problems -----------------------------------------------------------------------------------------------


def evicted_parameters(budget: str = "24MiB") -> FaultProfile:
    """Layers of 48 MiB that are all used in each step, one after the other."""
    model = layers(48)

    def make(um: Any) -> Step:
        inputs = um.to_device(torch.ones(256, WIDTH))

        def step() -> None:
            with torch.no_grad():
                model(inputs)

        return step

    return watched(make, model, policy="advise", budget=budget)


@functools.cache
def half_empty_pages(budget: str = "24MiB", policy: str = "advise") -> FaultProfile:
    """Layers that begin on a page of 2 MiB and are a little larger: what is live takes more pages than it has bytes."""
    model = layers(20, 750)

    def make(um: Any) -> Step:
        inputs = um.to_device(torch.ones(64, 750))

        def step() -> None:
            with torch.no_grad():
                model(inputs)

        return step

    return watched(make, model, policy=policy, budget=budget)


def dead_activations(*, keeps: bool = True) -> FaultProfile:
    """Each layer's output goes onto a list that nobody reads."""
    model = layers(16)

    def make(um: Any) -> Step:
        inputs = um.to_device(torch.ones(4096, WIDTH))

        def step() -> None:
            kept, values = [], inputs
            with torch.no_grad():
                for layer in model:
                    values = layer(values)
                    if keeps:
                        kept.append(values)

        return step

    return watched(make, model, policy="advise", budget="72MiB")


@functools.cache
def heavy_optimizer(*, state: bool = True, policy: str = "advise", closure: bool = False) -> FaultProfile:
    """Adam's two moments are twice as large as the model; the model may run in a closure, as Lightning has it."""
    model = layers(24)
    kind: Any = torch.optim.Adam if state else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=1e-3)
    make = training_in_closure if closure else training
    return watched(make(model, optimizer, 256), model, optimizer, policy=policy, budget="72MiB")


def exported_tensor(*, exports: bool = True) -> FaultProfile:
    """A table that no step uses is on the device, and a numpy array of it is kept."""
    model = layers(24)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def make(um: Any) -> Step:
        table = um.to_device(torch.ones(32, 1024, 512))
        array = table.numpy() if exports else table.cpu().numpy()
        step = training(model, optimizer, 1024)(um)

        def with_array() -> int:
            step()
            return array.size

        return with_array

    return watched(make, model, optimizer, policy="advise", budget="112MiB")


def leaving_loop(*, shuffles: bool = True, budget: str = "28MiB") -> FaultProfile:
    """The layers run in another order in each step."""
    model = layers(12)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    order = random.Random(3)

    def make(um: Any) -> Step:
        def step() -> None:
            optimizer.zero_grad()
            values = um.to_device(torch.ones(512, WIDTH))
            for layer in order.sample(list(model), len(model)) if shuffles else model:
                values = (torch.relu if shuffles and order.random() < 0.5 else torch.tanh)(layer(values))
            values.square().mean().backward()
            optimizer.step()

        return step

    return watched(make, model, optimizer, policy="swap", budget=budget, steps=16)


def convolutions(inside: int, outside: int) -> nn.Module:
    parts = [(nn.Conv2d(each, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU()) for each in (inside, outside)]
    return nn.Sequential(*parts[0], *parts[1])


class UNet(nn.Module):
    """Three levels down and up; most of its parameters are small."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        sizes = [width << level for level in range(4)]
        self.down = nn.ModuleList(map(convolutions, [3, *sizes], sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * size, size, 2, 2) for size in sizes[:3])
        self.merge = nn.ModuleList(convolutions(2 * size, size) for size in sizes[:3])

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        levels = [self.down[0](values)]
        for down in list(self.down)[1:]:
            levels.append(down(functional.max_pool2d(levels[-1], 2)))
        values = levels.pop()
        for merge, up in zip(reversed(self.merge), reversed(self.up), strict=True):
            values = merge(torch.cat([levels.pop(), up(values)], 1))
        assert isinstance(values, torch.Tensor)
        return values


def scattered_state(budget: str = "29MiB") -> FaultProfile:
    """The first step makes Adam's moments among its activations; the plan puts later ones elsewhere."""
    torch.manual_seed(1)
    model = UNet()
    optimizer = torch.optim.Adam(model.parameters())

    def make(um: Any) -> Step:
        inputs = torch.ones(3, 3, 112, 112)

        def step() -> None:
            loss = model(um.to_device(inputs)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return step

    return watched(make, model, optimizer, policy="window", budget=budget, steps=12)


def warmed_up(policy: str = "advise") -> FaultProfile:
    """Three steps use one layer of many, and all others train them all."""
    model = layers(24)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def make(um: Any) -> Step:
        whole = training(model, optimizer, 256)(um)
        part = training(nn.Sequential(model[0]), torch.optim.SGD(model[0].parameters(), lr=1e-3), 256)(um)
        begun = iter([part] * 3)
        return lambda: next(begun, whole)()

    return watched(make, model, optimizer, policy=policy, budget="36MiB", steps=12)


# ---- nothing wrong --------------------------------------------------------------------------------------------------


def that_fits() -> FaultProfile:
    """A training whose tensors all fit."""
    model = layers(8)
    optimizer = torch.optim.Adam(model.parameters())
    return watched(training(model, optimizer, 1024), model, optimizer, policy="auto")


def well_planned(budget: str = "116MiB") -> FaultProfile:
    """A training that swaps a little of its activations, behind ops that take longer."""
    model = layers(8, 1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return watched(training(model, optimizer, 2048, 1024), model, optimizer, policy="swap", budget=budget)


def inference() -> FaultProfile:
    """An inference in unified memory that fits."""
    model = layers(8)

    def make(um: Any) -> Step:
        def step() -> None:
            with torch.no_grad():
                model(um.to_device(torch.ones(1024, WIDTH)))

        return step

    return watched(make, model, policy="advise")
