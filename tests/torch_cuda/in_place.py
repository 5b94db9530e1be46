"""What test_in_place.py runs: layers whose activations work in place, in plain torch and in a session.

`python in_place.py ACTIVATION [POLICY]` prints the losses, and what was swapped, as JSON.
"""

import json
import sys
from typing import Any

import torch
from torch import nn

import umadvise

MIB = 1 << 20
BUDGET_BYTES, LAYERS, STEPS = 26 * MIB, 14, 5
ACTIVATIONS = {
    "SiLU": nn.SiLU(inplace=True),
    "Hardswish": nn.Hardswish(inplace=True),
    "sin_": torch.sin_,
    "out of place": nn.SiLU(),
}


def trained(activation: str, policy: str | None) -> dict[str, Any]:
    """Each layer saves two tensors of a chunk each; the weights of all layers fit in a few chunks."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    act, losses = ACTIVATIONS[activation], []

    def step() -> None:
        x = torch.randn(2048, 256).to("cuda")
        for layer in model:
            x = act(layer(x))
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(x.detach().sum())

    if policy is None:
        model.to("cuda")
        for _ in range(STEPS):
            step()
        return {"losses": [each.item().hex() for each in losses]}
    with umadvise.session(model, optimizer, device="cuda", budget=BUDGET_BYTES, policy=policy) as um:
        for _ in range(STEPS):
            with um.step():
                step()
        counted = um.swap_counters()
    return {
        "losses": [each.item().hex() for each in losses],
        "swap_outs": counted.swap_outs,
        "peak_bytes": counted.used_peak_bytes,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(trained(*sys.argv[1:], *[None] * (3 - len(sys.argv)))) + "\n")
