"""vDNN's baseline: the memory that a framework takes when it allocates for the whole network at once.

From the text of Rhu et al. 2016, with no number fitted:

- all feature maps X and Y, the input among them, each once; activations work in place (section 2.2, footnote 1), so
  that only convolutions, poolings and full layers have a Y (figure 2);
- all weights W, and as many weight gradients: weights are adjusted when backward has reached the first layer (section
  2.2), so that all gradients exist by then; there is no momentum in the figure, and none is counted;
- two gradient maps dX and dY, each as large as the largest Y, reused from layer to layer (figure 2, section 4.1);
- one workspace, the largest that any layer's performance-optimal algorithm wants (figure 2): see
  umadvise.planners.papers.convolution.

The paper's "GB" are read as GiB; as 1e9 bytes, AlexNet and VGG-16 (256) would both come out 16 % high.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from umadvise.planners.papers.convolution import tiled_fft_bytes
from umadvise.recording.workload import Workload

_FLOAT_BYTES = 4
ForwardPass = tuple[nn.Module, torch.Tensor, list[tuple[nn.Module, torch.Tensor, torch.Tensor]]]
"""The network, its images, and its layers in the order in which they run, each with its input and output."""


@dataclass(frozen=True)
class NetworkWide:
    """Bytes of the baseline, by what they hold; the classifier's share of them counted again."""

    feature_maps: int
    weights: int
    weight_gradients: int
    gradient_maps: int
    workspace: int
    classifier_weights: int
    classifier_maps: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.feature_maps + self.weights + self.weight_gradients + self.gradient_maps + self.workspace

    @property
    def extraction_share(self) -> float:
        """Part that belongs to the feature extraction layers, all but the full ones (section 3)."""
        gradients = self.classifier_weights if self.weight_gradients else 0
        return 1 - (self.classifier_weights + gradients + self.classifier_maps) / self.total

    @property
    def without_weight_gradients(self) -> "NetworkWide":
        """The same without dW, which the caption of figure 2 does not name."""
        return dataclasses.replace(self, weight_gradients=0)


def forward_pass(build: Callable[[], Workload], kinds: tuple[type[nn.Module], ...]) -> ForwardPass:
    """A sequential classifier's forward pass on the meta device.

    Args:
        build: makes the network and its images.
        kinds: the kinds of layers that are looked at.
    """
    layers: list[tuple[nn.Module, torch.Tensor, torch.Tensor]] = []
    with torch.device("meta"):
        workload = build()
        (model,), images = workload.modules, workload.inputs[0]
        for module in model.modules():
            if isinstance(module, kinds):
                module.register_forward_hook(lambda layer, maps, output: layers.append((layer, maps[0], output)))
        with torch.no_grad():
            model(images)
    return model, images, layers


def network_wide(build: Callable[[], Workload]) -> NetworkWide:
    """The bytes of a sequential classifier, its layers added up."""
    model, images, layers = forward_pass(build, (nn.Conv2d, nn.MaxPool2d, nn.Linear))
    outputs = [float_bytes(output) for _, _, output in layers]
    weights = sum(float_bytes(parameter) for parameter in model.parameters())
    full = [(layer, output) for layer, _, output in layers if isinstance(layer, nn.Linear)]
    return NetworkWide(
        feature_maps=float_bytes(images) + sum(outputs),
        weights=weights,
        weight_gradients=weights,
        gradient_maps=2 * max(outputs),
        workspace=max(_workspace(layer, maps, output) for layer, maps, output in layers),
        classifier_weights=sum(float_bytes(parameter) for layer, _ in full for parameter in layer.parameters()),
        classifier_maps=sum(float_bytes(output) for _, output in full),
    )


def float_bytes(tensor: torch.Tensor) -> int:
    """What a tensor of floats takes."""
    return tensor.numel() * _FLOAT_BYTES


def _workspace(layer: nn.Module, maps: torch.Tensor, output: torch.Tensor) -> int:
    if not isinstance(layer, nn.Conv2d) or layer.stride != (1, 1) or layer.kernel_size == (1, 1):
        return 0
    return tiled_fft_bytes(maps.shape[0], maps.shape[1], output.shape[1], output.shape[-1], layer.kernel_size[0])
