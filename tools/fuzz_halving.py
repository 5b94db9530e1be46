"""Random trainings that halve their batch until a step fits, as `find_executable_batch_size` of accelerate has it.

Plain PyTorch begins with the batch that fitted. What a refused step leaves of parameters, optimizer state, buffers and
generators would make the two differ.
"""

import random
from collections.abc import Callable

import torch
from torch import nn

import umadvise
from umadvise.training.session import Session

_STEPS, _FIRST_BATCH, _WIDTH = 3, 8192, 96
_CAPACITY = "1GiB"
Found = dict[str, torch.Tensor]


def _activation(choose: random.Random) -> nn.Module:
    return choose.choice([nn.GELU(), nn.SiLU(inplace=True), nn.ReLU(), nn.Tanh(), nn.Hardswish(inplace=True)])


def _network(choose: random.Random) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(choose.randrange(2, 6)):
        layers += [nn.Linear(_WIDTH, _WIDTH), _activation(choose)]
        layers += choose.choice([[], [nn.BatchNorm1d(_WIDTH)], [nn.LayerNorm(_WIDTH)], [nn.Dropout(0.1)]])
    return nn.Sequential(*layers)


def _optimizer(choose: random.Random, model: nn.Module) -> torch.optim.Optimizer:
    makers: list[Callable[..., torch.optim.Optimizer]] = [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop]
    form: dict[str, bool] = choose.choice([{}, {"foreach": True}, {"foreach": False}])
    if choose.random() < 0.3:
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, **form)
    return choose.choice(makers)(model.parameters(), lr=0.01, **form)


class _Training:
    """One training, the same for a seed in both runs but for its first batch."""

    def __init__(self, seed: int) -> None:
        choose = random.Random(seed)
        torch.manual_seed(seed)
        self.model = _network(choose)
        self.optimizer = _optimizer(choose, self.model)
        self.clips, self.data = choose.random() < 0.3, torch.randn(_FIRST_BATCH, _WIDTH)
        torch.manual_seed(seed + 1)

    def step(self, batch: int) -> None:
        """One update; a refused one may begin again with a smaller batch."""
        self.optimizer.zero_grad()
        self.model(self.data[:batch]).square().mean().backward()
        if self.clips:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def results(self) -> Found:
        """Parameters, buffers, optimizer state and the generator's state."""
        found = {name: value.detach().clone().cpu() for name, value in self.model.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors = {name: value for name, value in state.items() if torch.is_tensor(value)}
            found |= {f"{name} of {index}": value.clone().cpu() for name, value in tensors.items()}
        return {**found, "generator": torch.get_rng_state()}


def _halved(training: _Training, um: Session, batch: int) -> int:
    """Trains, and returns the batch that fitted."""
    done = 0
    while done < _STEPS:
        try:
            with um.step():
                training.step(batch)
            done += 1
        except torch.OutOfMemoryError:
            if done > 0 or batch == 1:
                raise  # what fitted once fits again
            batch //= 2
    return batch


def trouble(seed: int) -> str | None:
    """What is wrong with the training of a seed; None: both runs are equal, or not even one sample fits."""
    choose = random.Random(~seed)
    policy, budget_mib = choose.choice(("swap", "swap", "swap:lru", "auto")), choose.choice((4, 6, 8, 12))
    words = f"batches that are halved, on {policy} in {budget_mib} MiB"
    training = _Training(seed)
    try:
        with umadvise.session(
            training.model,
            training.optimizer,
            device=umadvise.EmulatedDevice(_CAPACITY),
            budget=budget_mib << 20,
            policy=policy,
        ) as um:
            batch = _halved(training, um, _FIRST_BATCH)
            found = training.results()
    except Exception as error:
        return f"{words}: {type(error).__name__}: {error}"
    plain = _Training(seed)
    for _ in range(_STEPS):
        plain.step(batch)
    wrong = [name for name, value in plain.results().items() if not torch.equal(found[name], value)]
    return f"{words}: from a batch of {batch} on plain PyTorch has another {', '.join(wrong)}" if wrong else None
