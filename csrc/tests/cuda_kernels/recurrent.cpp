// Formulas: Hochreiter and Schmidhuber 1997 with forget gates, Cho et al. 2014, as torch.nn.LSTMCell and
// torch.nn.GRUCell document them; gates in torch's order.
#include "recurrent.h"

namespace cuda_kernels {
namespace {

Tensor with_bias(const Tensor& gates, Bias bias) { return bias && bias->defined() ? gates + *bias : gates; }

Tensor slope_of_sigmoid(const Tensor& value) { return value * (1 - value); }
Tensor slope_of_tanh(const Tensor& value) { return 1 - value * value; }

Tensor bias_gradient(const Tensor& gates, bool has_bias) { return has_bias ? gates.sum(0) : Tensor(); }

}  // namespace

// The workspace is the four gates after their activation.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             Bias input_bias, Bias hidden_bias) {
  const auto gates = (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh(), out = gates[3].sigmoid();
  const Tensor cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hy,
                                                      const std::optional<Tensor>& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace, bool has_bias) {
  const auto gates = workspace.chunk(4, 1);
  const Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const Tensor squashed = cy.tanh();
  const Tensor hidden = grad_hy && grad_hy->defined() ? *grad_hy : at::zeros_like(cy);
  Tensor total = hidden * out * slope_of_tanh(squashed);
  if (grad_cy && grad_cy->defined()) total = total + *grad_cy;
  const Tensor grad_gates = at::cat({total * cell * slope_of_sigmoid(in), total * cx * slope_of_sigmoid(forget),
                                     total * in * slope_of_tanh(cell), hidden * squashed * slope_of_sigmoid(out)},
                                    1);
  return {grad_gates, total * forget, bias_gradient(grad_gates, has_bias)};
}

// The workspace is reset gate, update gate, new gate, the old state, and what the new gate takes of it.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    Bias input_bias, Bias hidden_bias) {
  const auto input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = (input[0] + hidden[0]).sigmoid(), update = (input[1] + hidden[1]).sigmoid();
  const Tensor fresh = (input[2] + reset * hidden[2]).tanh();
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias) {
  const auto kept = workspace.chunk(5, 1);
  const Tensor &reset = kept[0], &update = kept[1], &fresh = kept[2], &hx = kept[3], &hidden = kept[4];
  const Tensor of_update = grad_hy * (hx - fresh) * slope_of_sigmoid(update);
  const Tensor of_fresh = grad_hy * (1 - update) * slope_of_tanh(fresh);
  const Tensor of_reset = of_fresh * hidden * slope_of_sigmoid(reset);
  const Tensor input_gates = at::cat({of_reset, of_update, of_fresh}, 1);
  const Tensor hidden_gates = at::cat({of_reset, of_update, of_fresh * reset}, 1);
  return {input_gates, hidden_gates, grad_hy * update, bias_gradient(input_gates, has_bias),
          bias_gradient(hidden_gates, has_bias)};
}

}  // namespace cuda_kernels
