"""The native interposer against its Python reference, on real training steps, and what it must be right about alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from umadvise import _native
from umadvise._abi import Phase
from umadvise._hooks.reference import ObservedAccess, ObservedOp, ReferenceInterposer, observed_natively


class Observation:
    """One run of a training function: its ops, and the losses it returned."""

    def __init__(self) -> None:
        self.ops: list[ObservedOp] = []
        self.losses: list[torch.Tensor] = []
        self.set_phase: Callable[[Phase], None] = lambda phase: None


@contextmanager
def observing(observation: Observation, device: _native.Device, how: str) -> Iterator[None]:
    if how == "reference":
        with ReferenceInterposer() as reference:
            observation.set_phase = lambda phase: setattr(reference, "phase", phase)
            yield
        observation.ops = reference.observed
        return
    observation.set_phase = _native.set_phase
    _native.interpose(device)
    _native.set_phase(Phase.FORWARD)
    _native.record_ops(True)
    yield
    _native.record_ops(False)
    _native.interpose(None)
    observation.ops = observed_natively(_native.recorded_ops())


def comparable(ops: list[ObservedOp]) -> list[ObservedOp]:
    """Allocations by order of first appearance."""
    ordinals: dict[int, int] = {}

    def ordinal(serial: int) -> int:
        return ordinals.setdefault(serial, len(ordinals) + 1) if serial else 0

    return [
        replace(
            op,
            accesses=tuple(replace(access, allocation=ordinal(access.allocation)) for access in op.accesses),
            outputs=tuple(map(ordinal, op.outputs)),
        )
        for op in ops
    ]


Train = Callable[[Observation], None]


def optimize(observation: Observation, optimizer: torch.optim.Optimizer) -> None:
    observation.set_phase(Phase.OPTIMIZER)
    optimizer.step()
    optimizer.zero_grad()
    observation.set_phase(Phase.FORWARD)


def train_mlp(observation: Observation) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        loss = functional.mse_loss(model(torch.randn(8, 16)), torch.zeros(8, 4))
        loss.backward()
        optimize(observation, optimizer)
        observation.losses.append(loss.detach())


def train_cnn(observation: Observation) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 5)
    )
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        loss = functional.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.randint(5, (4,)))
        loss.backward()
        optimize(observation, optimizer)
        observation.losses.append(loss.detach())
    model.eval()
    with torch.no_grad():
        observation.losses.append(model(torch.randn(4, 3, 8, 8)).sum())
    with torch.inference_mode():
        observation.losses.append(model(torch.randn(4, 3, 8, 8)).sum())


def train_lstm(observation: Observation) -> None:
    embedding, lstm, head = nn.Embedding(50, 12), nn.LSTM(12, 16, num_layers=2), nn.Linear(16, 50)
    parameters = [*embedding.parameters(), *lstm.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, foreach=True)
    for _ in range(2):
        tokens = torch.randint(50, (7, 3))
        hidden, _ = lstm(embedding(tokens))
        loss = functional.cross_entropy(head(hidden).flatten(0, 1), tokens.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimize(observation, optimizer)
        observation.losses.append(loss.detach())


def transformer() -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, dropout=0.1, batch_first=True)


def train_transformer(observation: Observation) -> None:
    model = transformer()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        loss = model(torch.randn(2, 6, 16)).square().mean()
        loss.backward()
        optimize(observation, optimizer)
        observation.losses.append(loss.detach())


def train_autocast(observation: Observation) -> None:
    model = transformer()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(2, 6, 16)).float().square().mean()
        loss.backward()
        optimize(observation, optimizer)
        observation.losses.append(loss.detach())


def train_checkpointed(observation: Observation) -> None:
    first, second = transformer(), transformer()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
    for use_reentrant in (False, True):
        x = torch.randn(2, 6, 16, requires_grad=True)
        hidden = checkpoint(first, x, use_reentrant=use_reentrant)
        loss = checkpoint(second, hidden, use_reentrant=use_reentrant).square().mean()
        loss.backward()
        optimize(observation, optimizer)
        observation.losses.append(loss.detach())


def train_accumulating(observation: Observation) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        for _ in range(3):
            loss = functional.mse_loss(model(torch.randn(8, 16)), torch.zeros(8, 4)) / 3
            loss.backward()
            observation.losses.append(loss.detach())
        optimize(observation, optimizer)


def index_and_list_ops(observation: Observation) -> None:
    x = torch.randn(6, 5, requires_grad=True)
    rows = torch.tensor([0, 2, 4])
    picked = x[rows][:, torch.tensor([1, 3])]
    parts = torch.split(torch.cat([x, x * 2.0, x[1:3]]), 4)
    total = picked.sum() + torch.stack([part.sum() for part in parts]).sum() + torch.where(x > 0, x, -x).mean()
    total.backward()
    with torch.no_grad():
        x[1:4:2].add_(1.0)
        x.masked_fill_(x > 1, 0.0)
    observation.losses.append(total.detach())


TRAININGS: list[Train] = [
    train_mlp,
    train_cnn,
    train_lstm,
    train_transformer,
    train_autocast,
    train_checkpointed,
    train_accumulating,
    index_and_list_ops,
]


def observe(train: Train, device: _native.Device, how: str) -> Observation:
    torch.manual_seed(7)
    observation = Observation()
    with observing(observation, device, how):
        train(observation)
    return observation


@pytest.mark.parametrize("train", TRAININGS, ids=lambda train: train.__name__)
def test_equals_the_reference(train: Train, device: _native.Device, route: Callable[..., None]) -> None:
    route()
    native = observe(train, device, "native")
    reference = observe(train, device, "reference")
    assert comparable(native.ops) == comparable(reference.ops)
    assert len(native.ops) > 20
    assert all(map(torch.equal, native.losses, reference.losses))
