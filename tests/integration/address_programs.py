"""Programs that take a tensor's address for its identity, as hooks, optimizers and savers of libraries do.

Each function makes a program: called with the number of a step, it runs that step and returns a loss.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn

KIB, MIB = 1 << 10, 1 << 20
SIZES = (100, 60 * KIB, 64 * KIB, 300 * KIB, MIB, MIB + 4, 2 * MIB, 5 * MIB)
"""Of storages, in bytes: below 64 KiB, parts of shared chunks, whole chunks, and more than one."""
Program = Callable[[int], float]


class Ledger:
    """What storages said their addresses were, for as long as they live: they are kept."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[torch.Tensor, int]] = {}

    def note(self, tensor: torch.Tensor) -> int:
        """Asks for a tensor's address, and compares it with what its storage said before."""
        address = tensor.data_ptr()
        base = address - tensor.storage_offset() * tensor.element_size()
        kept, before = self.known.setdefault(tensor.untyped_storage()._cdata, (tensor, base))
        assert base == before, "a storage has another address than before"
        assert kept.untyped_storage().data_ptr() == before
        return address

    def check(self) -> None:
        """No two live storages overlap, wherever they lie now."""
        ranges = sorted((base, base + tensor.untyped_storage().nbytes()) for tensor, base in self.known.values())
        for (_, end), (begin, _) in pairwise(ranges):
            assert end <= begin, "two live storages share an address"


def placed(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """The tensor on a device; on the emulated one, whose tensors are the CPU's, it is there already."""
    return tensor if device == "cpu" else tensor.to(device)


def parameters(count: int = 8, device: str = "cpu") -> list[nn.Parameter]:
    """Of 4 MiB each."""
    torch.manual_seed(5)
    return [nn.Parameter(placed(torch.randn(1024, 1024) * 0.03, device)) for _ in range(count)]


def inputs(rows: int, index: int, device: str) -> torch.Tensor:
    return placed(torch.linspace(-1, 1, rows * 1024).reshape(rows, 1024) * (index + 1), device)


def of_every_size(device: str) -> Program:
    """Storages of all sizes stay alive, and are used and asked for in turn; of some, views are asked for first."""
    ledger = Ledger()

    def program(index: int) -> float:
        total = 0.0
        for size in SIZES:
            tensor = torch.full((size // 4,), float(index + 1), device=device).add_(1)
            if index % 2 == 0:
                ledger.note(tensor[size // 16 :])
            ledger.note(tensor)
        for tensor, _ in list(ledger.known.values()):
            total += tensor.sum().item()
            ledger.note(tensor)
        ledger.check()
        return total

    return program


def kept_by_hooks(device: str) -> Program:
    """Saved tensors are kept once: by address, shape and strides."""
    weights = parameters(6, device)
    kept: dict[tuple[Any, ...], torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> tuple[Any, ...]:
        key = (tensor.data_ptr(), tensor.shape, tensor.stride())
        kept.setdefault(key, tensor)
        return key

    def program(index: int) -> float:
        x = inputs(256, index, device)
        with torch.autograd.graph.saved_tensors_hooks(pack, kept.__getitem__):
            for weight in weights:
                x = torch.tanh(x @ weight) + x * 0.1
            loss = x.square().mean()
        loss.backward()
        kept.clear()
        with torch.no_grad():
            for weight in weights:
                assert weight.grad is not None
                weight -= 0.1 * weight.grad
                weight.grad = None
        return loss.item()

    return program


def kept_by_optimizer(device: str) -> Program:
    """The momentum of a parameter is found by its address, step after step."""
    weights = parameters(8, device)
    momenta: dict[int, torch.Tensor] = {}

    def program(index: int) -> float:
        x = inputs(64, index, device)
        for weight in weights:
            x = torch.tanh(x @ weight)
        loss = x.square().mean()
        loss.backward()
        with torch.no_grad():
            for weight in weights:
                assert weight.grad is not None
                momentum = momenta.setdefault(weight.data_ptr(), torch.zeros_like(weight))
                weight -= 0.1 * momentum.mul_(0.9).add_(weight.grad)
                weight.grad = None
        assert len(momenta) == len(weights)
        return loss.item()

    return program


def asleep_by_turns(device: str) -> Program:
    """As sharded models do: storages are resized to nothing and back, and each keeps an address of its own."""
    weights = [weight.detach() for weight in parameters(8, device)]
    host = [weight.cpu().clone().numpy().copy() for weight in weights]

    def program(index: int) -> float:
        ledger, total = Ledger(), 0.0
        for number, weight in enumerate(weights):
            storage = weight.untyped_storage()
            if (number + index) % 2 == 0:
                size = storage.nbytes()
                storage.resize_(0)
                assert storage.data_ptr() == 0
                storage.resize_(size)
                weight.copy_(torch.from_numpy(host[number]))
            ledger.note(weight)
        for weight in weights:
            ledger.note(weight)
            total += (weight * (index + 1)).sum().item()
        ledger.check()
        return total

    return program


PROGRAMS: dict[str, tuple[Callable[[str], Program], int]] = {
    function.__name__: (function, budget_mib)
    for function, budget_mib in (
        (of_every_size, 16),
        (kept_by_hooks, 40),
        (kept_by_optimizer, 40),
        (asleep_by_turns, 20),
    )
}
"""By name: how a program is made on a device, and the budget to run it in, which is too small for all of it."""
