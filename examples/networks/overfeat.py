"""OverFeat, the fast model, as vDNN's authors ran it (Rhu et al. 2016, section 4.3, after convnet-benchmarks)."""

from torch import nn

from networks.classification import train_classifier
from umadvise.recording.workload import Workload


def overfeat(batch: int = 128, *, image: int = 231, width: int = 32, classes: int = 1000) -> Workload:
    """OverFeat's fast model on 231 x 231 images.

    145,920,872 parameters: 145 million in Sermanet et al. 2013, table 4; to the last one it follows from the layers of
    table 1.

    Args:
        batch: images a step.
        image: side of an image in pixels; 71 or more.
        width: a third of the maps of the first convolution; all others are in proportion.
        classes: number of labels that exist.
    """
    side = (((image - 11) // 4 + 1) // 2 - 4) // 2  # where the third convolution begins
    model = nn.Sequential(
        nn.Conv2d(3, 3 * width, 11, stride=4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(3 * width, 8 * width, 5),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8 * width, 16 * width, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(16 * width, 32 * width, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(32 * width, 32 * width, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * width * (side // 2) ** 2, 96 * width),
        nn.ReLU(),
        nn.Linear(96 * width, 128 * width),
        nn.ReLU(),
        nn.Linear(128 * width, classes),
    )
    return train_classifier(model, batch, image, classes, "overfeat")
