"""DeepLabv3+ (Chen et al. 2018): a modified Xception, atrous pyramid pooling and a decoder, on PASCAL VOC.

The backbone is the Xception-65 of section 3.3 and figure 4 at output stride 16, the atrous rates those of section 4: of
the backbones in the paper the best, and the one of nnabla's example, the framework of the window-scheduling paper.
"""

import torch
from torch import nn

from networks.classification import cross_entropy
from umadvise.recording.workload import Workload, training_step

_NORM_EPSILON = 1e-3
_RATES = (6, 12, 18)


def _normalized(
    channels: int, width: int, kernel: int, *, stride: int = 1, rate: int = 1, groups: int = 1
) -> nn.Sequential:
    padding = rate * (kernel // 2)
    convolution = nn.Conv2d(
        channels, width, kernel, stride=stride, padding=padding, dilation=rate, groups=groups, bias=False
    )
    return nn.Sequential(convolution, nn.BatchNorm2d(width, eps=_NORM_EPSILON))


def _separable(channels: int, width: int, *, stride: int = 1, rate: int = 1) -> nn.Sequential:
    """A 3 x 3 convolution of each map on its own, then a 1 x 1 of all."""
    depthwise = _normalized(channels, channels, 3, stride=stride, rate=rate, groups=channels)
    return nn.Sequential(depthwise, _normalized(channels, width, 1))


class _XceptionBlock(nn.Module):
    """Three separable convolutions, each behind a ReLU, around a shortcut; the last one takes the stride."""

    def __init__(self, channels: int, widths: tuple[int, int, int], stride: int = 1) -> None:
        super().__init__()
        first, second, third = widths
        self.convolution1 = _separable(channels, first)
        self.convolution2 = _separable(first, second)
        self.convolution3 = _separable(second, third, stride=stride)
        self.shortcut: nn.Module = nn.Identity()
        if channels != third:
            self.shortcut = _normalized(channels, third, 1, stride=stride)

    def forward(self, maps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the output, and what goes in at the stride: the decoder wants it from the second block."""
        before_stride = self.convolution2(torch.relu(self.convolution1(torch.relu(maps))))
        return self.convolution3(torch.relu(before_stride)) + self.shortcut(maps), before_stride


class _PyramidPooling(nn.Module):
    """The whole image, single pixels, and three atrous convolutions, side by side."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), _normalized(channels, width, 1), nn.ReLU())
        self.pixel = nn.Sequential(_normalized(channels, width, 1), nn.ReLU())
        self.atrous = nn.ModuleList(_rectified_separable(channels, width, rate) for rate in _RATES)
        self.projection = nn.Sequential(_normalized(5 * width, width, 1), nn.ReLU(), nn.Dropout(0.1))

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        whole = _resized(self.whole(maps), maps)
        output: torch.Tensor = self.projection(
            torch.cat([whole, self.pixel(maps), *(layer(maps) for layer in self.atrous)], 1)
        )
        return output


def _rectified_separable(channels: int, width: int, rate: int = 1) -> nn.Sequential:
    """As `_separable`, with a ReLU behind each half: outside the backbone."""
    depthwise = _normalized(channels, channels, 3, rate=rate, groups=channels)
    return nn.Sequential(depthwise, nn.ReLU(), _normalized(channels, width, 1), nn.ReLU())


def _resized(maps: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return nn.functional.interpolate(maps, like.shape[-2:], mode="bilinear", align_corners=True)


class _DeepLab(nn.Module):
    def __init__(self, width: int, middle_blocks: int, classes: int) -> None:
        super().__init__()
        narrow, middle, wide = 4 * width, 91 * width // 4, 64 * width
        self.stem = nn.Sequential(
            _normalized(3, width, 3, stride=2), nn.ReLU(), _normalized(width, 2 * width, 3), nn.ReLU()
        )
        self.entry1 = _XceptionBlock(2 * width, (narrow, narrow, narrow), 2)
        self.entry2 = _XceptionBlock(narrow, (2 * narrow, 2 * narrow, 2 * narrow), 2)
        self.entry3 = _XceptionBlock(2 * narrow, (middle, middle, middle), 2)
        self.middle = nn.ModuleList(_XceptionBlock(middle, (middle, middle, middle)) for _ in range(middle_blocks))
        self.exit = _XceptionBlock(middle, (middle, wide // 2, wide // 2))
        self.last = nn.Sequential(
            _rectified_separable(wide // 2, 3 * wide // 4, 2),
            _rectified_separable(3 * wide // 4, 3 * wide // 4, 2),
            _rectified_separable(3 * wide // 4, wide, 2),
        )
        self.pooling = _PyramidPooling(wide, 8 * width)
        self.low_level = nn.Sequential(_normalized(2 * narrow, 3 * width // 2, 1), nn.ReLU())
        self.decoder = nn.Sequential(
            _rectified_separable(8 * width + 3 * width // 2, 8 * width), _rectified_separable(8 * width, 8 * width)
        )
        self.head = nn.Conv2d(8 * width, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps, _ = self.entry1(self.stem(images))
        maps, low_level = self.entry2(maps)
        maps, _ = self.entry3(maps)
        for block in self.middle:
            maps, _ = block(maps)
        maps, _ = self.exit(maps)
        maps = self.pooling(self.last(maps))
        maps = self.decoder(torch.cat([_resized(maps, low_level), self.low_level(low_level)], 1))
        return _resized(self.head(maps), images)


def deeplabv3plus(
    batch: int = 6,
    *,
    image: int = 513,
    width: int = 32,
    middle_blocks: int = 16,
    classes: int = 21,
) -> Workload:
    """DeepLabv3+ on 513 x 513 images, a label a pixel; batch 6 is the paper's largest in 16 GB without swapping.

    41,055,413 parameters: 41,258,213 with the 202,800 running statistics of its batch norms, which is the count of
    keras-deeplab-v3-plus, into which the authors' own checkpoint loads.

    Args:
        batch: images a step, 2 or more: the pooled image is normalized over the batch alone.
        image: side of an image in pixels.
        width: maps of the first convolution; all others are in proportion.
        middle_blocks: Xception blocks of the middle flow.
        classes: labels of a pixel.
    """
    model = _DeepLab(width, middle_blocks, classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=7e-3, momentum=0.9, weight_decay=4e-5)
    images = torch.randn(batch, 3, image, image)
    labels = torch.randint(classes, (batch, image, image))
    return training_step(model, optimizer, cross_entropy, images, labels, name="deeplabv3plus")
