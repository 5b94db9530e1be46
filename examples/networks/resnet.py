"""ResNet-50, 101 and 152 (He et al. 2016, table 1), the network of the window-scheduling paper's table 1.

A bottleneck halves the image in its 3 x 3 convolution, where He et al. have it in the first 1 x 1: that is what every
framework trains since 2017, with the same parameters.
"""

import torch
from torch import nn

from networks.classification import train_classifier
from umadvise.recording.workload import Workload


class _Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions around a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = 4 * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, wide, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(wide)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != wide:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, wide, 1, stride=stride, bias=False), nn.BatchNorm2d(wide))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.relu(self.norm1(self.conv1(images)))
        inner = self.relu(self.norm2(self.conv2(inner)))
        inner = self.norm3(self.conv3(inner))
        inner += self.shortcut(images)
        output: torch.Tensor = self.relu(inner)
        return output


def _resnet(name: str, layers: tuple[int, ...], batch: int, image: int, width: int, classes: int) -> Workload:
    blocks: list[nn.Module] = []
    channels = width
    for stage, count in enumerate(layers):
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            blocks.append(_Bottleneck(channels, width << stage, stride))
            channels = 4 * (width << stage)
    model = nn.Sequential(
        nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, classes),
    )
    return train_classifier(model, batch, image, classes, name)


def resnet50(
    batch: int = 64,
    *,
    image: int = 224,
    width: int = 64,
    classes: int = 1000,
    layers: tuple[int, ...] = (3, 4, 6, 3),
) -> Workload:
    """ResNet-50 on 224 x 224 images; Hayakawa and Narihira's table 1 goes from batch 64 to 1440.

    25,557,032 parameters: torchvision's documentation of `resnet50`.

    Args:
        batch: images a step.
        image: side of an image in pixels.
        width: maps of the first convolution; all others are in proportion.
        classes: number of labels that exist.
        layers: bottlenecks in each stage.
    """
    return _resnet("resnet50", layers, batch, image, width, classes)


def resnet101(
    batch: int = 64,
    *,
    image: int = 224,
    width: int = 64,
    classes: int = 1000,
    layers: tuple[int, ...] = (3, 4, 23, 3),
) -> Workload:
    """ResNet-101, options as of `resnet50`: 44,549,160 parameters (torchvision's documentation of `resnet101`)."""
    return _resnet("resnet101", layers, batch, image, width, classes)


def resnet152(
    batch: int = 64,
    *,
    image: int = 224,
    width: int = 64,
    classes: int = 1000,
    layers: tuple[int, ...] = (3, 8, 36, 3),
) -> Workload:
    """ResNet-152, options as of `resnet50`: 60,192,808 parameters (torchvision's documentation of `resnet152`)."""
    return _resnet("resnet152", layers, batch, image, width, classes)
