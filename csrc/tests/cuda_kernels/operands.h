// An op's operands as the CPU sees them: the same bytes under the CPU's name, or no bytes at all.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/stack.h>

#include <unordered_map>
#include <vector>

namespace cuda_kernels {

// Calls `change` on each tensor of a value: one, a list, or a list with gaps. Everything else stays as it is.
template <class Change>
c10::IValue with_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> changed;
    for (const at::Tensor& tensor : value.toTensorVector()) changed.push_back(change(tensor));
    return changed;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> changed;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      changed.push_back(tensor ? std::optional<at::Tensor>(change(*tensor)) : std::nullopt);
    return changed;
  }
  return value;
}

template <class Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  with_tensors(value, [&](const at::Tensor& tensor) {
    if (tensor.defined()) visit(tensor);
    return tensor;
  });
}

// The CPU's names for tensors of the GPU. They keep nothing alive, as a kernel does not: who frees memory too early has
// it used after that, as on a GPU. Tensors that share a storage share it here.
class Aliases {
 public:
  // What is the CPU's already is copied: a launch takes the value that it has now.
  at::Tensor of(const at::Tensor& tensor);

 private:
  std::unordered_map<c10::StorageImpl*, c10::Storage> storages_;
};

// A tensor of the same shape on the device "meta"; a number of the CPU as it is.
at::Tensor without_bytes(const at::Tensor& tensor);

}  // namespace cuda_kernels
