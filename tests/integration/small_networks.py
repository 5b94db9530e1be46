"""Six networks whose steps are cheap and whose need is at least 128 MiB, and a training loop that is plain PyTorch.

The need of a training run is measured without umadvise: the peak of the bytes of all storages that its ops make, seen
by a `TorchDispatchMode`.
"""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Batch = tuple[torch.Tensor, torch.Tensor]
MIB = 1 << 20


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = [1024, 2048, 2048, 2048, 2048, 10]
        layers = [nn.Linear(inside, outside) for inside, outside in pairwise(sizes)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = functional.dropout(functional.gelu(layer(x)), 0.1, self.training)
        return self.layers[-1](x)


class Cnn(nn.Sequential):
    def __init__(self, channels: int = 16, layers: int = 7, side: int = 128) -> None:
        parts: list[nn.Module] = []
        for index in range(layers):
            inside = channels if index > 0 else 3
            parts += [nn.Conv2d(inside, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
        parts += [nn.MaxPool2d(4), nn.Flatten(), nn.Linear(channels * (side // 4) ** 2, 10)]
        super().__init__(*parts)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2000, 768)
        self.lstm = nn.LSTM(768, 1024, num_layers=2, dropout=0.1)
        self.head = nn.Linear(1024, 2000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.head(hidden).flatten(0, 1)


class Transformer(nn.Module):
    """Input embedding and output projection share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6000, 512)
        layer = nn.TransformerEncoderLayer(512, 8, dim_feedforward=2048, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=4, enable_nested_tensor=False)
        self.head = nn.Linear(512, 6000, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens))).flatten(0, 1)


def convolutions(inside: int, outside: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1),
        nn.GroupNorm(2, outside),
        nn.SiLU(),
        nn.Conv2d(outside, outside, 3, padding=1),
        nn.SiLU(),
    )


class UNet(nn.Module):
    def __init__(self, bottom: int = 32) -> None:
        super().__init__()
        self.first, self.down, self.bottom = convolutions(1, 8), convolutions(8, 16), convolutions(16, bottom)
        self.up_to_down, self.up_to_first = nn.ConvTranspose2d(bottom, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.merge_down, self.merge_first = convolutions(32, 16), convolutions(16, 8)
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        down = self.down(functional.max_pool2d(first, 2))
        bottom = self.bottom(functional.max_pool2d(down, 2))
        x = self.merge_down(torch.cat([self.up_to_down(bottom), down], dim=1))
        x = self.merge_first(torch.cat([self.up_to_first(x), first], dim=1))
        return self.last(x)


class Embedding(nn.Module):
    def __init__(self, words: int = 300_000, items: int = 120_000, size: int = 48) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(words, size, mode="mean")
        self.items = nn.Embedding(items, size, max_norm=2.0)  # renormed in place in forward
        self.head = nn.Linear(size, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(tokens) * self.items(tokens[:, 0]))


@dataclass(frozen=True)
class Network:
    """A model, the batches that it is trained on, and its loss."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[], Batch]


def _tokens(vocabulary: int, *shape: int) -> Batch:
    tokens = torch.randint(vocabulary, shape)
    return tokens, tokens.roll(1, 0).flatten()


NETWORKS = {
    network.name: network
    for network in (
        Network("mlp", Mlp, lambda: (torch.randn(8, 1024), torch.randint(10, (8,)))),
        Network("cnn", Cnn, lambda: (torch.randn(8, 3, 128, 128), torch.randint(10, (8,)))),
        Network("lstm", Lstm, lambda: _tokens(2000, 6, 4)),
        Network("transformer", Transformer, lambda: _tokens(6000, 2, 24)),
        Network("unet", UNet, lambda: (torch.randn(4, 1, 224, 224), torch.randint(2, (4, 224, 224)))),
        Network("embedding", Embedding, lambda: (torch.randint(120_000, (64, 12)), torch.randint(10, (64,)))),
    )
}

OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.002, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.001, foreach=False),
}


@dataclass
class Trained:
    """What a training run leaves: its losses, and everything that its model and optimizer hold."""

    losses: list[torch.Tensor]
    model: nn.Module
    optimizer: torch.optim.Optimizer

    def tensors(self) -> dict[str, torch.Tensor]:
        found = {f"loss {step}": loss for step, loss in enumerate(self.losses)}
        for name, parameter in self.model.named_parameters():
            found[name] = parameter
            if parameter.grad is not None:
                found[f"{name}.grad"] = parameter.grad
            for entry, value in self.optimizer.state[parameter].items():
                if isinstance(value, torch.Tensor):
                    found[f"{name}.{entry}"] = value
        found.update(self.model.named_buffers())
        return {name: tensor.detach() for name, tensor in found.items()}


Moved = TypeVar("Moved")


def unmoved(thing: Moved) -> Moved:
    return thing


def steps(
    network: Network,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    count: int,
    move: Callable[[torch.Tensor], torch.Tensor] = unmoved,
) -> Iterator[torch.Tensor]:
    """Trains step by step; yields each loss."""
    for _ in range(count):
        inputs, targets = map(move, network.batch())
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def train(
    network: Network,
    optimizer_name: str,
    count: int,
    move_model: Callable[[nn.Module], nn.Module] = unmoved,
    move: Callable[[torch.Tensor], torch.Tensor] = unmoved,
) -> Trained:
    """A whole run from a fixed seed. Gradients of one more backward are left in place, to be compared too."""
    torch.manual_seed(2021)
    model = move_model(network.model())
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    losses = list(steps(network, model, optimizer, count - 1, move))
    inputs, targets = map(move, network.batch())
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return Trained([*losses, loss.detach()], model, optimizer)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes: equal for equal NaNs, different for 0.0 and -0.0."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(bits(one), bits(other))


def different(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[str]:
    """The names under which two runs hold different bytes."""
    assert found.keys() == expected.keys()
    return [name for name in expected if not same_bits(found[name], expected[name])]


class PeakOfStorages(TorchDispatchMode):
    """The bytes of all storages that ops were given or made, while they live, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now_bytes = self.peak_bytes = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or size == 0:
            return
        self._known.add(key)
        self.now_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)
        weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now_bytes -= size
