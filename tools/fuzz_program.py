"""Random programs of a few steps: every kind of thing that an eager script does to tensors, decided by one seed.

Instructions choose their operands among what is alive when they run, so that a program stays one however many of its
instructions are left out. What they raise is part of what a program gives.
"""

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

COLUMNS = 512
ROWS = (3, 100, 520, 700, 1000)
"""The last three give storages of more than half a chunk of 2 MiB, in one chunk."""
KEPT = 4
MOST_LIVE = 26
Choose = random.Random


class WorldError(RuntimeError):
    """What a program raises itself, in the middle of backward."""


class World:
    """Everything that a program has: weights, tensors that outlive steps, tensors of this step, numpy arrays.

    Attributes:
        weights: leaves with gradients.
        kept: tensors that have the same shapes whenever a step begins, so that steps come again.
        live: tensors of this step, views among them.
        log: what the program saw and what it raised.
    """

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(COLUMNS + 100 * i, COLUMNS) / 20) for i in range(3)])
        self.kept: list[torch.Tensor] = []
        self.live: list[torch.Tensor] = []
        self.arrays: list[np.ndarray] = []
        self.log: list[str] = []

    def begin(self) -> None:
        """The beginning of a step."""
        while len(self.kept) < KEPT:
            rows = ROWS[-1 - len(self.kept) % 3]
            self.kept.append(torch.linspace(-1, 1, rows * COLUMNS).reshape(rows, COLUMNS))
        self.live = list(self.kept)

    def end(self, choose: Choose) -> None:
        """What stays is as large as before; everything else goes."""
        for index, kept in enumerate(self.kept):
            with torch.no_grad():
                flat = self.pick(choose).detach().reshape(-1)[: kept.numel()].to(torch.float32)
                if choose.random() < 0.5:
                    kept.view(-1)[: flat.numel()].copy_(flat.tanh())
                else:
                    self.kept[index] = kept.tanh()
                    self.kept[index].view(-1)[: flat.numel()].lerp_(flat.tanh(), 0.25)
        self.arrays.clear()
        self.let_go(choose)

    def let_go(self, choose: Choose) -> None:
        """All that is left of a step, in any order."""
        choose.shuffle(self.live)
        while self.live:
            self.live.pop()

    def pick(self, choose: Choose) -> torch.Tensor:
        """Anything that is alive, of floats."""
        floats = [tensor for tensor in self.live if tensor.dtype == torch.float32 and tensor.dim() > 0 < tensor.numel()]
        return choose.choice(floats or self.kept)

    def pair(self, choose: Choose) -> tuple[torch.Tensor, torch.Tensor]:
        """Two of one shape."""
        one, other = self.pick(choose).reshape(-1), self.pick(choose).reshape(-1)
        count = min(one.numel(), other.numel(), ROWS[-1] * COLUMNS)
        return one[:count], other[-count:]

    def matrix(self, choose: Choose) -> torch.Tensor:
        """One of `COLUMNS` columns, with storage of its own or a view."""
        found = [one for one in self.live if one.dim() == 2 and one.shape[1] == COLUMNS and one.dtype == torch.float32]
        return choose.choice(found or self.kept)

    def add(self, *tensors: torch.Tensor) -> None:
        """More that is alive; the oldest make room."""
        self.live += tensors
        while len(self.live) > MOST_LIVE:
            del self.live[KEPT]


Instruction = Callable[[World, Choose], None]


@dataclass(frozen=True)
class SteppedProgram:
    """One program: its instructions by name, each with the seed of its choices.

    Attributes:
        seed: the seed of the whole, which says which step is another.
        body: instructions of a step.
    """

    seed: int
    body: tuple[tuple[str, int], ...]
    step_count: int = 5

    @property
    def other_step(self) -> int | None:
        """A step that leaves out a third of its instructions; None where all are alike."""
        return self.seed % 7 if self.seed % 7 < self.step_count else None

    @property
    def evaluates(self) -> bool:
        """Whether an evaluation without gradients, outside of steps, precedes the steps."""
        return self.seed % 4 == 1


def program_of(seed: int, length: int, instructions: dict[str, tuple[Instruction, int]]) -> SteppedProgram:
    """A random program; `instructions` gives each one's weight."""
    choose = Choose(seed)
    names = choose.choices(list(instructions), [weight for _, weight in instructions.values()], k=length)
    return SteppedProgram(seed, tuple((name, choose.randrange(1 << 30)) for name in names))


Around = Callable[[], AbstractContextManager[object]]


def run(
    program: SteppedProgram,
    instructions: dict[str, tuple[Instruction, int]],
    world: World,
    optimizer: torch.optim.Optimizer,
    around: Around = nullcontext,
) -> None:
    """Runs it, each step inside what `around` gives."""
    if program.evaluates:
        with torch.no_grad():
            world.begin()
            for name, seed in program.body[::2]:
                perform(world, name, instructions[name][0], Choose(seed))
            world.end(Choose(program.seed + 2))
    for step in range(program.step_count):
        with around():
            world.begin()
            for place, (name, seed) in enumerate(program.body):
                if step == program.other_step and place % 3 == 1:
                    continue
                perform(world, name, instructions[name][0], Choose(seed))
            optimizer.step()
            optimizer.zero_grad()
            world.end(Choose(program.seed + 1))


def perform(world: World, name: str, instruction: Instruction, choose: Choose) -> None:
    """One instruction; what torch refuses is logged, what is out of memory is not survived."""
    try:
        instruction(world, choose)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        world.log.append(f"{name}: {type(error).__name__}")


def small_network(world: World, choose: Choose) -> torch.Tensor:
    """Some layers over a tensor that is alive, with gradients for the weights."""
    x = world.matrix(choose)[: choose.choice(ROWS)]
    for weight in choose.sample(list(world.weights), choose.randrange(1, 4)):
        layer = choose.randrange(4)
        hidden = torch.tanh(x @ weight.t()[:, :COLUMNS])
        if layer == 0:
            hidden = hidden.mul_(1.5) if not hidden.requires_grad else hidden * hidden
        elif layer == 1:
            hidden = torch.cat([hidden, x], dim=0)[: choose.choice(ROWS)]
        elif layer == 2:
            hidden = checkpoint(
                lambda y, w: torch.nn.functional.gelu(y * w[:1, :COLUMNS]), hidden, weight, use_reentrant=False
            )
        x = torch.nn.functional.dropout(hidden, 0.1, training=choose.random() < 0.5)
    return x
