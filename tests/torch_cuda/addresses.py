"""What test_addresses.py runs: programs that take addresses for identities, in plain torch and in a session."""

import json
import sys
from typing import Any

import torch
from address_programs import PROGRAMS, parameters
from torch import nn

import umadvise
from umadvise import _native

STEPS = 6


def ran(name: str, policy: str | None = None) -> dict[str, Any]:
    """Losses of a program in plain torch, or in a session that has too little memory for all of it."""
    make, budget_mib = PROGRAMS[name]
    if policy is None:
        plain = make("cuda")
        return {"losses": [plain(index).hex() for index in range(STEPS)]}
    losses = []
    with umadvise.session(nn.Module(), device="cuda", budget=budget_mib << 20, policy=policy) as session:
        program = make("cuda")
        for index in range(STEPS):
            with session.step():
                losses.append(program(index).hex())
        moved = session.swap_counters().swap_outs > 0 or session.memory_stats().host_peak_bytes > 0
    return {"losses": losses, "moved": moved}


def mappings() -> int:
    """Chunks that the driver has mapped so far."""
    return sum(made.calls for made in _native.cuda_calls() if made.function == "cuMemMap")


def mapped_once() -> list[int]:
    """Chunks that the driver maps in each step of a training whose parameters' addresses were asked for once."""
    weights = parameters(8)
    optimizer = torch.optim.SGD(weights, lr=0.1)
    mapped = []
    with umadvise.session(
        nn.ParameterList(weights), optimizer, device="cuda", budget="28MiB", policy="swap"
    ) as session:
        addresses = [weight.data_ptr() for weight in weights]
        for _ in range(16):
            before = mappings()
            with session.step():
                x = torch.ones(64, 1024, device="cuda")
                for weight in weights:
                    x = torch.tanh(x @ weight)
                x.square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            mapped.append(mappings() - before)
        assert session.swap_counters().swap_ins > 0
        assert [weight.data_ptr() for weight in weights] == addresses
    return mapped


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])) + "\n")
