"""DenseNet-121 (Huang et al. 2017, table 1), which the window-scheduling paper trains on 224 x 224 images."""

import torch
from torch import nn

from networks.classification import train_classifier
from umadvise.recording.workload import Workload


class _DenseLayer(nn.Module):
    """Normalizes all maps so far, makes `growth` new ones through a bottleneck, and returns old and new ones."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.new_maps = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        return torch.cat([maps, self.new_maps(maps)], 1)


def densenet121(
    batch: int = 256,
    *,
    image: int = 224,
    growth: int = 32,
    classes: int = 1000,
    blocks: tuple[int, ...] = (6, 12, 24, 16),
) -> Workload:
    """DenseNet-121 on 224 x 224 images, in batches of 256 as in Huang et al., section 4.2.

    7,978,856 parameters: torchvision's documentation of `densenet121`. The window-scheduling paper (section 5.2) does
    not say which DenseNet it trains; at the batch of 512 that it fits in 16 GB it cannot have been this one.

    Args:
        batch: images a step.
        image: side of an image in pixels.
        growth: maps that each layer adds.
        classes: number of labels that exist.
        blocks: layers in each dense block.
    """
    channels = 2 * growth
    layers: list[nn.Module] = [
        nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    for index, count in enumerate(blocks):
        if index > 0:  # a transition: half the maps, half the side
            layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
        for _ in range(count):
            layers.append(_DenseLayer(channels, growth))
            channels += growth
    layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(channels, classes))
    return train_classifier(model, batch, image, classes, "densenet121")
