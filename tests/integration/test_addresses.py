"""An address is also an identity: no two live storages share one, and a storage's address never changes."""

import ctypes
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from address_programs import KIB, MIB, PROGRAMS, parameters
from huggingface_hub.serialization._torch import get_torch_storage_id
from torch import nn

import umadvise
from umadvise.torch_seam import runtime

POLICIES = ["swap", "auto"]
STEPS = 6


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_take_addresses_for_identities(name: str, policy: str) -> None:
    make, budget_mib = PROGRAMS[name]
    plain = make("cpu")
    expected = [plain(index) for index in range(STEPS)]
    with umadvise.session(nn.Module(), device="emulated", budget=f"{budget_mib}MiB", policy=policy) as session:
        with session.step():
            program = make("cpu")  # its tensors are on the device
        for index in range(STEPS):
            with session.step():
                assert program(index) == expected[index]
        assert policy == "auto" or session.swap_counters().swap_outs > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_weights_are_tied_only_where_they_are(policy: str) -> None:
    """By code that compares addresses: this module, libraries that do no more, and a saver that writes each once."""

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
                torch.stack([weight.square().sum() for weight in weights.values()]).sum().backward()
                for weight in weights.values():
                    weight.grad = None
            for address in (get_torch_storage_id, torch.Tensor.data_ptr, lambda t: t.untyped_storage().data_ptr()):
                assert ties(weights, address) == [["3", "tied"]]
        file = io.BytesIO()
        torch.save({name: weight.detach() for name, weight in weights.items()}, file)
        assert len(file.getvalue()) < 13 * 4 * MIB  # the tied one once
        file.seek(0)
        assert all(torch.equal(tensor, weights[name]) for name, tensor in torch.load(file).items())


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
    device = umadvise.EmulatedDevice(
        "256MiB", clock="v100-16gb"
    )  # in virtual time plans come in the same step each time
    with umadvise.session(
        nn.ParameterList(weights), optimizer, device=device, budget="28MiB", policy="swap"
    ) as session:
        addresses = [weight.data_ptr() for weight in weights]
        calls = []
        for _ in range(16):
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
