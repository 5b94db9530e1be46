"""Library scratch of single ops: what a kernel allocates for itself and gives back before it returns.

For the CPU the models say what recordings of real runs show (torch 2.13, oneDNN 3; the emulated device sees every
allocation). For CUDA they say what torch itself asks for; what cuDNN takes for a convolution depends on the algorithm
that it picks, and is counted as nothing: that of implicit GEMM, which is always possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from umadvise.recording.dry import onednn
from umadvise.recording.dry.recurrent import leading_dimension
from umadvise.recording.dry.scratch import Scratch, ScratchStep
from umadvise.records.trace import Target

Model = Callable[[Sequence[Any], dict[str, Any], Any], Scratch]
"""Called with an op's arguments, keyword arguments and result."""

CUBLAS_BYTES = (2 * 4096 + 8 * 16) << 10
"""cuBLAS's workspace, taken at the first product and kept: torch's default ":4096:2:16:8" (CUDABlas.cpp,
parseChosenWorkspaceSize); 32 MiB on Hopper."""
_WRAPPED_BYTES = 8  # a Python number as a tensor: double or int64
_FLOAT_BYTES = 4


def model_of(name: str, target: Target) -> Model | None:
    """The model of an operator's scratch on a target, None where it takes none."""
    return _MODELS[target].get(name)


def _batch_norm(args: Sequence[Any], _kwargs: dict[str, Any], _result: Any) -> Scratch:
    """Statistics of each channel, twice."""
    each: ScratchStep = ("+", args[0].shape[1] * _FLOAT_BYTES)
    if not args[5]:
        return ()
    return [("=", 0), ("=", 1), ("=", 2), each, each, ("-", 1), ("-", 2), each, each, ("-", 3), ("-", 4)]


def _batch_norm_backward(args: Sequence[Any], _kwargs: dict[str, Any], _result: Any) -> Scratch:
    """A gradient of the source that is dropped for another one."""
    return [("+", args[1].nbytes), ("=", 1), ("=", 2), ("=", 0), ("-", 1)]


def _layer_norm_backward(args: Sequence[Any], _kwargs: dict[str, Any], _result: Any) -> Scratch:
    """Sums of each thread for weight and bias."""
    normalized = 1
    for size in args[2]:
        normalized *= int(size)
    sums = 2 * torch.get_num_threads() * normalized * _FLOAT_BYTES
    return [("=", 0), ("=", 1), ("=", 2), ("+", sums), ("-", 1)]


def _group_norm_backward(args: Sequence[Any], _kwargs: dict[str, Any], _result: Any) -> Scratch:
    """Two sums of each image and channel."""
    sums = args[1].shape[0] * args[1].shape[1] * _FLOAT_BYTES
    return [("=", 0), ("=", 1), ("=", 2), ("+", sums), ("+", sums), ("-", 1), ("-", 2)]


def _weight_first(_args: Sequence[Any], _kwargs: dict[str, Any], _result: Any) -> Scratch:
    """No scratch, but the second result is made first."""
    return [("=", 1), ("=", 0)]


def _safe_softmax(args: Sequence[Any], _kwargs: dict[str, Any], _result: Any) -> Scratch:
    """Which values are minus infinity, and which rows have no other."""
    inputs, dimension = args[:2]
    count = inputs.numel()
    steps: list[ScratchStep] = [("=", 0), ("+", count), ("+", count // inputs.shape[dimension]), ("+", inputs.itemsize)]
    return [*steps, ("-", 3), ("-", 2), ("-", 1)]


def _number_as_tensor(args: Sequence[Any], _kwargs: dict[str, Any], result: Any) -> Scratch:
    """A Python number beside a tensor is converted to the type of the result."""
    other = args[1] if len(args) > 1 else None
    if isinstance(other, Tensor) or not isinstance(result, Tensor):
        return ()
    converted = isinstance(other, float) != (result.dtype is torch.float64) or (
        isinstance(other, int) and result.dtype is not torch.int64
    )
    return [("+", result.itemsize), ("=", 0), ("-", 1)] if converted else ()


def _scalar_as_tensor(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Scratch:
    """The same where the number becomes a tensor within the op."""
    converted = _number_as_tensor(args, kwargs, result)
    if not converted:
        return [("+", _WRAPPED_BYTES), ("=", 0), ("-", 1)]
    return [("+", _WRAPPED_BYTES), ("+", result.itemsize), ("=", 0), ("-", 2), ("-", 1)]


def _lstm_weights(args: Sequence[Any]) -> tuple[int, int, int, int]:
    """Sizes of packed weights, of the biases' sum and of oneDNN's scratchpad."""
    inputs, of_input, of_hidden = args[:3]
    tokens, batch, hidden, item = inputs.shape[0], inputs.shape[1], of_hidden.shape[1], inputs.itemsize
    row = leading_dimension(4 * hidden, item)
    scratchpad = (tokens * batch * 4 * hidden + 3 * batch * hidden) * item + 568
    return row * of_input.shape[1] * item, row * hidden * item, 4 * hidden * item, scratchpad


def _lstm_layer(args: Sequence[Any], _kwargs: dict[str, Any], _result: Any) -> Scratch:
    of_input, of_hidden, bias, scratchpad = _lstm_weights(args)
    steps: list[ScratchStep] = [("=", 0), ("=", 1), ("=", 2), ("+", bias), ("=", 3)]
    return [*steps, ("+", of_input), ("+", of_hidden), ("+", scratchpad), *(("-", n) for n in (4, 3, 2, 1))]


def _lstm_layer_backward(args: Sequence[Any], _kwargs: dict[str, Any], _result: Any) -> Scratch:
    """Packed weights and packed gradients of the weights."""
    of_input, of_hidden, bias, scratchpad = _lstm_weights(args)
    weight, recurrent = args[1:3]
    transposed = [
        leading_dimension(each.shape[1], each.itemsize) * each.shape[0] * each.itemsize for each in (weight, recurrent)
    ]
    before: list[ScratchStep] = [("+", bias)] * 3
    made: list[ScratchStep] = [("=", each) for each in (0, 5, 6, 1, 2, 3)]
    sizes = [*transposed, of_input, of_hidden, bias, scratchpad]
    freed: list[ScratchStep] = [("-", 3 + each) for each in range(len(sizes), 0, -1)]
    return [*before, *made, *(("+", size) for size in sizes), *freed, ("=", 4), ("-", 3), ("-", 2), ("-", 1)]


_NUMBERS = ("add", "sub", "mul", "div")
_MODELS: dict[Target, dict[str, Model]] = {
    "cpu": {
        "aten::convolution": onednn.convolution,
        "aten::convolution_backward": onednn.convolution_backward,
        "aten::native_batch_norm": _batch_norm,
        "aten::native_batch_norm_backward": _batch_norm_backward,
        "aten::native_layer_norm_backward": _layer_norm_backward,
        "aten::native_group_norm_backward": _group_norm_backward,
        "aten::nll_loss2d_forward": _weight_first,
        "aten::_safe_softmax": _safe_softmax,
        "aten::mkldnn_rnn_layer": _lstm_layer,
        "aten::mkldnn_rnn_layer_backward": _lstm_layer_backward,
        **{f"aten::{name}{mark}.Tensor": _number_as_tensor for name in _NUMBERS for mark in ("", "_")},
        **{f"aten::{name}{mark}.Scalar": _scalar_as_tensor for name in _NUMBERS for mark in ("", "_")},
    },
    "cuda": {},
}
