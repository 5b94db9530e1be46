"""The budget that a refusal names runs at the first try, also where more stays on the device in it than before."""

import os
import random
import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

import umadvise

pytestmark = pytest.mark.usefixtures("unpatched")

MIB = 1 << 20
TOO_SMALL = 6 * MIB
RANDOM_PROGRAMS = 200 if os.environ.get("UMADVISE_FULL") else 8
_NAMED = re.compile(r"a budget of .+? \((\d+) bytes\) does")


class Network(nn.Module):
    """Layers of one width, each of them a function of a tensor and of its own linear layer."""

    def __init__(self, width: int, layers: list[Callable[[torch.Tensor, nn.Module], torch.Tensor]]) -> None:
        super().__init__()
        self.linear = nn.ModuleList(nn.Linear(width, width) for _ in layers)
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, linear in zip(self.layers, self.linear, strict=True):
            x = layer(x, linear)
        return x


class First(nn.Module):
    """A module whose result is the first of several."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.module(x)[0]
        return result


LAYERS: dict[str, Callable[[torch.Tensor, nn.Module], torch.Tensor]] = {
    "plain": lambda x, linear: torch.tanh(linear(x)),
    "silu_": lambda x, linear: nn.functional.silu(linear(x), inplace=True),
    "hardswish_": lambda x, linear: nn.functional.hardswish(linear(x), inplace=True),
    "mul_": lambda x, linear: linear(x).mul_(torch.sigmoid(x)),
    "sin_": lambda x, linear: linear(x).sin_(),
    "softmax": lambda x, linear: linear(x).softmax(-1) + x,
    "cat": lambda x, linear: torch.cat([linear(x), x], -1)[..., ::2].contiguous(),
    "stack": lambda x, linear: torch.stack([(part * 2).mul_(part) for part in linear(x).unbind(1)], 1),
    "norm": lambda x, linear: nn.functional.layer_norm(linear(x), x.shape[-1:]) + x,
    "chunks": lambda x, linear: torch.cat([(part + 1).cos_() for part in linear(x).chunk(8)]),
}
"""The ones that end with `_` have autograd keep the values that they overwrite."""


def _deep(kind: str) -> tuple[nn.Module, torch.Tensor]:
    return Network(64, [LAYERS[kind]] * 12), torch.ones(12288, 64)  # 3 MiB, two chunks each


def _random(seed: int) -> tuple[nn.Module, torch.Tensor]:
    choose = random.Random(seed)
    layers = [LAYERS[choose.choice(list(LAYERS))] for _ in range(choose.randrange(4, 16))]
    rows = choose.choice((16, 64, 300, 2100, 5000))
    return Network(128, layers), torch.ones(choose.choice((1, 3)) * rows, 4, 128)


PROGRAMS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "GRU": lambda: (First(nn.GRU(128, 128)), torch.ones(24, 128, 128)),
    "LSTM": lambda: (First(nn.LSTM(128, 128, num_layers=2)), torch.ones(16, 128, 128)),
    "attention": lambda: (
        nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True),
        torch.ones(32, 128, 64),
    ),
    "convolutions": lambda: (
        nn.Sequential(*(m for _ in range(4) for m in (nn.Conv2d(8, 8, 3, padding=1), nn.SiLU(inplace=True)))),
        torch.ones(8, 8, 64, 64),
    ),
    **{kind: lambda kind=kind: _deep(kind) for kind in ("plain", "silu_", "mul_", "chunks")},
}


def _losses(made: tuple[nn.Module, torch.Tensor], budget_bytes: int | None, small: str = "stay") -> list[float]:
    """Losses of three steps; plain PyTorch's without a budget."""
    model, batch = made
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x: torch.Tensor) -> float:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    if budget_bytes is None:
        return [step(batch) for _ in range(3)]
    device = umadvise.EmulatedDevice("512MiB", small=small)
    with umadvise.session(model, optimizer, device=device, policy="swap", budget=budget_bytes) as um:
        found = []
        for _ in range(3):
            with um.step():
                found.append(step(um.to_device(batch)))
        assert um.memory_stats().resident_peak_bytes <= budget_bytes
        return found


def _runs_in_the_budget_that_is_named(
    make: Callable[[], tuple[nn.Module, torch.Tensor]], budget_bytes: int, small: str = "stay"
) -> bool:
    """Whether it was refused; then it has run in the budget that the error named, to the same bits."""
    torch.manual_seed(0)
    expected = _losses(make(), None)
    try:
        torch.manual_seed(0)
        assert _losses(make(), budget_bytes, small) == expected
    except torch.OutOfMemoryError as refused:
        named = _NAMED.search(str(refused))
        assert named is not None, str(refused)
        assert int(named[1]) > budget_bytes
    else:
        return False
    torch.manual_seed(0)
    assert _losses(make(), int(named[1]), small) == expected
    return True


@pytest.mark.parametrize("small", ["stay", "leave"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_step_runs_in_the_budget_that_its_refusal_names(name: str, small: str) -> None:
    assert _runs_in_the_budget_that_is_named(PROGRAMS[name], TOO_SMALL, small)


def test_random_networks_run_in_the_budget_that_a_refusal_names() -> None:
    refused = [
        _runs_in_the_budget_that_is_named(lambda seed=seed: _random(seed), random.Random(seed).choice((4, 6, 10)) * MIB)
        for seed in range(RANDOM_PROGRAMS)
    ]
    assert sum(refused) >= RANDOM_PROGRAMS // 3
