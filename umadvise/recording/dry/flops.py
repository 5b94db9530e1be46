"""How many multiplications and additions an op does, each counted; None where no formula is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from umadvise.records.trace import OpClass

aten = torch.ops.aten
Formula = Callable[[tuple[Any, ...], dict[str, Any], Any], int | None]


def formula_of(func: torch._ops.OpOverload, op_class: OpClass) -> Formula | None:
    """The formula of an operator: called with its arguments, keyword arguments and result.

    Sources: torch.utils.flop_counter's registry; for the kernels that it lacks, the definitions of what they compute.
    An elementwise op counts one operation an element.
    """
    packet = func.overloadpacket
    if packet in _OWN:
        return _OWN[packet]
    if packet in flop_registry:
        registered = flop_registry[packet]
        return lambda args, kwargs, result: int(registered(*args, **kwargs, out_val=result))
    return _elements if op_class is OpClass.ELEMENTWISE else None


def _elements(args: tuple[Any, ...], _kwargs: dict[str, Any], result: Any) -> int:
    value = args[0] if result is None and args else result
    if isinstance(value, torch.Tensor):
        return value.numel()
    return (
        sum(each.numel() for each in value if isinstance(each, torch.Tensor)) if isinstance(value, list | tuple) else 0
    )


def _attention(args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> int:
    query, key, value = args[:3]
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _attention_backward(args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> int:
    gradient, query, key, value = args[:4]
    return int(sdpa_backward_flop_count(gradient.shape, query.shape, key.shape, value.shape))


def _lstm_layer(args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> int:
    """Four gates of a product with the input and one with the hidden state, for every token."""
    inputs, of_input, of_hidden = args[:3]
    tokens = inputs.numel() // inputs.shape[-1]
    return 2 * int(tokens) * int(of_input.numel() + of_hidden.numel())


def _twice(forward: Formula) -> Formula:
    """Backward: gradients of inputs and of weights."""
    return lambda args, kwargs, result: 2 * (forward(args, kwargs, result) or 0)


def _cudnn_rnn(args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> int:
    inputs, weights = args[:2]
    tokens = inputs.numel() // inputs.shape[-1]
    return 2 * int(tokens) * sum(int(weight.numel()) for weight in weights if weight.dim() > 1)


_OWN: dict[Any, Formula] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    aten.mkldnn_rnn_layer: _lstm_layer,
    aten.mkldnn_rnn_layer_backward: _twice(_lstm_layer),
    aten._cudnn_rnn: _cudnn_rnn,
    aten._cudnn_rnn_backward: _twice(_cudnn_rnn),
}
