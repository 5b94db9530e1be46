"""A step that the budget cannot hold does not train: a loop that tries again ends with the weights of plain PyTorch."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from accelerate.utils.memory import find_executable_batch_size

import umadvise

pytestmark = pytest.mark.usefixtures("unpatched")

MIB = 1 << 20
WIDTH = 64
ROWS = 32768
"""Of a batch that takes 8 MiB: no budget below holds it."""
BUDGET = 12 * MIB

Optimizer = Callable[..., torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizer] = {
    "adam": partial(torch.optim.Adam, lr=0.01),
    "adam-foreach": partial(torch.optim.Adam, lr=0.01, foreach=True),
    "adamw-fused": partial(torch.optim.AdamW, lr=0.01, fused=True),
    "sgd-momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9, foreach=True),
    "sgd-loop": partial(torch.optim.SGD, lr=0.01, momentum=0.9, foreach=False),
}


class Training:
    """A network, its optimizer, and one step of it; gradients are cleared after the update, not before the forward."""

    def __init__(self, optimizer: Optimizer = OPTIMIZERS["adam"], *, moves: bool = True) -> None:
        torch.manual_seed(0)
        layer = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()]
        layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()]
        if moves:
            layers += [torch.nn.BatchNorm1d(WIDTH), torch.nn.Dropout(0.3)]
        self.model = torch.nn.Sequential(*layer, *layers, torch.nn.Linear(WIDTH, 1))
        self.optimizer = optimizer(self.model.parameters())
        self.scaler: torch.amp.GradScaler | None = None

    def step(self, batch: torch.Tensor) -> None:
        loss = self.model(batch).square().mean()
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()

    def found(self) -> list[Any]:
        state = self.optimizer.state_dict()["state"]
        tensors = [*self.model.state_dict().values(), *(each for entry in state.values() for each in entry.values())]
        return [each.detach().clone() if isinstance(each, torch.Tensor) else each for each in tensors]


def _batch(rows: int) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(1))


def _same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(one, other, strict=True)
    )


def _halved(training: Training, policy: str = "swap", **options: Any) -> tuple[int, list[str], list[Any]]:
    """Halves the batch until a step fits, then takes two more: the rows, what errors said, and what was trained."""
    rows, said = ROWS, []
    with umadvise.session(
        training.model, training.optimizer, device="emulated", policy=policy, budget=BUDGET, **options
    ) as um:
        torch.manual_seed(2)
        while True:
            try:
                with um.step():
                    training.step(um.to_device(_batch(rows)))
                break
            except torch.OutOfMemoryError as error:
                said.append(str(error))
                rows //= 2
        for _ in range(2):
            with um.step():
                training.step(um.to_device(_batch(rows)))
        return rows, said, training.found()


def _plain(training: Training, rows: int, steps: int = 3) -> list[Any]:
    torch.manual_seed(2)
    for _ in range(steps):
        training.step(_batch(rows))
    return training.found()


# ---- marked steps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_halving_the_batch_trains_as_plain_pytorch(optimizer: str) -> None:
    rows, said, found = _halved(Training(OPTIMIZERS[optimizer]))
    assert said and rows < ROWS
    assert not any("stay changed" in each for each in said)
    assert _same(found, _plain(Training(OPTIMIZERS[optimizer]), rows))


@pytest.mark.parametrize("policy", ["swap+recompute", "lru", "auto"])
def test_halving_the_batch_does_so_on_each_policy(policy: str) -> None:
    rows, said, found = _halved(Training(), policy)
    assert bool(said) == (policy != "auto")  # which pages what chunks cannot hold
    assert _same(found, _plain(Training(), rows))


def test_a_gradient_scaler_neither_unscales_nor_updates() -> None:
    def scaled() -> Training:
        training = Training(OPTIMIZERS["sgd-momentum"])
        training.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
        return training

    training, plain = scaled(), scaled()
    rows, said, found = _halved(training)
    assert said
    assert _same(found, _plain(plain, rows))
    assert training.scaler is not None and plain.scaler is not None
    assert training.scaler.get_scale() == plain.scaler.get_scale()


def test_executable_batch_sizes_of_accelerate_end_with_the_same_weights() -> None:
    training, sizes = Training(), []
    with umadvise.session(training.model, training.optimizer, device="emulated", policy="swap", budget=BUDGET) as um:
        torch.manual_seed(2)

        @find_executable_batch_size(starting_batch_size=ROWS)
        def train(batch_size: int) -> None:
            sizes.append(batch_size)
            for _ in range(3):
                with um.step():
                    training.step(um.to_device(_batch(batch_size)))

        train()
        found = training.found()
    assert len(sizes) > 1
    assert _same(found, _plain(Training(), sizes[-1]))


class ByHand(Training):
    """Updates that no optimizer of torch's makes."""

    def step(self, batch: torch.Tensor) -> None:
        self.model(batch).square().mean().backward()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None


class InBackward(Training):
    """An optimizer for each parameter, which steps as soon as backward has its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.own = {each: torch.optim.Adam([each], lr=0.01) for each in self.model.parameters()}
        for parameter in self.own:
            parameter.register_post_accumulate_grad_hook(self.update)

    def update(self, parameter: torch.Tensor) -> None:
        self.own[parameter].step()
        self.own[parameter].zero_grad()

    def step(self, batch: torch.Tensor) -> None:
        self.model(batch).square().mean().backward()


class ByClosure(Training):
    """A forward and backward that the optimizer's step calls."""

    def step(self, batch: torch.Tensor) -> None:
        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.model(batch).square().mean()
            loss.backward()
            return loss

        self.optimizer.step(closure)
        self.optimizer.zero_grad()


class Accumulating(Training):
    """Several backwards for one update, in gradients that zero_grad keeps."""

    def step(self, batch: torch.Tensor) -> None:
        for part in batch.chunk(2):
            self.model(part).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)


@pytest.mark.parametrize("kind", [ByHand, InBackward, ByClosure, Accumulating])
def test_other_ways_to_update_are_undone_too(kind: type[Training]) -> None:
    rows, said, found = _halved(kind())
    assert said
    assert _same(found, _plain(kind(), rows))


def test_an_update_before_the_refusal_is_named() -> None:
    first, second = Training(moves=False), Training(moves=False)
    models, optimizers = [first.model, second.model], [first.optimizer, second.optimizer]
    with (
        umadvise.session(models, optimizers, device="emulated", policy="swap", budget=BUDGET) as um,
        pytest.raises(torch.OutOfMemoryError, match=r"stay changed: the first is 0\.0\.(weight|bias)"),
        um.step(),
    ):
        first.step(um.to_device(_batch(64)))
        second.step(um.to_device(_batch(ROWS)))


def test_a_step_that_catches_the_refusal_itself_goes_on() -> None:
    training = Training()
    with umadvise.session(training.model, training.optimizer, device="emulated", policy="swap", budget=BUDGET) as um:
        torch.manual_seed(2)
        with um.step():
            generator = torch.default_generator.get_state()
            with pytest.raises(torch.OutOfMemoryError):
                training.step(um.to_device(_batch(ROWS)))
            torch.default_generator.set_state(generator)
            training.step(um.to_device(_batch(64)))
        found = training.found()
    assert _same(found, _plain(Training(), 64, steps=1))


# ---- steps that nobody marks ----------------------------------------------------------------------------------------


def test_unmarked_steps_do_not_train_either_and_say_what_moved() -> None:
    training = Training(moves=False)
    with umadvise.session(training.model, training.optimizer, device="emulated", policy="swap", budget=BUDGET) as um:
        for rows in (64, 64, ROWS, 64):
            try:
                training.step(um.to_device(_batch(rows)))
            except torch.OutOfMemoryError as error:
                assert rows == ROWS
                assert "mark" in str(error) and "generators" in str(error)
                assert re.search("stay changed", str(error)) is None
        found = training.found()
    assert _same(found, _plain(Training(moves=False), 64))


def test_buffers_that_an_unmarked_step_wrote_are_named() -> None:
    training = Training()
    small, large = _batch(64), _batch(ROWS)
    with umadvise.session(training.model, training.optimizer, device="emulated", policy="swap", budget=BUDGET) as um:
        training.step(um.to_device(small))
        training.step(um.to_device(small))
        with pytest.raises(torch.OutOfMemoryError, match=r"stay changed: the first is 4\.num_batches_tracked"):
            training.model(um.to_device(small))
            training.step(um.to_device(large))
