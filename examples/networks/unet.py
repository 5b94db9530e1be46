"""U-Net (Ronneberger et al. 2015, figure 1): the first feature map is used again at the very end.

That is why the DQN paper (section 5.2) finds it harder to swap than a ResNet.
"""

import torch
from torch import nn

from networks.classification import cross_entropy
from umadvise.recording.workload import Workload, training_step


def _two_convolutions(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3),
        nn.ReLU(inplace=True),
    )


def _crop(maps: torch.Tensor, side: int) -> torch.Tensor:
    """The middle `side` x `side` pixels: unpadded convolutions lose the border."""
    start = (maps.shape[-1] - side) // 2
    return maps[:, :, start : start + side, start : start + side]


class _UNet(nn.Module):
    def __init__(self, width: int, levels: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(
            _two_convolutions(channels, wide) for channels, wide in zip([1, *widths], widths[:-1], strict=False)
        )
        self.bottom = nn.Sequential(_two_convolutions(widths[-2], widths[-1]), nn.Dropout(0.5))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * wide, wide, 2, stride=2) for wide in reversed(widths[:-1]))
        self.merge = nn.ModuleList(_two_convolutions(2 * wide, wide) for wide in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = images
        skipped = []
        for convolutions in self.down:
            skipped.append(convolutions(maps))
            maps = nn.functional.max_pool2d(skipped[-1], 2)
        maps = self.bottom(maps)
        for up, merge in zip(self.up, self.merge, strict=True):
            maps = up(maps)
            maps = merge(torch.cat([_crop(skipped.pop(), maps.shape[-1]), maps], 1))
        output: torch.Tensor = self.head(maps)
        return output


def unet(batch: int = 1, *, image: int = 572, width: int = 64, levels: int = 4, classes: int = 2) -> Workload:
    """U-Net on one-channel images of 572 x 572 pixels, whose middle 388 x 388 get a label each.

    One image a step and momentum 0.99, as in section 3. 31,030,658 parameters: the sum over the layers of figure 1
    (23 convolutions); the paper gives no count.

    Args:
        batch: images a step.
        image: side of an image in pixels, so that every pooling sees an even side: 572, or 28 for one level.
        width: maps of the first level; each level doubles them.
        levels: number of poolings, each of which halves the image.
        classes: labels of a pixel.
    """
    model = _UNet(width, levels, classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.99)
    side = image
    for _ in range(levels):
        side = (side - 4) // 2
    side -= 4
    for _ in range(levels):
        side = 2 * side - 4
    labels = torch.randint(classes, (batch, side, side))
    return training_step(model, optimizer, cross_entropy, torch.randn(batch, 1, image, image), labels, name="unet")
