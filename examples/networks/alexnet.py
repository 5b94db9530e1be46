"""AlexNet as vDNN's authors ran it: one column of convolutions, no dropout.

vDNN (Rhu et al. 2016, section 4.3) takes AlexNet, OverFeat and VGG from convnet-benchmarks (Chintala), whose AlexNet is
the one of "One weird trick" (Krizhevsky 2014, arXiv:1404.5997): 64, 192, 384, 256 and 256 maps, not the two columns of
2012 (60,965,224 parameters). Its classifier has the dropout layers switched off and no local response normalization.
"""

from torch import nn

from networks.classification import train_classifier
from umadvise.recording.workload import Workload


def alexnet(batch: int = 128, *, image: int = 224, width: int = 64, classes: int = 1000) -> Workload:
    """AlexNet on 224 x 224 images.

    61,100,840 parameters: the count that torchvision's documentation gives for its `alexnet`, which is the same
    network.

    Args:
        batch: images a step.
        image: side of an image in pixels; 63 or more.
        width: maps of the first convolution; all others are in proportion.
        classes: number of labels that exist.
    """
    side = (((image - 7) // 4 + 1 - 3) // 2 + 1 - 3) // 2 + 1  # after the first convolution and two of the poolings
    pooled = (side - 3) // 2 + 1
    hidden = 64 * width
    model = nn.Sequential(
        nn.Conv2d(3, width, 11, stride=4, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(width, 3 * width, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(3 * width, 6 * width, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(6 * width, 4 * width, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(4 * width, 4 * width, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
        nn.Flatten(),
        nn.Linear(4 * width * pooled**2, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )
    return train_classifier(model, batch, image, classes, "alexnet")
