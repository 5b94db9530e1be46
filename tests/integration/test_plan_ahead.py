"""Steps that are planned before they run: what is recorded is what runs, the first one is driven, nothing changes."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small_networks import NETWORKS, OPTIMIZERS, different
from test_driving import Training, assert_same, session, vanilla
from torch import nn
from torch.nn import functional

import umadvise
from umadvise import EmulatedDevice
from umadvise.devices.catalogue import load_device
from umadvise.errors import StateError, UsageError
from umadvise.recording.dry.rehearsal import Rehearsal
from umadvise.records.trace import Trace

pytestmark = pytest.mark.usefixtures("unpatched")

STEPS = 5


def step_of(training: Training) -> Callable[[], torch.Tensor]:
    """A step that reads no value."""

    def step() -> torch.Tensor:
        loss = training.forward()
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        return loss.detach()

    return step


def trained(*, ahead: bool, clock: str | None = None, foreach: bool = False) -> tuple[Training, list[int], list[int]]:
    """The training, and after each step how many steps programs have driven and how many swap-ins nobody planned."""
    training = Training(foreach=foreach)
    step, driven, unplanned = step_of(training), [], []
    device = EmulatedDevice("128MiB", clock=clock) if clock else EmulatedDevice("128MiB")
    with session(training, "swap", device=device, capacity=None) as um:
        if ahead:
            um.plan_ahead(step)
        losses = []
        for _ in range(STEPS):
            with um.step():
                losses.append(step())
            driven.append(um.swap_counters().programs_followed)
            unplanned.append(um.swap_counters().on_demand_swap_ins)
        training.losses = [loss.item() for loss in losses]
    return training, driven, unplanned


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("clock", [None, "v100-16gb"])
def test_every_step_is_driven_from_the_first_on(clock: str | None, foreach: bool) -> None:
    training, driven, unplanned = trained(ahead=True, clock=clock, foreach=foreach)
    assert driven == [1, 2, 3, 4, 5]
    _, later, without = trained(ahead=False, clock=clock, foreach=foreach)
    assert later == [0, 1, 2, 3, 4]
    assert unplanned[-1] < without[-1] / 4
    if clock is not None:  # where it does not depend on when copies end
        assert unplanned == [0] * STEPS
    assert_same(training, vanilla(STEPS, foreach=foreach))


class Everything:
    """A training with state of every kind, and what tells whether it is as it was."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Flatten(),
            nn.Linear(2048, 4),
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.images, self.labels = torch.randn(4, 3, 16, 16), torch.randint(4, (4,))
        self.total = torch.zeros(())

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(self.images + torch.randn(4, 3, 16, 16)), self.labels)
        loss.backward()
        self.optimizer.step()
        self.total += loss.detach()

    def everything(self) -> dict[str, torch.Tensor]:
        found = {**self.model.state_dict(), "total": self.total, "random": torch.get_rng_state()}
        for name, parameter in self.model.named_parameters():
            found |= {
                f"{name}.{key}": value for key, value in self.optimizer.state[parameter].items() if value is not None
            }
            if parameter.grad is not None:
                found[f"{name}.grad"] = parameter.grad
        found["python"] = torch.tensor([hash(random.getstate()) % 2**31, int(np.random.get_state()[1].sum())])
        return {name: tensor.detach().clone() for name, tensor in found.items()}


@pytest.mark.parametrize("steps_before", [0, 2])
def test_nothing_changes(steps_before: int) -> None:
    plain, training = Everything(), Everything()
    for _ in range(steps_before + 2):
        plain.step()
    torch.manual_seed(7)
    training = Everything()
    parameters = list(training.model.parameters())
    with umadvise.session(training.model, training.optimizer, device="emulated", capacity="64MiB", policy="swap") as um:
        for _ in range(steps_before):
            with um.step():
                training.step()
        before, held = training.everything(), um.memory_stats().requested_bytes
        um.plan_ahead(training.step)
        assert different(training.everything(), before) == []
        assert um.memory_stats().requested_bytes == held
        assert all(one is other for one, other in zip(parameters, training.model.parameters(), strict=True))
        for _ in range(2):
            with um.step():
                training.step()
        assert different(training.everything(), plain.everything()) == []


@pytest.mark.parametrize(
    "reads",
    [
        lambda loss: loss.item(),
        lambda loss: 1 if loss > 0 else 2,
        lambda loss: loss.reshape(1).nonzero(),
        lambda loss: loss.detach().numpy(),
    ],
)
def test_a_step_that_needs_values_is_refused_before_anything_changes(reads: Callable[[torch.Tensor], Any]) -> None:
    training = Everything()

    def step() -> None:
        training.step()
        reads(training.model[5](torch.randn(2, 2048)).sum())

    with umadvise.session(training.model, training.optimizer, device="emulated", capacity="64MiB", policy="swap") as um:
        before = training.everything()
        with pytest.raises(UsageError, match="cannot be recorded before it runs"):
            um.plan_ahead(step)
        assert different(training.everything(), before) == []
        with um.step():
            step()


def test_only_between_steps_of_an_open_session() -> None:
    training = Training()
    um = session(training, "swap")
    with pytest.raises(StateError, match="not open"):
        um.plan_ahead(step_of(training))
    with um, um.step(), pytest.raises(StateError, match="between two steps"):
        um.plan_ahead(step_of(training))


def test_the_function_may_mark_its_step_and_move_its_batch() -> None:
    expected, training = vanilla(3), Training()
    with session(training, "swap") as um:

        def step() -> torch.Tensor:
            with um.step():
                loss = functional.mse_loss(
                    training.model(um.to_device(torch.randn(16, 1024))), um.to_device(torch.zeros(16, 1024))
                )
                training.optimizer.zero_grad()
                loss.backward()
                training.optimizer.step()
                return loss.detach()

        um.plan_ahead(step)
        losses = [step() for _ in range(3)]
        assert um.swap_counters().programs_followed == 3
        training.losses = [loss.item() for loss in losses]
    assert_same(training, expected)


# ---- what is recorded is what runs ---------------------------------------------------------------------------------


def ops(trace: Trace) -> list[tuple[str, int, str]]:
    columns = zip(trace.ops.name, trace.ops.phase, trace.ops.module, strict=True)
    return [(trace.strings[name], int(phase), trace.strings[module]) for name, phase, module in columns]


@pytest.mark.parametrize("clock", [None, "v100-16gb"])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, clock: str | None) -> None:
    """Their first and their second step, op by op."""
    torch.manual_seed(2021)
    model = NETWORKS[name].model()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    batch = NETWORKS[name].batch()

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

    device = EmulatedDevice("1GiB", clock=clock) if clock else EmulatedDevice("1GiB")
    with umadvise.session(model, optimizer, device=device, policy="advise", record=True) as um:
        batch = um.to_device(batch)
        rehearsal = Rehearsal([model], [optimizer], "cpu", load_device("v100-16gb"), under_mode=clock is not None)
        with um._open_loop().observer.rehearsing():
            rehearsed = rehearsal.record(step)
        for _ in range(2):
            with um.step():
                step()
    for number, each in enumerate(rehearsed, 1):
        assert ops(each.trace) == ops(um.trace(step=number))


def test_learning_rates_go_on_with_the_steps_that_run() -> None:
    """A scheduler is stepped by the function that is rehearsed, too."""

    def trained(*, ahead: bool) -> list[float]:
        training = Training()
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(training.optimizer, 3)

        def step() -> None:
            loss = training.forward()
            training.optimizer.zero_grad()
            loss.backward()
            training.optimizer.step()
            scheduler.step()

        rates = []
        with session(training, "swap") as um:
            if ahead:
                um.plan_ahead(step)
                assert scheduler.last_epoch == 0
            for _ in range(4):
                with um.step():
                    step()
                rates += scheduler.get_last_lr()
        return rates

    assert trained(ahead=True) == trained(ahead=False)
