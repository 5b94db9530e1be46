"""Training loops of a few steps, each with something that a plan must survive; the same code runs with umadvise.

A loop draws its batches from torch's generator, so that two runs from one seed are the same program.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from small_networks import Batch, Network, Trained
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

STEPS = 7
OTHER_BRANCH_STEP = 4
"""Counted from 0: the fifth step."""

Parameters = Iterator[nn.Parameter]
OPTIMIZERS: dict[str, Callable[[Parameters], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.001, foreach=False),
    "adamw-foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.001, foreach=True),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.001, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.002, momentum=0.9, foreach=False),
    "sgd-foreach": lambda parameters: torch.optim.SGD(parameters, lr=0.002, momentum=0.9, foreach=True),
    "sgd-fused": lambda parameters: torch.optim.SGD(parameters, lr=0.002, momentum=0.9, fused=True),
}


class Loop:
    """One step of plain training; subclasses change what their names say."""

    def __init__(self, network: Network, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.network, self.model, self.optimizer = network, model, optimizer
        self.seen: list[torch.Tensor] = []

    def batch(self, _step: int) -> Batch:
        return self.network.batch()

    def outputs(self, inputs: torch.Tensor, _step: int) -> torch.Tensor:
        outputs: torch.Tensor = self.model(inputs)
        return outputs

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor, step: int) -> torch.Tensor:
        return functional.cross_entropy(self.outputs(inputs, step), targets)

    def gradients(self, step: int) -> None:
        loss = self.loss(*self.batch(step), step)
        loss.backward()
        self.seen.append(loss.detach())

    def step(self, step: int) -> None:
        """Gradients stay until the next step, to be compared."""
        self.optimizer.zero_grad()
        self.gradients(step)
        self.optimizer.step()


class Accumulation(Loop):
    def gradients(self, step: int) -> None:
        for _ in range(2):
            super().gradients(step)


class Autocast(Loop):
    def outputs(self, inputs: torch.Tensor, step: int) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().outputs(inputs, step)


class Checkpoint(Loop):
    def outputs(self, inputs: torch.Tensor, _step: int) -> torch.Tensor:
        outputs: torch.Tensor = checkpoint(self.model, inputs, use_reentrant=False)
        return outputs


class ReentrantCheckpoint(Loop):
    def outputs(self, inputs: torch.Tensor, _step: int) -> torch.Tensor:
        """The reentrant kind needs an input with a gradient."""
        anchor = torch.zeros(1, requires_grad=True)
        outputs: torch.Tensor = checkpoint(lambda x, _: self.model(x), inputs, anchor, use_reentrant=True)
        return outputs


class RetainGraph(Loop):
    def gradients(self, step: int) -> None:
        loss = self.loss(*self.batch(step), step)
        loss.backward(retain_graph=True)
        (loss * 0.5).backward()
        self.seen.append(loss.detach())


class DoubleBackward(Loop):
    """A penalty on the gradients."""

    def gradients(self, step: int) -> None:
        with sdpa_kernel(SDPBackend.MATH):  # the only attention whose gradient has one
            loss = self.loss(*self.batch(step), step)
            found = torch.autograd.grad(loss, list(self.model.parameters()), create_graph=True)
            penalty = torch.stack([gradient.square().sum() for gradient in found]).sum()
            (loss + 0.01 * penalty).backward()
        self.seen += [loss.detach(), penalty.detach()]


class InPlace(Loop):
    def outputs(self, inputs: torch.Tensor, step: int) -> torch.Tensor:
        outputs = super().outputs(inputs, step) * 1.0
        outputs.mul_(1.25).add_(0.125)
        outputs[::2].clamp_(-5, 5)
        return outputs

    def step(self, step: int) -> None:
        super().step(step)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.lerp_(parameter.detach().clone().mul_(0.5), 0.01)
                parameter.view(-1)[:3].add_(1e-3)


class Clipped(Loop):
    def gradients(self, step: int) -> None:
        super().gradients(step)
        self.seen.append(nn.utils.clip_grad_norm_(self.model.parameters(), 0.5))


class Evaluation(Loop):
    def step(self, step: int) -> None:
        super().step(step)
        self.model.eval()
        with torch.no_grad():
            self.seen.append(self.loss(*self.batch(step), step))
        self.model.train()


class LastBatch(Loop):
    def batch(self, step: int) -> Batch:
        inputs, targets = super().batch(step)
        if step < STEPS - 1:
            return inputs, targets
        share = len(targets) // len(inputs) if targets.dim() == 1 else 1  # tokens are flat in the targets
        half = len(inputs) // 2
        return inputs[:half], targets[: half * share]


class OtherBranch(Loop):
    def outputs(self, inputs: torch.Tensor, step: int) -> torch.Tensor:
        outputs = super().outputs(inputs, step)
        if step == OTHER_BRANCH_STEP:
            outputs = torch.tanh(outputs) * super().outputs(inputs, step)
        return outputs


VARIANTS: dict[str, type[Loop]] = {
    "plain": Loop,
    "accumulation": Accumulation,
    "autocast": Autocast,
    "checkpoint": Checkpoint,
    "checkpoint-reentrant": ReentrantCheckpoint,
    "retain-graph": RetainGraph,
    "double-backward": DoubleBackward,
    "in-place": InPlace,
    "clipped": Clipped,
    "evaluation": Evaluation,
    "last-batch": LastBatch,
    "other-branch": OtherBranch,
}
IMPOSSIBLE = {("embedding", "double-backward")}
"""Network and variant: the gradient of an embedding bag has no derivative."""
if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
    IMPOSSIBLE.add(("lstm", "autocast"))  # oneDNN's LSTM in bfloat16 needs AVX-512

Around = Callable[[], AbstractContextManager[None]]
Opened = AbstractContextManager[Around]


def train(
    network: Network,
    optimizer_name: str,
    variant: str,
    session: Callable[[nn.Module, torch.optim.Optimizer], Opened] = lambda _model, _optimizer: nullcontext(nullcontext),
    count: int = STEPS,
) -> Trained:
    """A whole run from a fixed seed; `session` gives what is around each step."""
    torch.manual_seed(2021)
    model = network.model()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    loop = VARIANTS[variant](network, model, optimizer)
    with session(model, optimizer) as around:
        for step in range(count):
            with around():
                loop.step(step)
    return Trained(loop.seen, model, optimizer)
