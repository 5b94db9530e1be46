"""Recurrent layers as a target runs them: layer by layer in oneDNN, all layers at once in cuDNN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_RELU, _TANH, _LSTM, _GRU = range(4)  # cudnnRNNMode_t, and rnn_kind of oneDNN's wrapper
_GATES = {_RELU: 1, _TANH: 1, _LSTM: 4, _GRU: 3}


def lstm_on_cpu(
    inputs: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """mkldnn/RNN.cpp, mkldnn_rnn: one op for each layer and direction."""
    hidden, cell = hx[0].contiguous(), hx[1].contiguous()
    directions = 2 if bidirectional else 1
    weights_each = 4 if has_biases else 2
    layer_input = (inputs.transpose(0, 1) if batch_first else inputs).contiguous()
    hidden_out, cell_out = [], []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            weights = list(params[index * weights_each : (index + 1) * weights_each])
            if not has_biases:
                weights += [torch.zeros_like(weight) for weight in weights]
            output, last_hidden, last_cell, _ = aten.mkldnn_rnn_layer(
                *(layer_input, *weights, hidden[index], cell[index], direction > 0, [], _LSTM),
                *(hidden.shape[-1], num_layers, has_biases, bidirectional, batch_first, train),
            )
            outputs.append(output)
            hidden_out.append(last_hidden)
            cell_out.append(last_cell)
        layer_input = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout != 0 and train and layer < num_layers - 1:
            layer_input = torch.dropout(layer_input, dropout, True)
    result = layer_input.transpose(0, 1) if batch_first else layer_input
    return result, torch.stack(hidden_out), torch.stack(cell_out)


def mkldnn_rnn_layer(inputs: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What oneDNN returns: all outputs, the last states, and for training a workspace that backward reads.

    Its workspace was found by recording runs (oneDNN 3).
    """
    hx, cx, train = arguments[4], arguments[5], arguments[-1]
    tokens, batch = inputs.shape[0], inputs.shape[1]
    output = inputs.new_empty((tokens, batch, hx.shape[-1]))
    size = _lstm_workspace_bytes(tokens, batch, inputs.shape[-1], hx.shape[-1], inputs.itemsize) if train else 0
    return output, torch.empty_like(hx), torch.empty_like(cx), inputs.new_empty(size, dtype=torch.uint8)


_PAGE_BYTES = 4096


def leading_dimension(size: int, item_bytes: int) -> int:
    """OneDNN's row length (rnn_utils.cpp, get_good_ld): whole cache lines, and no multiple of 256."""
    line = 64 // item_bytes
    rounded = -(-size // line) * line
    return rounded + line if rounded % 256 == 0 else rounded


def _lstm_workspace_bytes(tokens: int, batch: int, features: int, hidden: int, item_bytes: int) -> int:
    """Gates, states, cells and differences of every token, each part on whole pages.

    Fitted to what 13 shapes returned: exact for most, one page too much for some.
    """

    def pages(rows: int, length: int) -> int:
        return -(-rows * length * item_bytes // _PAGE_BYTES)

    states = 2 * (tokens + 1) * batch
    wide = leading_dimension(max(features, hidden), item_bytes)
    count = pages(tokens * batch, leading_dimension(4 * hidden, item_bytes)) + pages(tokens * batch, hidden)
    count += 3 * pages(states, wide) + pages(states, leading_dimension(hidden, item_bytes)) + pages(states, hidden)
    return count * _PAGE_BYTES


def mkldnn_rnn_layer_backward(
    inputs: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, w4: Tensor, hx: Tensor, cx: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    """Gradients as large as their tensors, each in memory of its own."""
    return tuple(torch.empty_like(each) for each in (inputs, w1, w2, w3, w4, hx, cx))


def _on_cuda(
    mode: int, inputs: Tensor, hidden: Tensor, cell: Tensor | None, params: Sequence[Tensor], *settings: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """cudnn/RNN.cpp, _cudnn_impl."""
    has_biases, num_layers, dropout, train, bidirectional, batch_first = settings
    output, last_hidden, last_cell = aten._cudnn_rnn(
        *(inputs, list(params), 4 if has_biases else 2, None, hidden.contiguous()),
        *(None if cell is None else cell.contiguous(), mode, hidden.shape[-1], 0, num_layers, batch_first, dropout),
        *(train, bidirectional, [], None),
    )[:3]
    return output, last_hidden, last_cell


def lstm_on_cuda(inputs: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], *settings: Any) -> Any:
    """RNN.cpp, lstm."""
    return _on_cuda(_LSTM, inputs, hx[0], hx[1], params, *settings)


def _without_cell(mode: int) -> Callable[..., Any]:
    def layers(inputs: Tensor, hx: Tensor, params: Sequence[Tensor], *settings: Any) -> Any:
        return _on_cuda(mode, inputs, hx, None, params, *settings)[:2]

    return layers


# RNN.cpp, gru, rnn_tanh and rnn_relu
gru_on_cuda, rnn_tanh_on_cuda, rnn_relu_on_cuda = map(_without_cell, (_GRU, _TANH, _RELU))


def cudnn_rnn(inputs: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """What cuDNN returns, with a reserve space for training.

    cuDNN does not say what it keeps there; backward needs the gates, the state and the output of every token and layer,
    so that is what is counted.
    """
    hx, cx, mode, hidden_size, proj_size, num_layers, batch_first = arguments[3:10]
    train, bidirectional = arguments[11:13]
    directions = 2 if bidirectional else 1
    batch, tokens = inputs.shape[:2] if batch_first else (inputs.shape[1], inputs.shape[0])
    output = inputs.new_empty((*inputs.shape[:2], (proj_size or hidden_size) * directions))
    each = _GATES[mode] + 1 + (mode == _LSTM)
    reserve = tokens * batch * directions * num_layers * hidden_size * each * inputs.itemsize if train else 0
    return (
        output,
        torch.empty_like(hx),
        inputs.new_empty(0) if cx is None else torch.empty_like(cx),
        inputs.new_empty(reserve, dtype=torch.uint8),
        inputs.new_empty(0),
    )
