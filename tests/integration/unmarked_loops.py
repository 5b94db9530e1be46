"""Loops that mark no steps: each trains or infers as plain PyTorch does, and returns its numbers."""

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.func import functional_call, grad

WIDTH, LAYERS = 640, 6
"""Of the networks: a layer's weight takes 1.6 MB."""
COUNT = 10
"""Steps of a loop."""


def batches(count: int = COUNT, rows: int = 448) -> Iterator[torch.Tensor]:
    """Batches for `count` steps, each made when it is wanted."""
    random = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(rows, WIDTH, generator=random)


def network(layers: int = LAYERS) -> nn.Sequential:
    """Linear layers with rectifiers."""
    return nn.Sequential(*(each for _ in range(layers) for each in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))


def descend(parameters: list[torch.Tensor]) -> None:
    """Stochastic gradient descent by hand."""
    with torch.no_grad():
        for parameter in parameters:
            parameter -= 0.01 * parameter.grad
            parameter.grad = None


def modules_by_hand() -> list[float]:
    """A module, trained by hand."""
    model, losses = network(), []
    for batch in batches():
        loss = model(batch).square().mean()
        loss.backward()
        descend(list(model.parameters()))
        losses.append(loss.item())
    return losses


def weights() -> list[torch.Tensor]:
    """Weights of a network without modules."""
    torch.manual_seed(0)
    return [(torch.randn(WIDTH, WIDTH) / WIDTH**0.5).requires_grad_() for _ in range(LAYERS)]


def forward(layers: list[torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
    """What these weights make of a batch."""
    for layer in layers:
        batch = torch.relu(batch @ layer)
    return batch


def tensors_by_hand() -> list[float]:
    """Bare tensors, trained by hand."""
    layers, losses = weights(), []
    for batch in batches():
        loss = forward(layers, batch).square().mean()
        loss.backward()
        descend(layers)
        losses.append(loss.item())
    return losses


def functional_modules() -> list[float]:
    """torch.func: each step makes new parameters for a module."""
    torch.manual_seed(0)
    model, losses = network(), []
    parameters = {name: each.detach() for name, each in model.named_parameters()}

    def loss_of(parameters: dict[str, torch.Tensor], batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        loss = functional_call(model, parameters, (batch,)).square().mean()
        return loss, loss

    for batch in batches():
        gradients, loss = grad(loss_of, has_aux=True)(parameters, batch)
        parameters = {name: each - 0.01 * gradients[name] for name, each in parameters.items()}
        losses.append(loss.item())
    return losses


def functional_tensors() -> list[float]:
    """torch.func: each step makes new tensors, and nothing lasts."""
    layers, losses = [each.detach() for each in weights()], []

    def loss_of(layers: list[torch.Tensor], batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        loss = forward(layers, batch).square().mean()
        return loss, loss

    torch.manual_seed(1)
    for _ in range(COUNT):
        gradients, loss = grad(loss_of, has_aux=True)(layers, torch.randn(448, WIDTH))
        layers = [layer - 0.01 * gradient for layer, gradient in zip(layers, gradients, strict=True)]
        losses.append(loss.item())
    return losses


def accumulated() -> list[float]:
    """Four forwards and backwards for one update."""
    model, losses = network(), []
    for batch in batches():
        total = 0.0
        for part in batch.chunk(4):
            loss = model(part).square().mean() / 4
            loss.backward()
            total += loss.item()
        descend(list(model.parameters()))
        losses.append(total)
    return losses


def two_networks() -> list[float]:
    """A generator and what tells it from data, each trained in its turn."""
    torch.manual_seed(0)
    generator, judge, losses = network(4), nn.Sequential(network(4), nn.Linear(WIDTH, 1)), []
    for batch in batches():
        noise = torch.randn(448, WIDTH)
        loss = nn.functional.softplus(-judge(batch)).mean()
        loss = loss + nn.functional.softplus(judge(generator(noise).detach())).mean()
        loss.backward()
        descend(list(judge.parameters()))
        loss = nn.functional.softplus(-judge(generator(noise))).mean()
        loss.backward()
        for parameter in judge.parameters():
            parameter.grad = None
        descend(list(generator.parameters()))
        losses.append(loss.item())
    return losses


def unrolled() -> list[float]:
    """A cell, called by the loop itself, some steps of time for one update."""
    torch.manual_seed(0)
    cell, losses = nn.GRUCell(WIDTH, 256), []
    for batch in batches():
        state = torch.zeros(56, 256)
        for part in batch.chunk(8):
            state = cell(part, state)
        loss = state.square().mean()
        loss.backward()
        descend(list(cell.parameters()))
        losses.append(loss.item())
    return losses


class OwnAdam:
    """An optimizer that is none of torch's."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.parameters = parameters
        self.averages = [(torch.zeros_like(each), torch.zeros_like(each)) for each in parameters]
        self.steps = 0

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for parameter, (first, second) in zip(self.parameters, self.averages, strict=True):
            first.mul_(0.9).add_(parameter.grad, alpha=0.1)
            second.mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
            parameter.addcdiv_(first, second.sqrt().add_(1e-8), value=-1e-3)


def own_optimizer() -> list[float]:
    """A module, trained by an optimizer that torch does not know."""
    model, losses = network(), []
    optimizer = OwnAdam(list(model.parameters()))
    for batch in batches():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def inference() -> list[float]:
    """Batches of different sizes."""
    model, numbers = network(), []
    with torch.inference_mode():
        for index, batch in enumerate(batches()):
            numbers.append(model(batch[: 448 - 16 * (index % 3)]).sum().item())
    return numbers


def tensor_inference() -> list[float]:
    """Bare tensors; nobody says that there is nothing to go backward through."""
    layers, numbers = [each.detach() for each in weights()], []
    for batch in batches():
        numbers.append(forward(layers, batch).sum().item())
    return numbers


def encoder_and_decoder() -> list[float]:
    """Two modules for each batch, the first of them twice."""
    encoder, decoder, numbers = network(), network(2), []
    with torch.no_grad():
        for batch in batches():
            numbers.append(decoder(encoder(batch[:64]) + encoder(batch[64:128])).sum().item())
    return numbers


class Attention(nn.Module):
    """A layer that looks at all tokens until now, and keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(
        self, token: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """What follows from a token and from those before it, and all of them."""
        keys, values = self.key(token), self.value(token)
        if cache is not None:
            keys, values = torch.cat((cache[0], keys), 1), torch.cat((cache[1], values), 1)
        weighed = nn.functional.scaled_dot_product_attention(self.query(token), keys, values)
        return token + weighed, (keys, values)


class Generator(nn.Module):
    """Layers of attention over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(512, WIDTH)
        self.layers = nn.ModuleList(Attention() for _ in range(4))

    def forward(self, tokens: torch.Tensor, cache: list) -> tuple[torch.Tensor, list]:
        """Scores of the next token, and what is kept."""
        hidden, kept = self.embedding(tokens), []
        for layer, before in zip(self.layers, cache, strict=True):
            hidden, now = layer(hidden, before)
            kept.append(now)
        return hidden[:, -1] @ self.embedding.weight.T, kept


def generation() -> list[float]:
    """Tokens one by one, with a cache that grows."""
    torch.manual_seed(0)
    model, numbers = Generator(), []
    tokens, cache = torch.arange(4 * 16).view(4, 16), [None] * 4
    with torch.no_grad():
        for _ in range(2 * COUNT):
            scores, cache = model(tokens, cache)
            tokens = scores.argmax(-1, keepdim=True)
            numbers.append(scores.sum().item())
    return numbers


def training_and_evaluation() -> list[float]:
    """Each other step of a training is followed by an evaluation."""
    model, losses = network(), []
    for index, batch in enumerate(batches()):
        loss = model(batch).square().mean()
        loss.backward()
        descend(list(model.parameters()))
        losses.append(loss.item())
        if index % 2:
            with torch.no_grad():
                losses.append(model(batch[:128]).square().mean().item())
    return losses


LOOPS: dict[Callable[[], list[float]], tuple[int, int]] = {
    modules_by_hand: (7, 7),
    tensors_by_hand: (7, 7),
    functional_modules: (6, 7),
    functional_tensors: (7, 7),
    accumulated: (7, 20),
    two_networks: (6, 7),
    unrolled: (6, 7),
    own_optimizer: (7, 7),
    inference: (7, 7),
    tensor_inference: (7, 7),
    encoder_and_decoder: (7, 14),
    generation: (17, 17),
    training_and_evaluation: (12, 12),
}
"""Loops, with how many steps are found in them, at least and at most.

A step is found when its place comes for the third time, and the last one has no end. The first steps of some are parts
of steps.
"""
UNLIKE = {inference, generation, training_and_evaluation}
"""Loops whose steps are not alike."""
