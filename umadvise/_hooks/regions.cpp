// Compiled regions as ops: one run of a graph that torch.compile has compiled, called from Python with tensors.
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

struct CompiledRegion {
  uint32_t name;
  std::vector<uint32_t> written;
  bool gradients;

  bool writes(uint32_t index, bool parameter) const {
    return (gradients && !parameter) || std::ranges::find(written, index) != written.end();
  }
};

thread_local um_device* guarding = nullptr;  // the device of the running region
thread_local uint32_t guarded_name = 0;

int32_t begin(const CompiledRegion& region, void* inputs) {
  c10::SmallVector<RegionInput, 32> given;
  each_tensor_of(inputs, [&](const c10::TensorImpl& tensor, uint32_t index, bool parameter) {
    given.push_back({&tensor, index, region.writes(index, parameter)});
  });
  const WithoutPython meanwhile;
  guarded_name = region.name;
  const um_status status = try_region({region.name, given, true}, guarding);
  if (status != UM_OK) return -static_cast<int32_t>(status);
  return guarding != nullptr ? 1 : 0;
}

}  // namespace
}  // namespace um::hooks

using namespace um::hooks;

void* um_hooks_region(uint32_t name, const uint32_t* written, uint32_t count, int32_t gradients) {
  return new CompiledRegion{name, {written, written + count}, gradients != 0};
}

int32_t um_hooks_region_begin(const void* region, void* inputs) {
  return begin(*static_cast<const CompiledRegion*>(region), inputs);
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
