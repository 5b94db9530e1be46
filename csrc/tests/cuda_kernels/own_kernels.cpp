#include "own_kernels.h"

#include <c10/core/DeviceGuard.h>

#include <map>

#include "launch.h"
#include "recurrent.h"

namespace cuda_kernels {
namespace {

// The CPU's takes torch's default generator, which a program uses at the same time; this one takes the device's.
std::tuple<Tensor, Tensor> dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true) || p == 0) return {input.clone(), at::ones_like(input, at::kBool)};
  const Tensor mask = at::empty_like(input, at::kBool).bernoulli_(1 - p);
  const double scale = p == 1 ? 0 : 1 / (1 - p);
  return {input.mul(mask).mul_(scale), mask};
}

void foreach_copy(at::TensorList to, at::TensorList from, bool non_blocking) {
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i], non_blocking);
}

Tensor channel(const Tensor& tensor, int64_t dim, int64_t index, int64_t channels) {
  const int64_t width = tensor.size(dim) / channels;
  return tensor.narrow(dim, index * width, width);
}

// One convolution for each channel: those are no longer depthwise.
Tensor depthwise(const Tensor& input, const Tensor& weight, at::IntArrayRef, Bias bias, at::IntArrayRef stride,
                 at::IntArrayRef padding, at::IntArrayRef dilation) {
  const int64_t channels = input.size(1);
  std::vector<Tensor> outputs;
  for (int64_t i = 0; i < channels; ++i) {
    const std::optional<Tensor> own = bias && bias->defined() ? std::optional(channel(*bias, 0, i, channels)) : bias;
    outputs.push_back(at::convolution(channel(input, 1, i, channels), channel(weight, 0, i, channels), own, stride,
                                      padding, dilation, false, {0, 0}, 1));
  }
  return at::cat(outputs, 1);
}

std::tuple<Tensor, Tensor> depthwise_backward(const Tensor& grad, const Tensor& input, const Tensor& weight,
                                              at::IntArrayRef, at::IntArrayRef stride, at::IntArrayRef padding,
                                              at::IntArrayRef dilation, std::array<bool, 2> wanted) {
  const int64_t channels = input.size(1);
  std::vector<Tensor> of_input, of_weight;
  for (int64_t i = 0; i < channels; ++i) {
    const auto gradients = at::convolution_backward(channel(grad, 1, i, channels).contiguous(),
                                                    channel(input, 1, i, channels).contiguous(),
                                                    channel(weight, 0, i, channels), std::nullopt, stride, padding,
                                                    dilation, false, {0, 0}, 1, {wanted[0], wanted[1], false});
    of_input.push_back(std::get<0>(gradients));
    of_weight.push_back(std::get<1>(gradients));
  }
  return {wanted[0] ? at::cat(of_input, 1) : Tensor(), wanted[1] ? at::cat(of_weight, 0) : Tensor()};
}

// Sizes alone, for the device "meta", which lacks this one.
Tensor slow_conv2d(const Tensor& input, const Tensor& weight, at::IntArrayRef kernel, Bias, at::IntArrayRef stride,
                   at::IntArrayRef padding) {
  const auto length = [&](int64_t axis) {
    return (input.size(2 + axis) + 2 * padding[axis] - kernel[axis]) / stride[axis] + 1;
  };
  return at::empty({input.size(0), weight.size(0), length(0), length(1)}, input.options());
}

const at::Tensor* first(const Tensor& tensor) { return &tensor; }
const at::Tensor* first(at::TensorList tensors) { return tensors.empty() ? nullptr : &tensors[0]; }
template <class Other>
const at::Tensor* first(const Other&) {
  return nullptr;
}

// Calls `function` as a kernel, on the device of its first argument.
template <auto function>
struct Kernel;
template <class Result, class... Parameters, Result (*function)(Parameters...)>
struct Kernel<function> {
  static Result call(Parameters... parameters) {
    const Tensor* found = nullptr;
    ((found = found != nullptr ? found : first(parameters)), ...);
    const c10::OptionalDeviceGuard guard(found != nullptr ? std::optional(found->device()) : std::nullopt);
    const KernelsOnly kernels_only;
    return function(parameters...);
  }
};

std::map<std::string, torch::CppFunction> kernels() {
  std::map<std::string, torch::CppFunction> made;
  made.emplace("native_dropout", TORCH_FN(Kernel<&dropout>::call));
  made.emplace("_foreach_copy_", TORCH_FN(Kernel<&foreach_copy>::call));
  made.emplace("_thnn_fused_lstm_cell", TORCH_FN(Kernel<&lstm_cell>::call));
  made.emplace("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(Kernel<&lstm_cell_backward>::call));
  made.emplace("_thnn_fused_gru_cell", TORCH_FN(Kernel<&gru_cell>::call));
  made.emplace("_thnn_fused_gru_cell_backward", TORCH_FN(Kernel<&gru_cell_backward>::call));
  made.emplace("_conv_depthwise2d", TORCH_FN(Kernel<&depthwise>::call));
  made.emplace("_conv_depthwise2d_backward.output_mask", TORCH_FN(Kernel<&depthwise_backward>::call));
  return made;
}

}  // namespace

int register_own_kernels(torch::Library& library) {
  static auto* const meta =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  meta->impl("_slow_conv2d_forward", TORCH_FN(slow_conv2d));
  auto made = kernels();
  for (auto& [name, kernel] : made) library.impl(name.c_str(), std::move(kernel));
  return static_cast<int>(made.size());
}

bool own_kernel(const c10::OperatorName& name) {
  static const auto made = kernels();
  return made.count(toString(name).substr(sizeof("aten::") - 1)) != 0;
}

}  // namespace cuda_kernels
