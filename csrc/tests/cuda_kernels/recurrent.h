// The cells of LSTM and GRU, which CUDA has as one kernel each and the CPU as several ops.
#pragma once

#include <ATen/ATen.h>

#include <tuple>

namespace cuda_kernels {

using at::Tensor;
using Bias = const std::optional<Tensor>&;

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             Bias input_bias, Bias hidden_bias);
std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hy,
                                                      const std::optional<Tensor>& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace, bool has_bias);
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    Bias input_bias, Bias hidden_bias);
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias);

}  // namespace cuda_kernels
