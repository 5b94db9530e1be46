"""Trains a small network twice on the emulated device, paged and swapped, and writes the reports that browsers open.

python tests/browser/reports.py FOLDER
"""

import sys
from pathlib import Path

import torch
from torch import nn

import umadvise
from umadvise.__main__ import main
from umadvise.records import fault_profile


class Attention(nn.Module):
    """A block with names of several levels."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(256, 4, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Attention, and then what follows it, each beside what came in."""
        batch = batch + self.attention(batch, batch, batch, need_weights=False)[0]
        out: torch.Tensor = batch + self.feed(batch)
        return out


def train(policy: str, path: Path) -> None:
    """Five steps in less than half of the memory that they need."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Attention() for _ in range(6)))
    optimizer = torch.optim.Adam(model.parameters())
    with umadvise.session(model, optimizer, device="emulated", capacity="48MiB", policy=policy) as um:
        for _ in range(5):
            with um.step():
                model(um.to_device(torch.ones(8, 128, 256))).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        fault_profile.write(um.profile(predict=True), path)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    paged, swapped = folder / "paged.json", folder / "swapped.json"
    train("advise", paged)
    train("swap", swapped)
    main(["report", str(swapped), "--html", str(folder / "one.html")])
    main(["report", str(paged), "--against", str(swapped), "--html", str(folder / "two.html")])
