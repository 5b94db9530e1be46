"""What test_switches.py runs: a training whose rung a test switches, beside the same one in plain torch."""

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn

import umadvise
from umadvise import _native
from umadvise._native.abi import Memory
from umadvise.torch_seam.runtime import address_of
from umadvise.training.policy.governor import Governor, StepRecord, Switch

WIDTH = 1024
STEPS = 13
KINDS = {Memory.MANAGED: "managed", Memory.DEVICE: "plain", Memory.CHUNKED: "chunks"}


class Training:
    """AdamW, and weights of 4 MiB; one of 512 KiB shares a chunk, and biases and a norm never leave theirs."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        wide = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
        self.model = nn.Sequential(*wide, nn.Linear(WIDTH, WIDTH // 8), nn.BatchNorm1d(WIDTH // 8))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.average: torch.Tensor | None = None  # known to nobody but its ops
        self.losses: list[str] = []

    def step(self, number: int) -> None:
        seeds = torch.Generator().manual_seed(number)
        loss = self.model(torch.rand(16, WIDTH, generator=seeds).to("cuda")).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        weight = self.model[0].weight.detach()
        self.average = weight.clone() if self.average is None else self.average.mul_(0.5).add_(weight, alpha=0.5)
        self.losses.append(loss.item().hex())

    def live(self) -> list[torch.Tensor]:
        states = chain.from_iterable(entries.values() for entries in self.optimizer.state.values())
        found = [*self.model.parameters(), *self.model.buffers(), *states, self.average]
        return [each for each in found if isinstance(each, torch.Tensor) and each.is_cuda]

    def digest(self) -> str:
        digest = hashlib.sha256("".join(self.losses).encode())
        for tensor in self.live():
            digest.update(tensor.detach().cpu().numpy().tobytes())
        return digest.hexdigest()

    def kinds(self) -> list[str]:
        # torch keeps addresses of small tensors of integers, such as the norm's count: they stay.
        moving = [each for each in self.live() if each.is_floating_point()]
        placed = [_native.allocation_at(address_of(each)) for each in moving]
        return sorted({"torch's" if each is None else KINDS[Memory(each.memory)] for each in placed})


@contextmanager
def scripted(rungs: list[str]) -> Iterator[None]:
    """A governor that goes to the next of these rungs after each second step, and nowhere else."""
    left = list(rungs)

    def observe(self: Governor, step: StepRecord) -> Switch | None:
        if step.number % 2 == 0 or step.number == 1 or not left:
            return None
        return self._to(step.number + 1, left.pop(0), "as the test says")

    kept = Governor.observe, Governor.choose, Governor.go
    Governor.observe = observe  # type: ignore[method-assign]
    Governor.choose = Governor.go = lambda *_: None  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Governor.observe, Governor.choose, Governor.go = kept  # type: ignore[method-assign]


def plain() -> str:
    """What it comes to in plain torch."""
    training = Training()
    training.model.to("cuda")
    for number in range(STEPS):
        training.step(number)
    return training.digest()


def switched(*rungs: str) -> tuple[str, list[tuple[str, list[str]]]]:
    """The same, and after each step its rung and where everything that lives is."""
    training, seen = Training(), []
    with (
        scripted(list(rungs)),
        umadvise.session(training.model, training.optimizer, device="cuda", budget="72MiB", policy="auto") as um,
    ):
        for number in range(STEPS):
            with um.step():
                training.step(number)
                seen.append((um.rung, training.kinds()))
        digest = training.digest()
    return digest, seen


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
