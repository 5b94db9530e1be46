"""Programs on a machine with two GPUs, one of which umadvise has in use: the same in plain torch and in sessions."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from several import main
from torch import nn
from torch.nn import functional

import umadvise
from umadvise import _native
from umadvise._native.abi import Memory
from umadvise.torch_seam.runtime import address_of

MIB = 1 << 20
WIDTH = 700  # weights of 1.9 MiB


@contextmanager
def under(policy: str, model: nn.Module, optimizer: torch.optim.Optimizer, device: str) -> Iterator[Any]:
    """What is around a step and what moves a batch: of plain torch, or of a session on a device."""
    if policy == "plain":
        model.to(device)
        yield None
        return
    budget = None if policy == "resident" else "16MiB"
    with umadvise.session(model, optimizer, device=device, budget=budget, policy=policy) as um:
        yield um


def placed(tensor: torch.Tensor) -> list[Any]:
    """Its device, and the kind of memory it has; None where it is not ours."""
    allocation = _native.allocation_at(address_of(tensor))
    return [str(tensor.device), None if allocation is None else Memory(allocation.memory).name]


def sums(model: nn.Module) -> list[str]:
    return [parameter.detach().cpu().double().sum().item().hex() for parameter in model.parameters()]


def layers(count: int) -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(count)])


def trained(policy: str, device: str) -> Any:
    """A model on one GPU alone, and what is left on both."""
    torch.manual_seed(7)
    model, losses = layers(4), []
    optimizer = torch.optim.AdamW(model.parameters())
    with under(policy, model, optimizer, device) as um:
        for step in range(4):
            inputs = torch.full((64, WIDTH), 0.01 * (step + 1))
            with um.step() if um else torch.enable_grad():
                loss = model(um.to_device(inputs) if um else inputs.to(device)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item().hex())
        where = str(next(model.parameters()).device)
    return {"losses": losses, "sums": sums(model), "where": where}


def pipeline(policy: str) -> Any:
    """Half of the model is on each GPU; that of the first one is in a session."""
    torch.manual_seed(8)
    front, back, losses = layers(3), layers(2).to("cuda:1") if policy == "plain" else layers(2), []
    optimizers = [torch.optim.AdamW(front.parameters()), torch.optim.AdamW(back.parameters())]
    with under(policy, front, optimizers[0], "cuda:0") as um:
        back.to("cuda:1")
        for step in range(5):
            inputs = torch.full((64, WIDTH), 0.01 * (step + 1))
            with um.step() if um else torch.enable_grad():
                hidden = front(um.to_device(inputs) if um else inputs.to("cuda:0"))
                loss = functional.mse_loss(back(hidden.to("cuda:1")).to("cuda:0"), hidden)
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            losses.append(loss.item().hex())
    return {"losses": losses, "sums": sums(front) + sums(back)}


@contextmanager
def patched(device: str) -> Iterator[None]:
    """ "plain" is nothing."""
    if device != "plain":
        umadvise.patch(device=device)
    try:
        yield
    finally:
        if device != "plain":
            umadvise.unpatch()


def spellings(in_use: str) -> Any:
    """Where tensors go that are moved or made for one GPU or the other while one of them is in use."""
    with patched(in_use):
        return where_they_are()


def where_they_are() -> Any:
    host, seen = torch.arange(1000.0), {}
    for device in ("cuda:0", "cuda:1"):
        made = {
            "to": host.to(device),
            "to device": host.to(torch.device(device)),
            "cuda": host.cuda(int(device[-1])),
            "factory": torch.arange(1000.0, device=device),
            "module": nn.Linear(1000, 1, bias=False).to(device).weight.detach()[0] * 0 + host.to(device),
            "like": torch.empty_like(host, device=device).copy_(host),
            "deepcopy": copy.deepcopy(host.to(device)),
            "new": host.to(device).new_tensor(host.tolist()),
            "across": host.to("cuda:1" if device == "cuda:0" else "cuda:0").to(device),
        }
        seen[device] = {name: placed(tensor) for name, tensor in made.items()}
        assert all(torch.equal(tensor.cpu(), host) for tensor in made.values())
        assert torch.equal(sum(made.values()).cpu(), host * len(made))
    return seen


def current(in_use: str) -> Any:
    """What "cuda" without an index means where another device is the current one, as torch has it."""
    seen = {}
    for index in (0, 1):
        with patched(in_use), torch.cuda.device(index):
            made = [torch.ones(3).cuda(), torch.ones(3).to("cuda"), torch.ones(3, device="cuda")]
            made += [nn.Linear(2, 2).cuda().weight, nn.Linear(2, 2).to("cuda").weight]
            seen[index] = [str(tensor.device) for tensor in made]
    return seen


def streams(in_use: str) -> Any:
    """Copies between GPUs in streams of their own, of memory that is freed while they run."""
    with patched(in_use):
        return wrong_elements()


def wrong_elements() -> int:
    sides, wrong = [torch.cuda.Stream(device=index) for index in (0, 1)], 0
    for number in range(20):
        source = torch.full((1 << 18,), float(number), device="cuda:0")
        sides[0].wait_stream(torch.cuda.current_stream(0))
        with torch.cuda.stream(sides[0]):
            doubled = source * 2
        source.record_stream(sides[0])
        del source
        torch.full((1 << 18,), -1.0, device="cuda:0")
        sides[1].wait_stream(sides[0])
        with torch.cuda.stream(sides[0]), torch.cuda.stream(sides[1]):
            there = doubled.to("cuda:1", non_blocking=True) + 1
        torch.cuda.current_stream(1).wait_stream(sides[1])
        wrong += int((there != 2 * number + 1).sum())
        there.record_stream(torch.cuda.current_stream(1))
        doubled.record_stream(sides[1])
    return wrong


if __name__ == "__main__":
    main(globals())
