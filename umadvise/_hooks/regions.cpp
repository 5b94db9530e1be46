// Programs as ops: one run of a graph that torch.compile has compiled, one call of an extension's function.
//
// It is called from Python with a list of tensors.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "errors.h"
#include "fallbacks.h"
#include "hooks.h"
#include "interposer.h"
#include "python_tensors.h"

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
