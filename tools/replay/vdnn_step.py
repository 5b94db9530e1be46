"""A training step as vDNN's prototype runs it on cuDNN 4 (Rhu et al. 2016, sections 2.2 to 3.1), for its planners.

Torch's own step is another: it keeps pooling's indexes, momentum, and a gradient map beside each activation's. Here

- an activation works in place, forward and back (footnote 1);
- a layer's backward makes dX and, where it has weights, dW; then Y and dY are freed, X and dX stay (section 3.1). An
  activation's Y is the convolution's, which does not need it any more;
- gradients of weights live until backward has reached the first layer (section 2.2);
- classification layers are those of Torch (section 4.1): their W and dW are there from the beginning to the end.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from replay.network_wide import float_bytes, forward_pass
from umadvise.recording.builder import TraceBuilder
from umadvise.recording.dry.roofline import retimed
from umadvise.recording.workload import Workload
from umadvise.records.device import DeviceProfile
from umadvise.records.enums import Phase, Role
from umadvise.records.trace import Access, OpClass, Trace

_MADE = Access.WRITE | Access.WHOLE
_CHANGED = Access.READ | Access.WRITE | Access.IN_PLACE
_CLASSES = {
    nn.Conv2d: OpClass.CONVOLUTION,
    nn.ReLU: OpClass.ELEMENTWISE,
    nn.MaxPool2d: OpClass.REDUCTION,
    nn.Linear: OpClass.MATMUL,
}


@dataclass(frozen=True)
class VdnnStep:
    """A step, with what belongs to its classification layers: those from the first full one on.

    Attributes:
        trace: the step, with the durations of the fastest algorithms.
        classifier_weight_bytes: W and dW.
        classifier_ns: time of their ops.
    """

    trace: Trace
    classifier_weight_bytes: int
    classifier_ns: int


@dataclass(frozen=True)
class _Layer:
    module: nn.Module
    op_class: OpClass
    output_bytes: int
    flops: int
    weight_bytes: int


def vdnn_step(build: Callable[[], Workload], device: DeviceProfile) -> VdnnStep:
    """The step of a sequential classifier."""
    _, images, passed = forward_pass(build, tuple(_CLASSES))
    layers = [_layer(module, output) for module, _, output in passed]
    first_full = next(index for index, layer in enumerate(layers) if layer.op_class is OpClass.MATMUL)
    trace = retimed(_Recorder(float_bytes(images), layers, first_full).trace, device)
    count = len(layers)
    # Forward of layer n is op n; then comes the loss, and backward of layer n is op 2 * count - n.
    full = trace.ops.duration_ns[first_full : 2 * count - first_full + 1]
    weights = sum(layer.weight_bytes for layer in layers[first_full:])
    return VdnnStep(trace, 2 * weights, int(full.sum()))


def _layer(module: nn.Module, output: torch.Tensor) -> _Layer:
    weights = next((each for name, each in module.named_parameters() if name == "weight"), torch.empty(0, 1))
    flops = 2 * output.numel() * (weights.numel() // max(weights.shape[0], 1))
    return _Layer(module, _CLASSES[type(module)], float_bytes(output), flops, float_bytes(weights))


class _Recorder:
    """Runs the layers forward and back, and writes down what happens."""

    def __init__(self, image_bytes: int, layers: list[_Layer], first_full: int) -> None:
        self.layers = layers
        self.first_full = first_full
        self.builder = TraceBuilder()
        self.weights = [
            self.builder.allocate(layer.weight_bytes, Role.PARAMETER) if layer.weight_bytes else -1 for layer in layers
        ]
        self.weight_gradients = [
            self.builder.allocate(layer.weight_bytes, Role.OPTIMIZER_STATE)
            if layer.weight_bytes and index >= first_full
            else -1
            for index, layer in enumerate(layers)
        ]
        self.maps = [self.builder.allocate(image_bytes, Role.INPUT)]  # X of each layer, and the last Y
        for index in range(len(layers)):
            self._forward(index)
        self._begin("loss", Phase.BACKWARD, len(layers) - 1, OpClass.REDUCTION)
        self.gradient = self._make(layers[-1].output_bytes)  # dY of the layer that comes next
        self.builder.end_op()
        for index in reversed(range(len(layers))):
            self._backward(index)
        for index in range(first_full):
            if self.weight_gradients[index] >= 0:
                self.builder.free(self.weight_gradients[index])
        self.trace = self.builder.finish(target="cuda", source="synthetic")

    def _begin(self, name: str, phase: Phase, index: int, op_class: OpClass, flops: int | None = None) -> None:
        self.builder.begin_op(name, phase=phase, module=str(index), op_class=op_class, flops=flops)

    def _make(self, bytes_: int, role: Role = Role.INTERMEDIATE) -> int:
        storage = self.builder.allocate(bytes_, role)
        self.builder.access(storage, _MADE)
        return storage

    def _forward(self, index: int) -> None:
        layer, x = self.layers[index], self.maps[-1]
        self._begin(type(layer.module).__name__, Phase.FORWARD, index, layer.op_class, layer.flops or None)
        if layer.op_class is OpClass.ELEMENTWISE:
            self.builder.access(x, _CHANGED)
            self.maps.append(x)
        else:
            self.builder.access(x, Access.READ)
            if layer.weight_bytes:
                self.builder.access(self.weights[index], Access.READ)
            self.maps.append(self._make(layer.output_bytes))
        self.builder.end_op()

    def _backward(self, index: int) -> None:
        layer, x, y = self.layers[index], self.maps[index], self.maps[index + 1]
        both = 1 if index == 0 else 2  # nobody wants the gradient of an image
        self._begin("backward", Phase.BACKWARD, index, layer.op_class, both * layer.flops or None)
        if layer.op_class is OpClass.ELEMENTWISE:
            self.builder.access(y, Access.READ)
            self.builder.access(self.gradient, _CHANGED)
            self.builder.end_op()
            self._free_y(index)
            return
        needed = [x, self.gradient, self.weights[index] if layer.weight_bytes else y]
        for storage in needed:
            self.builder.access(storage, Access.READ)
        gradient = self._make(self._bytes_of_x(index)) if index else -1
        if self.weight_gradients[index] >= 0:
            self.builder.access(self.weight_gradients[index], _MADE)
        elif layer.weight_bytes:
            self.weight_gradients[index] = self._make(layer.weight_bytes, Role.GRADIENT)
        self.builder.end_op()
        self.builder.free(self.gradient)
        self._free_y(index)
        self.gradient = gradient

    def _free_y(self, index: int) -> None:
        if index + 1 == len(self.layers) or self.layers[index + 1].op_class is not OpClass.ELEMENTWISE:
            self.builder.free(self.maps[index + 1])

    def _bytes_of_x(self, index: int) -> int:
        return self.layers[index - 1].output_bytes
