"""ResNet-110 with stochastic depth, the network of the DQN paper whose structure changes from step to step.

Huang et al. 2016 ("Deep networks with stochastic depth", section 3): block l of L survives a step with probability
1 - l / L * (1 - p_L), p_L = 0.5; a block that does not is its shortcut alone. The network is He et al.'s for CIFAR-10
(2016, section 4.2) with shortcuts without parameters. The DQN paper (section 5) trains it on CIFAR-10 too.
"""

import random

import torch
from torch import nn

from networks.classification import train_classifier
from umadvise.recording.workload import Workload

_LAST_SURVIVAL = 0.5


class _Block(nn.Module):
    """Two 3 x 3 convolutions around a shortcut that averages and pads with zero maps where the shape changes."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        stride = 1 if channels == width else 2
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.stride = stride
        self.added_channels = width - channels

    def forward(self, images: torch.Tensor, survives: bool) -> torch.Tensor:
        shortcut = images
        if self.stride > 1:
            shortcut = nn.functional.avg_pool2d(shortcut, self.stride)
            shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, 0, self.added_channels))
        if survives:
            shortcut = shortcut + self.convolutions(images)
        return nn.functional.relu(shortcut)


class _StochasticDepth(nn.Module):
    """Draws the blocks of every step from a generator of its own: on the host, so that any device can follow."""

    def __init__(self, blocks_per_stage: int, width: int, classes: int, seed: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )
        widths = [width << stage for stage in range(3) for _ in range(blocks_per_stage)]
        self.blocks = nn.ModuleList(
            _Block(channels, wide) for channels, wide in zip([width, *widths], widths, strict=False)
        )
        self.head = nn.Linear(4 * width, classes)
        self.generator = random.Random(seed)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.stem(images)
        for index, block in enumerate(self.blocks, 1):
            survival = 1 - index / len(self.blocks) * (1 - _LAST_SURVIVAL)
            features = block(features, self.generator.random() < survival)
        output: torch.Tensor = self.head(features.mean((2, 3)))
        return output


def stochastic_depth_resnet(
    batch: int = 128, *, image: int = 32, width: int = 16, classes: int = 10, blocks: int = 18, seed: int = 0
) -> Workload:
    """ResNet-110 with stochastic depth on CIFAR-10's 32 x 32 images; every step draws other blocks.

    1,727,962 parameters: 1.7 million in He et al. 2016, table 6; to the last one the sum over its layers.

    Args:
        batch: images a step; 128 in Huang et al., section 4.
        image: side of an image in pixels, a multiple of 4.
        width: maps of the first of three stages; each stage doubles them.
        classes: number of labels that exist.
        blocks: blocks in each stage: 6 * blocks + 2 layers.
        seed: seed of the draws: the n-th steps of two workloads with one seed run the same blocks.
    """
    model = _StochasticDepth(blocks, width, classes, seed)
    return train_classifier(model, batch, image, classes, "stochastic_depth_resnet", nesterov=True)
