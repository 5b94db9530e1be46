"""What oneDNN's convolutions allocate on a CPU, as recordings of real runs show it (oneDNN 3 on AVX-512).

It computes in layouts of its own, blocks of as many channels as a vector register holds, so that an op makes copies of
what it reads and of what it writes. Few channels are read as they are. Exact for ordinary convolutions but for small
scratchpads; for transposed ones and for other instruction sets close.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from umadvise.recording.dry.scratch import Scratch, ScratchStep

_PADDED_BIAS_BYTES = 192
_REDUCTION_BYTES = 8448
_DIRECT_CHANNELS_MOST = 3  # read by the kernels for the first layer of a network
_TRANSPOSED_SCRATCH_BYTES = 36 << 10


@dataclass(frozen=True)
class _Shape:
    """Channels and kernel of a convolution."""

    inside: int
    outside: int
    taps: int
    item_bytes: int

    @property
    def block(self) -> int:
        return 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8

    def rounded(self, channels: int) -> int:
        return -(-channels // self.block) * self.block

    def weights(self, inside: int, outside: int) -> int:
        return self.taps * inside * outside * self.item_bytes

    def copy(self, tensor: Tensor, channels: int) -> int:
        """Size of a copy with so many channels."""
        return tensor.numel() // int(tensor.shape[1]) * channels * self.item_bytes


def _handles(inputs: Tensor, groups: int) -> bool:
    return inputs.dtype is torch.float32 and groups == 1


def convolution(args: Sequence[Any], _kwargs: dict[str, Any], result: Any) -> Scratch:
    """Copies of source, weights and result."""
    inputs, weight, transposed = args[0], args[1], args[6]
    if not _handles(inputs, args[8]):
        return ()
    inside, outside = int(inputs.shape[1]), int(result.shape[1])
    shape = _Shape(inside, outside, weight.numel() // (inside * outside), inputs.itemsize)
    if transposed:
        return _transposed(shape, inputs, result)
    copies_source = inside >= shape.block or shape.taps == 1
    read = shape.rounded(inside) if copies_source else inside
    sizes = [_PADDED_BIAS_BYTES] if outside % shape.block else []
    if copies_source:
        sizes.append(shape.copy(inputs, read))
    sizes += [shape.weights(read, shape.rounded(outside)), shape.copy(result, shape.rounded(outside))]
    last = len(sizes)
    freed: list[ScratchStep] = [("-", each) for each in range(last - 1, 0, -1)]
    return [*(("+", size) for size in sizes), *freed, ("=", 0), ("-", last)]


def _transposed(shape: _Shape, inputs: Tensor, result: Tensor) -> Scratch:
    source, target = shape.copy(inputs, shape.inside), shape.copy(result, shape.outside)
    weights = shape.weights(shape.rounded(shape.inside), shape.rounded(shape.outside))
    sizes = (source // 2 + _TRANSPOSED_SCRATCH_BYTES, source, weights, target)
    kept: list[ScratchStep] = [("+", target), ("=", 0), ("-", 4), ("-", 5)]
    return [*(("+", size) for size in sizes), ("-", 3), ("-", 2), ("-", 1), *kept]


def convolution_backward(args: Sequence[Any], _kwargs: dict[str, Any], _result: Any) -> Scratch:
    """First the gradient of the source, then those of weights and bias."""
    gradient, inputs, weight, biases, transposed, wanted = *args[:4], args[7], args[10]
    if not _handles(inputs, args[9]):
        return [("=", 0), ("=", 2), ("=", 1)]
    inside, outside = int(inputs.shape[1]), int(gradient.shape[1])
    shape = _Shape(inside, outside, weight.numel() // (inside * outside), inputs.itemsize)
    steps: list[ScratchStep] = []
    if not gradient.is_contiguous():
        steps.append(("+", gradient.numel() * shape.item_bytes))
    if wanted[0]:
        steps += _source_gradient(shape, gradient, inputs, len(steps), blocked=not transposed)
    if wanted[1]:
        made = sum(step[0] == "+" for step in steps)
        steps += _weight_gradient(shape, gradient, inputs, made, has_bias=bool(biases), blocked=not transposed)
    if not gradient.is_contiguous():
        steps.append(("-", 1))
    return steps


def _source_gradient(shape: _Shape, gradient: Tensor, inputs: Tensor, made: int, *, blocked: bool) -> list[ScratchStep]:
    outside, inside = shape.rounded(shape.outside), shape.rounded(shape.inside)
    if not blocked:
        outside, inside = shape.outside, shape.inside
    sizes = (shape.copy(gradient, outside), shape.weights(inside, outside), shape.copy(inputs, inside))
    freed: list[ScratchStep] = [("-", made + 2), ("-", made + 1), ("=", 0), ("-", made + 3)]
    return [*(("+", size) for size in sizes), *freed]


def _weight_gradient(
    shape: _Shape, gradient: Tensor, inputs: Tensor, made: int, *, has_bias: bool, blocked: bool
) -> list[ScratchStep]:
    inside, outside = shape.inside, shape.outside
    direct = inside <= _DIRECT_CHANNELS_MOST and shape.taps > 1
    if blocked and (shape.taps == 1 or inside >= shape.block):
        inside, outside = shape.rounded(inside), shape.rounded(outside)
    elif blocked and (direct or outside >= shape.block):
        outside = shape.rounded(outside)
    weights = shape.weights(inside, outside)
    sizes = [shape.copy(gradient, outside)]
    if not direct:
        sizes.append(shape.copy(inputs, inside))
    copies = len(sizes)
    sizes += [weights, weights + _REDUCTION_BYTES]
    if has_bias:
        sizes.append(shape.outside * shape.item_bytes)
    steps: list[ScratchStep] = [("+", size) for size in sizes]
    steps += [("-", made + copies + 2), *(("-", made + each) for each in range(copies, 0, -1))]
    steps += [("=", 2), ("=", 1), ("-", made + copies + 1)]
    return [*steps, ("-", made + len(sizes))] if has_bias else steps
