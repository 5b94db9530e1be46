"""One call of an operator, taken apart so that everything can leave the device between its parts."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from op_trial.bits import Frozen, frozen, tensors_in

SEED = 2021


class Raised:
    """That something raised, in place of its value."""

    def __init__(self, error: Exception) -> None:
        self.words = f"raised {type(error).__name__}"
        self.message = str(error)

    def frozen(self) -> Frozen:
        """As a value; what it said need not be the same."""
        return Frozen(self.words, note=self.message)


def seed_all() -> None:
    """Random numbers from here on are the same ones each time."""
    torch.default_generator.manual_seed(SEED)  # torch.manual_seed keeps a stack trace for CUDA each time
    random.seed(SEED)
    np.random.seed(SEED)


def attempt(work: Callable[[], Any]) -> Any:
    """What it returns, from the same random numbers each time, or that it raised: a sample need not be valid."""
    seed_all()
    try:
        return work()
    except Exception as error:
        return Raised(error)


@dataclass(eq=False)
class OpCase:
    """One call, and its gradients.

    Attributes:
        name: what it is, within its subject.
        given: all tensors that the call is given.
        wanted: those whose gradients are asked for.
        call: the call itself.
        follow: makes another case of the call's result, to be run when everything has left.
    """

    name: str
    given: Any
    wanted: list[torch.Tensor]
    call: Callable[[], Any]
    follow: "Callable[[Any], OpCase | None] | None" = None
    result: Any = None
    cotangents: Any = None
    gradients: Any = None

    def forward(self) -> None:
        """Calls, and makes what the gradients will be multiplied with."""
        self.result = attempt(self.call)
        if self.wanted and self.is_whole:
            self.cotangents = attempt(lambda: [_cotangent(each) for each in self._differentiable()])

    def backward(self) -> None:
        """Asks for the gradients, if there are any."""
        outputs = self._differentiable() if self.is_whole else []
        if not outputs or not self.wanted or isinstance(self.cotangents, Raised):
            return
        self.gradients = attempt(lambda: torch.autograd.grad(outputs, self.wanted, self.cotangents, allow_unused=True))

    def tensors(self) -> list[torch.Tensor]:
        """All that it holds."""
        return tensors_in([self.given, self.result, self.cotangents, self.gradients])

    def left(self, copy: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, list[Frozen]]:
        """What it left, by name, in ordinary memory."""
        parts = {"result": self.result, "gradients": self.gradients, "given": self.given}
        return {
            f"{self.name}: {part}": [value.frozen()] if isinstance(value, Raised) else frozen(value, copy)
            for part, value in parts.items()
        }

    @property
    def is_whole(self) -> bool:
        """Whether the call returned."""
        return not isinstance(self.result, Raised)

    def _differentiable(self) -> list[torch.Tensor]:
        return [each for each in tensors_in(self.result) if each.requires_grad]


def _cotangent(output: torch.Tensor) -> torch.Tensor:
    return torch.randn_like(output) if output.layout is torch.strided else torch.ones_like(output)
