"""Every optimizer of torch.optim, one after another, in each way of stepping that it has.

python optimizers.py GROUP
"""

import inspect
import sys
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any

import torch
from real_data import enlarged_digits
from telling import SHORT, tell, tell_state
from torch import nn, optim
from torch.nn import functional

SIDE, BATCH, STEPS, WIDTH = 24, 64, 3 if SHORT else 5, 640
GROUPS = {
    "lbfgs": ("LBFGS",),
    "sparse": ("SparseAdam",),
    "light": ("ASGD", "Adafactor", "Adagrad", "Muon", "RMSprop", "Rprop", "SGD"),
}
"""By what they keep of each parameter, so that a budget is tight for each; all others keep two tensors."""
OPTIONS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 1e-2, "momentum": 0.9, "nesterov": True},
    "RMSprop": {"momentum": 0.5},
    "LBFGS": {"history_size": 4, "max_iter": 4, "line_search_fn": "strong_wolfe"},
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def of_group(group: str) -> list[type[optim.Optimizer]]:
    kinds = {
        name: kind
        for name, kind in vars(optim).items()
        if inspect.isclass(kind) and issubclass(kind, optim.Optimizer) and kind is not optim.Optimizer
    }
    grouped = {name for names in GROUPS.values() for name in names}
    assert grouped <= kinds.keys()
    return [kinds[name] for name in sorted(GROUPS.get(group) or kinds.keys() - grouped)]


def ways(kind: type[optim.Optimizer]) -> Iterator[dict[str, Any]]:
    """As it is by default, and with each implementation that can be chosen."""
    yield {}
    for option in ("foreach", "fused"):
        if option in inspect.signature(kind).parameters and not (option == "foreach" and kind is optim.Adafactor):
            yield {option: True}


def dense() -> nn.Module:
    widths = [SIDE * SIDE, *[WIDTH] * 4]
    layers = [(nn.Linear(taken, given, bias=False), nn.ReLU()) for taken, given in pairwise(widths)]
    return nn.Sequential(*chain.from_iterable(layers), nn.Linear(WIDTH, 10, bias=False))


def train(kind: type[optim.Optimizer], way: dict[str, Any]) -> None:
    torch.manual_seed(6)
    model = dense().to(DEVICE)
    optimizer = kind(model.parameters(), **OPTIONS.get(kind.__name__, {}), **way)
    pictures, labels = enlarged_digits(SIDE, channels=1)
    tell(kind.__name__, way)
    for step in range(STEPS):
        chosen = slice(step * BATCH, (step + 1) * BATCH)
        inputs, wanted = pictures[chosen].flatten(1).to(DEVICE), labels[chosen].to(DEVICE)

        def closure(inputs: torch.Tensor = inputs, wanted: torch.Tensor = wanted) -> torch.Tensor:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), wanted)
            loss.backward()
            return loss

        tell("loss", optimizer.step(closure))
    tell_state(model, optimizer)


def train_sparse(kind: type[optim.Optimizer]) -> None:
    """SparseAdam is for gradients of few rows."""
    torch.manual_seed(6)
    words = nn.EmbeddingBag(8000, WIDTH, sparse=True).to(DEVICE)
    answer = nn.Linear(WIDTH, 10).to(DEVICE)
    several = [kind(words.parameters()), optim.SGD(answer.parameters(), lr=0.1)]
    pictures, labels = enlarged_digits(SIDE, channels=1)
    tell(kind.__name__)
    for step in range(2 * STEPS):
        chosen = slice(step * BATCH, (step + 1) * BATCH)
        seen = (pictures[chosen].flatten(1) * 15).long() + torch.arange(SIDE * SIDE) % 500 * 16
        loss = functional.cross_entropy(answer(words(seen.to(DEVICE))), labels[chosen].to(DEVICE))
        loss.backward()
        for optimizer in several:
            optimizer.step()
            optimizer.zero_grad()
        tell("loss", loss)
    tell_state(nn.Sequential(words, answer), *several)


def main() -> None:
    tell("begin")
    for kind in of_group(sys.argv[1]):
        if kind is optim.SparseAdam:
            train_sparse(kind)
        else:
            for way in ways(kind):
                train(kind, way)


if __name__ == "__main__":
    main()
