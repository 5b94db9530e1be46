// An op as the dispatcher calls it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>

namespace cuda_kernels {

struct Op {
  const c10::OperatorHandle& handle;
  torch::jit::Stack arguments;
  c10::Device device;

  const c10::FunctionSchema& schema() const { return handle.schema(); }
  std::string name() const { return toString(handle.operator_name()); }
  bool writes(size_t argument) const {
    const c10::AliasInfo* const alias = schema().arguments()[argument].alias_info();
    return alias != nullptr && alias->isWrite();
  }
  bool random(size_t argument) const { return schema().arguments()[argument].name() == "generator"; }
};

// The argument that a result is; none for a new tensor.
std::optional<size_t> argument_of(const c10::FunctionSchema& schema, size_t result);

// The GPU that an op is of. Throws where a GPU would not take its operands: they lie on several devices.
c10::Device device_of(const c10::FunctionSchema& schema, const torch::jit::Stack& arguments);

}  // namespace cuda_kernels
