"""A detector in the style of YOLO: `SiLU(inplace=True)` after each convolution, a pyramid, and an average of weights.

python detection.py
"""

import copy
from typing import cast

import torch
from real_data import enlarged_digits
from telling import SHORT, tell, tell_state
from torch import Tensor, nn
from torch.nn import functional

SIDE, BATCH, STEPS, CLASSES = 96, 8, 4 if SHORT else 8, 10
STRIDES = (8, 16, 32)


class Convolution(nn.Sequential):
    """With a norm, and the activation in place."""

    def __init__(self, channels: int, out: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(out, eps=1e-3, momentum=0.03),
            nn.SiLU(inplace=True),
        )


class CrossStage(nn.Module):
    """Half of the channels pass through bottlenecks, and all that they give is joined."""

    def __init__(self, channels: int, out: int, depth: int = 1) -> None:
        super().__init__()
        half = out // 2
        self.enter, self.leave = Convolution(channels, out), Convolution((2 + depth) * half, out)
        self.blocks = nn.ModuleList(
            nn.Sequential(Convolution(half, half, 3), Convolution(half, half, 3)) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.enter(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]))
        return cast(Tensor, self.leave(torch.cat(parts, 1)))


class Pooling(nn.Module):
    """Three poolings in a row, joined."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter, self.leave = Convolution(channels, channels // 2), Convolution(channels * 2, channels)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.enter(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return cast(Tensor, self.leave(torch.cat(parts, 1)))


class Detector(nn.Module):
    """A box, an objectness and a class for each cell of three grids."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Sequential(Convolution(3, width, 3, 2), Convolution(width, width * 2, 3, 2))
        self.fine = nn.Sequential(CrossStage(width * 2, width * 2), Convolution(width * 2, width * 4, 3, 2))
        self.middle = nn.Sequential(CrossStage(width * 4, width * 4, 2), Convolution(width * 4, width * 8, 3, 2))
        self.coarse = nn.Sequential(
            CrossStage(width * 8, width * 8), Convolution(width * 8, width * 16, 3, 2), Pooling(width * 16)
        )
        self.up_middle, self.up_fine = CrossStage(width * 24, width * 8), CrossStage(width * 12, width * 4)
        self.heads = nn.ModuleList(
            nn.Sequential(Convolution(channels, width * 2, 3), nn.Conv2d(width * 2, 5 + CLASSES, 1))
            for channels in (width * 4, width * 8, width * 16)
        )

    def forward(self, pictures: Tensor) -> list[Tensor]:
        fine = self.fine(self.stem(pictures))
        middle = self.middle(fine)
        coarse = self.coarse(middle)
        middle = self.up_middle(torch.cat((functional.interpolate(coarse, scale_factor=2.0), middle), 1))
        fine = self.up_fine(torch.cat((functional.interpolate(middle, scale_factor=2.0), fine), 1))
        return [head(level) for head, level in zip(self.heads, (fine, middle, coarse), strict=True)]


def loss_of(grids: list[Tensor], labels: Tensor) -> Tensor:
    """Each picture has one object, in its middle."""
    total = grids[0].new_zeros(())
    for grid, stride in zip(grids, STRIDES, strict=True):
        at = SIDE // stride // 2
        there = torch.zeros_like(grid[:, 4])
        there[:, at, at] = 1
        cell = grid[:, :, at, at]
        box = cell[:, :4].clone().sigmoid_().sub(0.5).abs().mean()
        kind = functional.cross_entropy(cell[:, 5:], labels)
        total = total + box + kind + functional.binary_cross_entropy_with_logits(grid[:, 4], there)
    return total


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(5)
    model = Detector().to(device)
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.937, weight_decay=5e-4, nesterov=True)
    pictures, labels = enlarged_digits(SIDE)
    tell("begin")
    for step in range(STEPS):
        chosen = slice(step * BATCH, (step + 1) * BATCH)
        loss = loss_of(model(pictures[chosen].to(device)), labels[chosen].to(device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        with torch.no_grad():
            for kept, now in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
                if kept.is_floating_point():
                    kept.mul_(0.9).add_(now, alpha=0.1)
        tell("loss", loss)
    average.eval()
    with torch.no_grad():
        tell("answers", torch.cat([grid.flatten() for grid in average(pictures[-BATCH:].to(device))]))
    tell_state(model, optimizer)
    tell_state(average)


if __name__ == "__main__":
    main()
