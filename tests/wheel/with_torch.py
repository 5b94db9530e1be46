"""An installed umadvise trains on the emulated device, in less memory than a step needs: plain PyTorch's losses."""

import io
import sys
from contextlib import redirect_stdout
from pathlib import Path

import torch
from torch import nn

import umadvise

CAPACITY_BYTES = 64 << 20
STEPS = 4


def network() -> tuple[nn.Module, torch.optim.Optimizer]:
    """48 MiB of parameters, which take three times as much with gradients and momenta; the same ones each time."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(12) for layer in (nn.Linear(1024, 1024), nn.ReLU())))
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> float:
    """One step; the loss."""
    optimizer.zero_grad()
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def main() -> None:
    """Trains twice, and compares to the last bit."""
    assert Path(umadvise.__file__).is_relative_to(sys.prefix), umadvise.__file__
    batch = torch.rand(64, 1024, generator=torch.Generator().manual_seed(1))
    model, optimizer = network()
    plain = [train(model, optimizer, batch) for _ in range(STEPS)]

    model, optimizer = network()
    within = []
    with umadvise.session(model, optimizer, device="emulated", capacity=CAPACITY_BYTES) as um:
        for _ in range(STEPS):
            with um.step():
                within.append(train(model, optimizer, um.to_device(batch)))
        with redirect_stdout(io.StringIO()) as printed:
            um.report("with_torch.json")
    assert within == plain, f"{within} is not {plain}"
    assert len(set(plain)) == STEPS, f"nothing was learnt: {plain}"
    assert "Memory traffic" in printed.getvalue()
    print(f"with torch {torch.__version__}: {STEPS} steps in {CAPACITY_BYTES >> 20} MiB, the same losses")


if __name__ == "__main__":
    main()
