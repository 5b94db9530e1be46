"""What a target would run where torch's meta device runs something else.

torch's composite operators choose their kernels by the device of their tensors. For the time of a recording, those
whose choice matters get a kernel for meta tensors that chooses as the target does (torch 2.9 to 2.13, the functions of
aten/src/ATen/native that the docstrings name). All other tensors of the process are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer
from torch.utils import _foreach_utils

from umadvise.recording.dry import autocast, recurrent
from umadvise.records.trace import Target

aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
_FLASH_HEAD_MOST = 256
_CUDNN_EPSILON_LEAST = 1e-5  # CUDNN_BN_MIN_EPSILON of cuDNN before 8; torch asks for it still
_CUDNN_BATCH_MOST = 880801
_BAG_MAXIMUM = 2


@contextmanager
def pretending(target: Target, *, under_mode: bool = False) -> Iterator[None]:
    """Meta tensors are treated as the target's until the end.

    Args:
        target: hardware whose kernels ops are to be.
        under_mode: whether the run that is recorded has a Python mode on itself, as one in virtual time has.
    """
    with ExitStack() as stack:
        library = torch.library.Library("aten", "IMPL")
        stack.callback(library._destroy)
        for name, kernel in _COMPOSITES[target].items():
            if not (under_mode and kernel is _linear):
                library.impl(name, kernel, "AutogradMeta")
        for name, kernel in (_MISSING | _OF_TARGET[target]).items():
            library.impl(name, kernel, "Meta", allow_override=True)
        stack.enter_context(_optimizers_of(target))
        stack.enter_context(autocast.casting(target))
        yield


@contextmanager
def _optimizers_of(target: Target) -> Iterator[None]:
    """Optimizers and gradient clipping ask which devices have fused and which have multi-tensor kernels."""
    fused = [*_foreach_utils._get_fused_kernels_supported_devices(), "meta"]
    foreach = [*_foreach_utils._get_foreach_kernels_supported_devices(), "meta"]
    with ExitStack() as stack:

        def replace(module: Any, name: str, devices: list[str]) -> None:
            stack.enter_context(mock.patch.object(module, name, lambda: list(devices)))

        replace(torch_optimizer, "_get_fused_kernels_supported_devices", fused)
        replace(_foreach_utils, "_get_foreach_kernels_supported_devices", foreach)  # clipping: on the CPU too
        if target == "cuda":
            replace(torch_optimizer, "_get_foreach_kernels_supported_devices", foreach)
        yield


# ---- every target --------------------------------------------------------------------------------------------------


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Linear.cpp, linear: under a Python mode torch adds the bias out of place, which a real run does not."""
    if bias is not None and inputs.dim() == 2:
        return torch.addmm(bias, inputs, weight.t())
    if bias is not None and inputs.dim() > 2 and bias.dim() == 1 and inputs.is_contiguous():
        flat = torch.addmm(bias, inputs.reshape(-1, inputs.shape[-1]), weight.t())
        return flat.view(*inputs.shape[:-1], flat.shape[1])
    product = torch.matmul(inputs, weight.t())
    return product if bias is None else product.add_(bias)


def _attention_with(fused: Callable[..., Tensor | None]) -> Callable[..., Tensor]:
    """Attention in a target's fused kernel, else by its parts."""

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        arguments = (query, key, value, attn_mask, dropout_p, is_causal)
        output = fused(*arguments, scale) if query.dim() == 4 and not enable_gqa else None
        if output is None:
            output = aten._scaled_dot_product_attention_math(*arguments, None, scale=scale, enable_gqa=enable_gqa)[0]
        return output

    return attention


# ---- cpu -----------------------------------------------------------------------------------------------------------


def _flash_on_cpu(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool, scale: Any
) -> Tensor | None:
    """transformers/sdp_utils_cpp.cpp, select_sdp_backend_cpp: the flash kernel knows no dropout."""
    heads = query.shape[-1] == key.shape[-1] == value.shape[-1]
    strides = query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    masked = mask is not None and (mask.requires_grad or mask.dim() not in (2, 4))
    if dropout_p > 0 or masked or not heads or not strides:
        return None
    output: Tensor = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=_additive(mask, query.dtype), scale=scale
    )[0]
    return output


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """transformers/attention.cpp, convert_boolean_attn_mask."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.full((), float("-inf"), dtype=dtype, device=mask.device))


# ---- cuda ----------------------------------------------------------------------------------------------------------


def _fused_on_cuda(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool, scale: Any
) -> Tensor | None:
    """transformers/cuda/sdp_utils.cpp, select_sdp_backend: flash, else memory-efficient, else the parts.

    Of an Ampere or newer: before it there is no flash kernel, and fp16 takes the memory-efficient one.
    """
    if query.dtype not in (*_HALVES, torch.float32):
        return None
    if query.dtype in _HALVES and mask is None and query.shape[-1] <= _FLASH_HEAD_MOST:
        flash = aten._scaled_dot_product_flash_attention
        attended: Tensor = flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        return attended
    bias = _additive(mask, query.dtype)
    if bias is not None:
        bias = bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    trains = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    efficient = aten._scaled_dot_product_efficient_attention
    result: Tensor = efficient(query, key, value, bias, trains, dropout_p, is_causal, scale=scale)[0]
    return result


def _batch_norm_on_cuda(
    inputs: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    """Normalization.cpp, _select_batch_norm_backend."""
    cudnn = (
        cudnn_enabled
        and inputs.dtype is not torch.bfloat16
        and weight is not None
        and bias is not None
        and inputs.dim() >= 3
        and (running_mean is None) == (running_var is None)
        and (running_mean is not None or training)
        and inputs.shape[0] <= _CUDNN_BATCH_MOST
        and eps >= _CUDNN_EPSILON_LEAST
    )
    arguments = (weight, bias, running_mean, running_var, training, momentum, eps)
    output: Tensor = (aten.cudnn_batch_norm if cudnn else aten.native_batch_norm)(inputs, *arguments)[0]
    return output


def _dropout_on_cuda(inputs: Tensor, p: float, train: bool) -> Tensor:
    """Dropout.cpp, is_fused_kernel_acceptable: one kernel that keeps a mask of bytes."""
    if not train or p == 0 or inputs.numel() == 0:
        return inputs
    if p == 1:
        return inputs * torch.zeros((), dtype=inputs.dtype, device=inputs.device)
    output: Tensor = aten.native_dropout(inputs, p, train)[0]
    return output


def _embedding_bag_on_cpu(
    weight: Tensor, indices: Tensor, offsets: Tensor, _scale: bool = False, mode: int = 0, *rest: Any
) -> tuple[Tensor, ...]:
    """EmbeddingBag.cpp, _embedding_bag_cpu_impl_out: the bag of each index is counted with one place too many."""
    last_is_end = rest[2] if len(rest) > 2 else False
    bags = offsets.shape[0] - bool(last_is_end)
    output = weight.new_empty((bags, weight.shape[1]))
    bag_of_index = indices.new_empty(indices.shape[0] + 1)[:-1]
    largest = indices.new_empty((bags, weight.shape[1]) if mode == _BAG_MAXIMUM else bags)
    return output, bag_of_index, indices.new_empty(bags), largest


def _nothing(*_: Any, **__: Any) -> None:
    """An op that only works in place."""


def _cudnn_rnn_backward(inputs: Tensor, weight: Sequence[Tensor], *arguments: Any) -> Any:
    """As large as what they are the gradients of."""
    hx, cx = arguments[2:4]
    state = None if cx is None else torch.empty_like(cx)
    return torch.empty_like(inputs), torch.empty_like(hx), state, [torch.empty_like(each) for each in weight]


def _layer_norm_backward(
    _gradient: Tensor, inputs: Tensor, _shape: Any, _mean: Tensor, _rstd: Tensor, *rest: Any
) -> tuple[Tensor | None, ...]:
    weight, bias, wanted = rest
    return tuple(
        torch.empty_like(each) if one else None for each, one in zip((inputs, weight, bias), wanted, strict=True)
    )


def _reduced_loss(inputs: Tensor, target: Tensor, reduction: int = 1, *_: Any) -> Tensor:
    """Loss.cpp, mse_loss: its result has room for every element's loss, of which the mean is a part."""
    shape = torch.broadcast_shapes(inputs.shape, target.shape)
    losses = torch.empty(shape, dtype=torch.result_type(inputs, target), device="meta")
    return losses if reduction == 0 else losses.as_strided((), ())


def _alike(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [torch.empty_like(each) for each in tensors]


def _multi_tensor_in_place() -> list[str]:
    """Overloads of the multi-tensor operators that work in place: on meta tensors torch takes them apart in Python."""
    packets = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::_foreach_")]
    return [name.removeprefix("aten::") for name in packets if name.partition(".")[0].endswith("_")]


_COMPOSITES: dict[Target, dict[str, Callable[..., Any]]] = {
    "cpu": {
        "linear": _linear,
        "scaled_dot_product_attention": _attention_with(_flash_on_cpu),
        "lstm.input": recurrent.lstm_on_cpu,
    },
    "cuda": {
        "linear": _linear,
        "scaled_dot_product_attention": _attention_with(_fused_on_cuda),
        "batch_norm": _batch_norm_on_cuda,
        "dropout": _dropout_on_cuda,
        "lstm.input": recurrent.lstm_on_cuda,
        "gru.input": recurrent.gru_on_cuda,
        "rnn_tanh.input": recurrent.rnn_tanh_on_cuda,
        "rnn_relu.input": recurrent.rnn_relu_on_cuda,
    },
}
# Kernels that torch lacks for meta tensors, or has without the memory that they take, or in slow Python.
_MISSING: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_multi_tensor_in_place(), _nothing),
    "_foreach_sqrt": _alike,
    "mse_loss": _reduced_loss,
    "smooth_l1_loss": _reduced_loss,
    "native_layer_norm_backward": _layer_norm_backward,
    "_fused_sgd_": _nothing,
    "_fused_sgd_.tensor_lr": _nothing,
    "_fused_adagrad_": _nothing,
    "_cudnn_rnn": recurrent.cudnn_rnn,
    "_cudnn_rnn_backward": _cudnn_rnn_backward,
    "mkldnn_rnn_layer": recurrent.mkldnn_rnn_layer,
    "mkldnn_rnn_layer_backward": recurrent.mkldnn_rnn_layer_backward,
}
_OF_TARGET: dict[Target, dict[str, Callable[..., Any]]] = {
    "cpu": {"_embedding_bag": _embedding_bag_on_cpu, "_embedding_bag_forward_only": _embedding_bag_on_cpu},
    "cuda": {},
}
