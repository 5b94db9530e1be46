"""Programs that `torch.compile` compiles, small and quick: what Inductor does to memory that ops of torch do not."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Tensors = list[torch.Tensor]
Move = Callable[[torch.Tensor], torch.Tensor]
ROWS, WIDTH, STEPS = 320, 256, 4


class Block(nn.Module):
    """It writes a buffer, draws random numbers, and saves for backward what nobody else holds."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = (
            nn.BatchNorm1d(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = functional.gelu(self.wide(self.norm(x)))
        return x + functional.dropout(self.narrow(wide), 0.1, self.training)


class Blocks(nn.Module):
    def __init__(self, count: int = 5) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(count))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@dataclass
class Program:
    """A model and an optimizer, and what a step of theirs does with a batch; it gives a loss."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[torch.Tensor], torch.Tensor]
    update: Callable[[], Any] | None = None
    batch: Callable[[int], torch.Tensor] = lambda _step: torch.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH)

    def train(self, step: Callable[[], AbstractContextManager[Any]], move: Move) -> Tensors:
        """Some steps. Returns the losses, and everything that a model keeps."""
        torch.manual_seed(1)
        losses = []
        for number in range(STEPS):
            with step():
                loss = self.loss(move(self.batch(number)))
                loss.backward()
                (self.update or self.optimizer.step)()
                self.optimizer.zero_grad()
                losses.append(loss.detach().clone())
        kept = chain(self.model.parameters(), self.model.buffers())
        return [each.detach().cpu().clone() for each in chain(losses, kept)]


def _blocks(count: int = 5) -> tuple[Blocks, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Blocks(count)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def by_block() -> Program:
    model, optimizer = _blocks()
    for block in model.blocks:
        block.compile()
    return Program(model, optimizer, lambda x: model(x).square().mean())


def whole() -> Program:
    model, optimizer = _blocks(2)
    compiled = torch.compile(model, fullgraph=True)
    return Program(model, optimizer, lambda x: compiled(x).square().mean())


def update_and_loss() -> Program:
    """The optimizer's step and the loss are compiled, the model is not."""
    model, optimizer = _blocks(2)
    optimizer.param_groups[0].update(foreach=True, capturable=False)
    loss = torch.compile(lambda y: functional.log_softmax(y, 1).square().mean())
    return Program(model, optimizer, lambda x: loss(model(x)), torch.compile(optimizer.step))


def graph_breaks() -> Program:
    model, optimizer = _blocks(2)

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = model.blocks[0](x)
        torch._dynamo.graph_break()
        if float(y.detach().sum()) > 1e9:
            y = y * 2
        return model.blocks[1](y).square().mean()

    return Program(model, optimizer, torch.compile(forward))


def sizes_change() -> Program:
    model, optimizer = _blocks(2)
    compiled = torch.compile(model, dynamic=True)

    def batch(step: int) -> torch.Tensor:
        rows = ROWS - 16 * step
        return torch.linspace(-1, 1, rows * WIDTH).reshape(rows, WIDTH)

    return Program(model, optimizer, lambda x: compiled(x).square().mean(), batch=batch)


def inputs_are_written() -> Program:
    """A function writes what it is given, returns views of it, and keeps a sum in memory of its own."""
    model, optimizer = _blocks(2)
    model.register_buffer("total", torch.zeros(ROWS, WIDTH))

    @torch.compile
    def add(x: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x.mul_(0.5)
        total.add_(x)
        return x, total[1:], total.view(-1)[::2] + 1

    def loss(x: torch.Tensor) -> torch.Tensor:
        same, rest, new = add(x, model.total)
        return model(same).square().mean() + rest.mean() + new.mean()

    return Program(model, optimizer, loss)


def checkpointed() -> Program:
    """Checkpoints within a graph, under autocast."""
    model, optimizer = _blocks(3)

    def forward(x: torch.Tensor) -> torch.Tensor:
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return model.head(x).float().square().mean()

    compiled = torch.compile(forward)

    def loss(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return compiled(x)

    return Program(model, optimizer, loss)


def frozen_with_attention() -> Program:
    """Most parameters are frozen; attention; a constant in the graph."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, norm_first=True), 3)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" in name)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
    compiled = torch.compile(lambda x: model(x.reshape(32, -1, 64) * scale.repeat(16)).square().mean())
    return Program(model, optimizer, compiled)


PROGRAMS = (
    by_block,
    whole,
    update_and_loss,
    graph_breaks,
    sizes_change,
    inputs_are_written,
    checkpointed,
    frozen_with_attention,
)
