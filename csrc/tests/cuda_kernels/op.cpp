#include "op.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "operands.h"

namespace cuda_kernels {
namespace {

// Of the CPU's tensors an op on a GPU takes those without dimensions, indices, and the scalars of foreach ops.
bool may_be_on_cpu(const at::Tensor& tensor, const c10::IValue& argument, const std::string& name) {
  return tensor.dim() == 0 || argument.isOptionalTensorList() || name == "scalars";
}

}  // namespace

std::optional<size_t> argument_of(const c10::FunctionSchema& schema, size_t result) {
  const c10::AliasInfo* const alias = schema.returns()[result].alias_info();
  for (size_t i = 0; alias != nullptr && i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* const other = schema.arguments()[i].alias_info();
    if (other != nullptr && *other == *alias) return i;
  }
  return std::nullopt;
}

c10::Device device_of(const c10::FunctionSchema& schema, const torch::jit::Stack& arguments) {
  std::optional<c10::Device> device;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isDevice()) device = arguments[i].toDevice();
    each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (!tensor.is_cuda() && may_be_on_cpu(tensor, arguments[i], schema.arguments()[i].name())) return;
      if (!device) device = tensor.device();
      TORCH_CHECK(*device == tensor.device(), "Expected all tensors to be on the same device, but found at least two ",
                  "devices, ", *device, " and ", tensor.device(), "! (when checking arguments of ", schema.name(), ")");
    });
  }
  if (device && device->is_cuda() && device->has_index()) return *device;
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
}

}  // namespace cuda_kernels
