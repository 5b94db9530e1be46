"""What a recorder records: one training step that is already built, on whatever device it was built on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # planning and reading traces do without torch
    import torch


@dataclass(frozen=True)
class Workload:
    """One training step as something that can be built on any device: the device is torch's default at building time.

    Attributes:
        step: function that runs one whole step: zero_grad, forward, loss, backward, optimizer. It reads no tensor's
            value on the host, so that it runs on the meta device too.
        modules: the modules that are trained; their parameters and buffers are the step's parameters.
        optimizers: the optimizers in the order in which the step uses them; their state is optimizer state.
        inputs: tensors that the step reads from outside: the batch.
        name: what reports call the workload.
    """

    step: Callable[[], object]
    modules: tuple[torch.nn.Module, ...] = ()
    optimizers: tuple[torch.optim.Optimizer, ...] = ()
    inputs: tuple[torch.Tensor, ...] = ()
    name: str = ""


def training_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[..., torch.Tensor],
    *inputs: torch.Tensor,
    name: str = "",
) -> Workload:
    """A workload of one model, one optimizer and one loss: the ordinary case.

    Args:
        model: the module to train, already in the mode (train or eval) in which it is to run.
        optimizer: the optimizer of the model's parameters.
        loss: function that is called as `loss(model, *inputs)` and returns a scalar.
        inputs: tensors of the batch, given to `loss`.
        name: what reports call the workload.

    Returns:
        A workload whose step returns the loss, detached: a tensor without a graph.
    """

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        value = loss(model, *inputs)
        value.backward()
        optimizer.step()
        return value.detach()

    return Workload(step, (model,), (optimizer,), inputs, name)
