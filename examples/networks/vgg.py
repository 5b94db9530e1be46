"""VGG-16, and the networks of hundreds of layers that vDNN makes of it (Rhu et al. 2016, sections 4.3 and 5.4).

VGG-16 is configuration D of Simonyan and Zisserman 2015 (table 1): 13 convolutions in five groups and 3 full layers.
Each hundred more layers are twenty more convolutions in each of the five groups, with the maps of their group. No
dropout, as in convnet-benchmarks, from which vDNN's authors took their models.
"""

from torch import nn

from networks.classification import train_classifier
from umadvise.recording.workload import Workload

_CONVOLUTIONS = (2, 2, 3, 3, 3)  # of VGG-16, by group
_WIDTHS = (1, 2, 4, 8, 8)  # maps of a group, relative to the first


def feature_layers(convolutions: tuple[int, ...], width: int) -> list[nn.Module]:
    """The five groups: 3 x 3 convolutions with a ReLU each, and a pooling that ends every group."""
    layers: list[nn.Module] = []
    channels = 3
    for count, ratio in zip(convolutions, _WIDTHS, strict=True):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width * ratio, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width * ratio
        layers.append(nn.MaxPool2d(2))
    return layers


def _vgg(name: str, added: int, batch: int, image: int, width: int, classes: int) -> Workload:
    hidden = 64 * width
    model = nn.Sequential(
        *feature_layers(tuple(count + added for count in _CONVOLUTIONS), width),
        nn.Flatten(),
        nn.Linear(8 * width * (image // 32) ** 2, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, classes),
    )
    return train_classifier(model, batch, image, classes, name)


def vgg16(batch: int = 256, *, image: int = 224, width: int = 64, classes: int = 1000) -> Workload:
    """VGG-16 on 224 x 224 images; vDNN runs batches of 64, 128 and 256, and 32 beside the deeper networks.

    138,357,544 parameters: 138 million in Simonyan and Zisserman 2015, table 2; to the last one in torchvision's
    documentation of `vgg16`.

    Args:
        batch: images a step.
        image: side of an image in pixels, a multiple of 32.
        width: maps of the first group; all others are in proportion.
        classes: number of labels that exist.
    """
    return _vgg("vgg16", 0, batch, image, width, classes)


def vgg116(batch: int = 32, *, image: int = 224, width: int = 64, classes: int = 1000, added: int = 20) -> Workload:
    """VGG-16 with `added` more convolutions in each group (vDNN, sections 4.3 and 5.4): 248,241,704 parameters."""
    return _vgg("vgg116", added, batch, image, width, classes)


def vgg216(batch: int = 32, *, image: int = 224, width: int = 64, classes: int = 1000, added: int = 40) -> Workload:
    """VGG-16 with `added` more convolutions in each group (vDNN, sections 4.3 and 5.4): 358,125,864 parameters."""
    return _vgg("vgg216", added, batch, image, width, classes)


def vgg316(batch: int = 32, *, image: int = 224, width: int = 64, classes: int = 1000, added: int = 60) -> Workload:
    """VGG-16 with `added` more convolutions in each group (vDNN, sections 4.3 and 5.4): 468,010,024 parameters."""
    return _vgg("vgg316", added, batch, image, width, classes)


def vgg416(batch: int = 32, *, image: int = 224, width: int = 64, classes: int = 1000, added: int = 80) -> Workload:
    """VGG-16 with `added` more convolutions in each group (vDNN, sections 4.3 and 5.4): 577,894,184 parameters."""
    return _vgg("vgg416", added, batch, image, width, classes)


def vgg516(batch: int = 32, *, image: int = 224, width: int = 64, classes: int = 1000, added: int = 100) -> Workload:
    """VGG-16 with `added` more convolutions in each group (vDNN, sections 4.3 and 5.4): 687,778,344 parameters."""
    return _vgg("vgg516", added, batch, image, width, classes)
