#include "sparse.h"

#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <array>

#include "launch.h"
#include "op.h"
#include "operands.h"

namespace cuda_kernels {
namespace {

using c10::DispatchKey;
using c10::IValue;

// What gradients of sparse embeddings and their optimizers call: torch.nn.Embedding(sparse=True), SGD, SparseAdam.
constexpr std::array kOps = {"_coalesce",   "add.Tensor", "add_.Tensor", "mul.Tensor",
                             "sparse_mask", "add.out",    "mul.out"};

at::Tensor sparse_on(c10::Device device, const at::Tensor& tensor) {
  return at::_sparse_coo_tensor_unsafe(tensor._indices().to(device), tensor._values().to(device), tensor.sizes(),
                                       tensor.options().device(device))
      ._coalesced_(tensor.is_coalesced());
}

// Dense operands keep their bytes, so that the CPU writes them in place. Sparse ones are copied both ways.
void sparse_kernel(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = handle.schema();
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(schema.arguments().size());
  const Op op{handle, torch::jit::Stack(first, stack->end()), device_of(schema, {first, stack->end()})};
  stack->erase(first, stack->end());
  const c10::DeviceGuard guard(op.device);
  const KernelsOnly kernels_only;
  current_stream(op.device).synchronize();
  Aliases aliases;
  torch::jit::Stack computed;
  for (const IValue& argument : op.arguments) {
    computed.push_back(with_tensors(argument, [&](const at::Tensor& tensor) {
      return tensor.defined() && tensor.is_sparse() ? sparse_on(c10::kCPU, tensor) : aliases.of(tensor);
    }));
  }
  const torch::jit::Stack operands = computed;
  handle.redispatchBoxed(c10::DispatchKeySet(DispatchKey::SparseCPU), &computed);
  for (size_t i = 0; i < computed.size(); ++i) {
    const std::optional<size_t> argument = argument_of(schema, i);
    if (argument && op.arguments[*argument].toTensor().is_sparse()) {
      op.arguments[*argument].toTensor().copy_(sparse_on(op.device, operands[*argument].toTensor()));
    }
    stack->push_back(argument ? op.arguments[*argument] : with_tensors(computed[i], [&](const at::Tensor& tensor) {
      return tensor.is_sparse() ? sparse_on(op.device, tensor) : tensor.to(op.device);
    }));
  }
}

}  // namespace

int register_sparse_kernels() {
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", DispatchKey::SparseCUDA, __FILE__, __LINE__);
  for (const char* name : kOps) library->impl(name, torch::CppFunction::makeFromBoxedFunction<&sparse_kernel>());
  return kOps.size();
}

}  // namespace cuda_kernels
