"""An address is also an identity: no two live storages share one, and a storage's address never changes."""

import ctypes
import io
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
import torch
from huggingface_hub.serialization._torch import get_torch_storage_id
from torch import nn

import umadvise
from umadvise.torch_seam import runtime
from umadvise.training.session import Session

KIB, MIB = 1 << 10, 1 << 20
POLICIES = ["swap", "auto"]


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


def trained(policy: str | None, program: Callable[[int], float], budget: str = "40MiB") -> list[str]:
    """Losses of six steps of a program, in a session or, without a policy, of plain torch."""
    around: Any = nullcontext()
    if policy is not None:
        around = umadvise.session(nn.Module(), device="emulated", budget=budget, policy=policy)
    losses = []
    with around as session:
        for index in range(6):
            with session.step() if isinstance(session, Session) else nullcontext():
                losses.append(program(index).hex())
    return losses


def parameters(count: int = 8) -> list[nn.Parameter]:
    torch.manual_seed(5)
    return [nn.Parameter(torch.randn(1024, 1024) * 0.03) for _ in range(count)]


@pytest.mark.parametrize("policy", POLICIES)
def test_live_storages_have_addresses_of_their_own(policy: str) -> None:
    """Of every size: below 64 KiB, parts of shared chunks, whole chunks, and more than one; with views of them."""
    ledger = Ledger()
    sizes = [100, 60 * KIB, 64 * KIB, 300 * KIB, MIB, MIB + 4, 2 * MIB, 5 * MIB]

    def program(index: int) -> float:
        total = 0.0
        for size in sizes:
            tensor = torch.full((size // 4,), float(index + 1)).add_(1)
            if index % 2 == 0:
                ledger.note(tensor[size // 16 :])
            ledger.note(tensor)
        for tensor, _ in list(ledger.known.values()):
            total += tensor.sum().item()
            ledger.note(tensor)
        ledger.check()
        return total

    expected = trained(None, program)
    ledger.known.clear()
    assert trained(policy, program, "16MiB") == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_saved_tensors_that_are_told_apart_by_address(policy: str) -> None:
    """As hooks do that keep each activation once: by address, shape and strides."""

    def program_of() -> Callable[[int], float]:
        weights, kept = parameters(6), {}

        def pack(tensor: torch.Tensor) -> tuple[Any, ...]:
            key = (tensor.data_ptr(), tensor.shape, tensor.stride())
            kept.setdefault(key, tensor)
            return key

        def program(index: int) -> float:
            x = torch.linspace(-1, 1, 1024 * 256).reshape(256, 1024) * (index + 1)
            with torch.autograd.graph.saved_tensors_hooks(pack, kept.__getitem__):
                for weight in weights:
                    x = torch.tanh(x @ weight) + x * 0.1
                loss = x.square().mean()
            loss.backward()
            kept.clear()
            with torch.no_grad():
                for weight in weights:
                    weight -= 0.1 * weight.grad
                    weight.grad = None
            return loss.item()

        return program

    assert trained(policy, program_of()) == trained(None, program_of())


@pytest.mark.parametrize("policy", POLICIES)
def test_optimizer_state_that_is_kept_by_address(policy: str) -> None:
    """As fused optimizers of extensions do: the momentum of a parameter is found by its address, step after step."""

    def program_of() -> Callable[[int], float]:
        weights, momenta = parameters(), {}

        def program(index: int) -> float:
            x = torch.linspace(-1, 1, 64 * 1024).reshape(64, 1024) * (index + 1)
            for weight in weights:
                x = torch.tanh(x @ weight)
            loss = x.square().mean()
            loss.backward()
            with torch.no_grad():
                for weight in weights:
                    momentum = momenta.setdefault(weight.data_ptr(), torch.zeros_like(weight))
                    weight -= 0.1 * momentum.mul_(0.9).add_(weight.grad)
                    weight.grad = None
            assert len(momenta) == len(weights)
            return loss.item()

        return program

    assert trained(policy, program_of()) == trained(None, program_of())


@pytest.mark.parametrize("policy", POLICIES)
def test_weights_are_tied_only_where_they_are(policy: str) -> None:
    """By whoever compares: this module, libraries that are known to do no more, and a saver that writes each once."""

    def ties(names: dict[str, torch.Tensor], address: Callable[[torch.Tensor], Any]) -> list[list[str]]:
        groups: dict[Any, list[str]] = {}
        for name, tensor in names.items():
            groups.setdefault(address(tensor), []).append(name)
        return sorted(group for group in groups.values() if len(group) > 1)

    weights = {str(index): weight for index, weight in enumerate(parameters(12))}
    weights["tied"] = nn.Parameter(weights["3"].detach())
    with umadvise.session(
        nn.ParameterList(weights.values()), device="emulated", budget="20MiB", policy=policy
    ) as session:
        for _ in range(5):
            with session.step():
                sum(weight.square().sum() for weight in weights.values()).backward()
                for weight in weights.values():
                    weight.grad = None
            for address in (get_torch_storage_id, torch.Tensor.data_ptr, lambda t: t.untyped_storage().data_ptr()):
                assert ties(weights, address) == [["3", "tied"]]
        file = io.BytesIO()
        torch.save({name: weight.detach() for name, weight in weights.items()}, file)
        assert len(file.getvalue()) < 13 * 4 * MIB  # the tied one once
        file.seek(0)
        assert all(torch.equal(tensor, weights[name]) for name, tensor in torch.load(file).items())


@pytest.mark.parametrize("policy", POLICIES)
def test_storages_that_sleep_and_wake(policy: str) -> None:
    """As sharded models do: storages are resized to nothing and back, and everyone keeps an address of its own."""
    weights = [weight.detach() for weight in parameters()]
    host = [weight.clone().numpy().copy() for weight in weights]

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

    expected = trained(None, program)
    assert trained(policy, program, "20MiB") == expected


def test_an_address_shows_its_tensor_or_nothing() -> None:
    """However long ago it was asked for, and wherever its tensor lies: an access outside of ops is served."""
    with umadvise.session(nn.Module(), device="emulated", budget="16MiB", policy="swap"):
        sizes = [4 * MIB, 300 * KIB, 3 * MIB, 70 * KIB] * 4
        tensors = [torch.full((size,), index, dtype=torch.uint8).add_(1) for index, size in enumerate(sizes)]
        addresses = [tensor.data_ptr() for tensor in tensors]
        for round_ in range(3):
            for index, address in enumerate(addresses):
                assert ctypes.string_at(address, sizes[index]) == bytes([index + round_ + 1]) * sizes[index]
                tensors[index].add_(1)
        for index, address in enumerate(addresses):
            ctypes.memset(address, index, sizes[index])
        assert [int(tensor.max()) for tensor in tensors] == list(range(16))
        assert [tensor.data_ptr() for tensor in tensors] == addresses


def test_a_steady_step_maps_nothing_for_addresses_that_were_asked_for_once() -> None:
    weights = parameters()
    optimizer = torch.optim.SGD(weights, lr=0.1)
    with umadvise.session(
        nn.ParameterList(weights), optimizer, device="emulated", budget="28MiB", policy="swap"
    ) as session:
        addresses = [weight.data_ptr() for weight in weights]
        calls = []
        for _ in range(12):
            with session.step():
                x = session.to_device(torch.ones(64, 1024))
                for weight in weights:
                    x = torch.tanh(x @ weight)
                x.square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            calls.append(runtime.current().device.calls("cuMemMap"))
        assert session.swap_counters().swap_ins > 0
        assert calls[-1] == calls[-4]
        assert [weight.data_ptr() for weight in weights] == addresses
