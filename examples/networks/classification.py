"""What every image classifier here shares: random images, random labels, and stochastic gradient descent."""

import torch
from torch import nn

from umadvise.recording.workload import Workload, training_step


def cross_entropy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over all labels, of one image each or one pixel each."""
    return nn.functional.cross_entropy(model(images), labels)


def train_classifier(
    model: nn.Module, batch: int, image: int, classes: int, name: str, *, nesterov: bool = False
) -> Workload:
    """One training step of `model` on `batch` square RGB images with one integer label each.

    The optimizer is the one with which He et al. 2016 (section 3.4) and Simonyan and Zisserman 2015 (section 3.1)
    trained: SGD with momentum 0.9 and weight decay. Its rate is small, since the networks here start from torch's own
    initialization and see noise.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4, nesterov=nesterov)
    images = torch.randn(batch, 3, image, image)
    labels = torch.randint(classes, (batch,))
    return training_step(model, optimizer, cross_entropy, images, labels, name=name)
