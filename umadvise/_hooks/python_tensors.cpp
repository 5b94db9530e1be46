#include "python_tensors.h"

#include <ATen/core/Tensor.h>
#include <c10/util/MaybeOwned.h>
#include <torch/csrc/api/include/torch/version.h>

#include <cstring>

#include "errors.h"
#include "hooks.h"

namespace um::hooks {
namespace {

// The member after an object's header (torch/csrc/autograd/python_variable.h).
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 10
using PythonsTensor = at::Tensor;
const at::Tensor& tensor_in(const PythonsTensor& held) { return held; }
#else
using PythonsTensor = c10::MaybeOwned<at::Tensor>;
const at::Tensor& tensor_in(const PythonsTensor& held) { return *held; }
#endif

}  // namespace

PythonsClasses python{};

void* class_of(const void* object) {  // the last field of an object's header
  void* found = nullptr;
  std::memcpy(&found, static_cast<const char*>(object) + python.header_bytes - sizeof(found), sizeof(found));
  return found;
}

bool is_tensor(const void* object) {
  void* const type = class_of(object);
  return type == python.parameter_class || type == python.tensor_class ||
         PyType_IsSubtype(type, python.tensor_class) != 0;
}

const c10::TensorImpl* implementation_of(const void* object) {
  const auto* const held = static_cast<const char*>(object) + python.header_bytes;
  return tensor_in(*reinterpret_cast<const PythonsTensor*>(held)).unsafeGetTensorImpl();
}

}  // namespace um::hooks

using namespace um::hooks;

um_status um_hooks_python_set(void* tensor_class, void* parameter_class, uint64_t header_bytes, void* sample,
                              const void* implementation) {
  return guarded([&] {
    python = {tensor_class, parameter_class, header_bytes};
    const char* const held = static_cast<const char*>(sample) + header_bytes;
    const bool at_start =
        std::memcmp(held + sizeof(PythonsTensor) - sizeof(void*), &implementation, sizeof(void*)) == 0;
    if (at_start && class_of(sample) == tensor_class && implementation_of(sample) == implementation) return;
    throw CoreError{UM_UNSUPPORTED, "this Python's or torch's tensors are laid out in another way than is known"};
  });
}
