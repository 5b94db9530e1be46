"""Sessions on a GPU that lacks something: each attribute that the project asks for, one by one.

The stand-in for the driver is told what to say, and the device is opened again.
"""

import ctypes
import gc
import json
import sys
from typing import Any

import torch
from torch import nn

import umadvise
from umadvise import _native
from umadvise._native.abi import Memory
from umadvise.errors import UmadviseError
from umadvise.torch_seam.runtime import address_of

MIB = 1 << 20
WIDTH = 800  # weights of 2.4 MiB


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(4)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(4)])
    return model, torch.optim.AdamW(model.parameters())


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, um: Any = None) -> list[str]:
    losses = []
    for step in range(4):
        inputs = torch.full((32, WIDTH), 0.01 * (step + 1))
        with um.step() if um else torch.enable_grad():
            loss = model(um.to_device(inputs) if um else inputs.to("cuda")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item().hex())
    return losses


def sums(model: nn.Module) -> list[str]:
    return [parameter.detach().cpu().double().sum().item().hex() for parameter in model.parameters()]


def vanilla() -> Any:
    model, optimizer = made()
    model.to("cuda")
    return {"losses": steps(model, optimizer), "sums": sums(model)}


def trained(policy: str) -> Any:
    """What a session with a budget of half of what is needed comes to, or the error that refuses it."""
    model, optimizer = made()
    budget = None if policy == "resident" else "24MiB"
    try:
        if policy == "no-advice":
            umadvise.patch(device="cuda")
            try:
                model.to("cuda")
                losses = steps(model, optimizer)
                memory = memory_of(model)
            finally:
                umadvise.unpatch()
        else:
            with umadvise.session(model, optimizer, device="cuda", budget=budget, policy=policy) as um:
                losses = steps(model, optimizer, um)
                memory = memory_of(model)
    except (UmadviseError, RuntimeError) as error:  # torch raises what its allocator was told as the latter
        return {"refused": f"{type(error).__name__}: {error}"}
    return {"losses": losses, "sums": sums(model), "memory": memory}


def memory_of(model: nn.Module) -> str:
    allocation = _native.allocation_at(address_of(next(model.parameters())))
    assert allocation is not None
    return Memory(allocation.memory).name


def lacking(cases: str) -> Any:
    """By case, on a device whose attributes have other values: {name: {"attributes": {"89": 0}, "policies": [...]}}."""
    driver, found = ctypes.CDLL("libcuda.so.1"), {}
    for name, case in json.loads(cases).items():
        changed = {int(attribute): value for attribute, value in case["attributes"].items()}
        before = {attribute: _native.cuda_attribute(0, attribute) for attribute in changed}
        for attribute, value in changed.items():
            driver.emulated_libcuda_attribute(attribute, value)
        for policy in case["policies"]:
            print(name, policy, file=sys.stderr, flush=True)
            found[f"{name} {policy}"] = trained(policy)
            gc.collect()
        for attribute, value in before.items():
            driver.emulated_libcuda_attribute(attribute, value)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
