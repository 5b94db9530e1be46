// Programs as ops: one run of a graph that torch.compile has compiled, one call of an extension's function.
//
// It is called from Python with a list of tensors. What is needed of Python is its stable ABI, declared here, and
// where its tensors keep theirs: so one build still serves every Python that has this torch, without Python's headers.
#include <ATen/core/Tensor.h>
#include <c10/util/MaybeOwned.h>
#include <torch/csrc/api/include/torch/version.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "errors.h"
#include "fallbacks.h"
#include "hooks.h"
#include "interposer.h"

extern "C" {  // Python's, with PyObject* as void*
ptrdiff_t PySequence_Size(void* sequence);
void* PySequence_GetItem(void* sequence, ptrdiff_t index);
void Py_DecRef(void* object);
int PyType_IsSubtype(void* type, void* base);
void* PyEval_SaveThread(void);
void PyEval_RestoreThread(void* state);
}

namespace um::hooks {
namespace {

struct Region {
  uint32_t name;
  std::vector<uint32_t> written;
  uint32_t kind;  // um_hooks_writes

  bool writes(uint32_t index, bool parameter) const {
    return kind == UM_HOOKS_WRITES_ALL || (kind == UM_HOOKS_WRITES_GRADIENTS && !parameter) ||
           std::ranges::find(written, index) != written.end();
  }
};

// Other threads may run while the core waits; they may need Python for what it waits for.
class WithoutPython {
 public:
  WithoutPython() : state_(PyEval_SaveThread()) {}
  ~WithoutPython() { PyEval_RestoreThread(state_); }
  WithoutPython(const WithoutPython&) = delete;
  WithoutPython& operator=(const WithoutPython&) = delete;

 private:
  void* state_;
};

// torch/csrc/autograd/python_variable.h: what follows an object's header.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 10
using PythonsTensor = at::Tensor;
const at::Tensor& tensor_in(const PythonsTensor& held) { return held; }
#else
using PythonsTensor = c10::MaybeOwned<at::Tensor>;
const at::Tensor& tensor_in(const PythonsTensor& held) { return *held; }
#endif

struct {
  void* tensor_class;
  void* parameter_class;
  size_t header_bytes;
} python;

void* class_of(const void* object) {  // the last field of an object's header
  void* found = nullptr;
  std::memcpy(&found, static_cast<const char*>(object) + python.header_bytes - sizeof(found), sizeof(found));
  return found;
}

const c10::TensorImpl* implementation_of(const void* object) {
  const auto* const held = static_cast<const char*>(object) + python.header_bytes;
  return tensor_in(*reinterpret_cast<const PythonsTensor*>(held)).unsafeGetTensorImpl();
}

// Calls `visit(const c10::TensorImpl&, uint32_t index, bool parameter)` for the tensors of a sequence, which keeps
// them.
template <class Visit>
void each_tensor_of(void* sequence, const Visit& visit) {
  const ptrdiff_t count = PySequence_Size(sequence);
  for (ptrdiff_t index = 0; index < count; ++index) {
    void* const object = PySequence_GetItem(sequence, index);
    if (object == nullptr) continue;
    void* const type = class_of(object);
    const bool parameter = type == python.parameter_class;
    if (parameter || type == python.tensor_class || PyType_IsSubtype(type, python.tensor_class) != 0) {
      visit(*implementation_of(object), static_cast<uint32_t>(index), parameter);
    }
    Py_DecRef(object);
  }
}

thread_local um_device* guarding = nullptr;  // the region that runs
thread_local uint32_t guarded_name = 0;

int32_t begin(const Region& region, void* inputs) {
  c10::SmallVector<RegionInput, 32> given;
  each_tensor_of(inputs, [&](const c10::TensorImpl& tensor, uint32_t index, bool parameter) {
    given.push_back({&tensor, index, region.writes(index, parameter)});
  });
  const WithoutPython meanwhile;
  um_status status = UM_OK;
  const um_status failed = guarded([&] {
    try {
      guarded_name = region.name;
      guarding = begin_region({region.name, given});
    } catch (const c10::OutOfMemoryError& error) {
      last_error = error.what_without_backtrace();
      status = UM_OUT_OF_DEVICE_MEMORY;
    }
  });
  if (failed != UM_OK || status != UM_OK) return -static_cast<int32_t>(std::max(failed, status));
  return guarding != nullptr ? 1 : 0;
}

}  // namespace
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

void* um_hooks_region(uint32_t name, const uint32_t* written, uint32_t count, uint32_t writes) {
  return new Region{name, {written, written + count}, writes};
}

int32_t um_hooks_region_begin(const void* region, void* inputs) {
  return begin(*static_cast<const Region*>(region), inputs);
}

void um_hooks_region_end(void* outputs) {
  ShownList shown;
  if (outputs != nullptr) {
    each_tensor_of(outputs, [&](const c10::TensorImpl& tensor, uint32_t, bool) { add_output(tensor, shown); });
    end_despite_refusals(guarded_name);
  }
  const WithoutPython meanwhile;
  end_region(std::exchange(guarding, nullptr), shown);
}

int32_t um_hooks_region_runs(void) { return guarding != nullptr ? 1 : 0; }
