#include "wrappers.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "hooks.h"

namespace um::hooks {
namespace {

std::atomic<um_hooks_parts> tell_parts{nullptr};

// Reads a member of torch whose name changed in 2.10.
template <class Slot>
void* object_in(const Slot& slot) {
  if constexpr (requires { slot.load_pyobj(); }) {
    return slot.load_pyobj();
  } else {
    return slot._unchecked_untagged_pyobj();
  }
}

}  // namespace

std::vector<const c10::TensorImpl*> parts_of(const c10::TensorImpl& wrapper) {
  const um_hooks_parts tell = tell_parts.load(std::memory_order_acquire);
  void* const object = object_in(*const_cast<c10::TensorImpl&>(wrapper).pyobj_slot());
  if (tell == nullptr || object == nullptr) return {};
  std::array<void*, 16> parts{};
  const auto count = std::min<size_t>(tell(object, parts.data(), parts.size()), parts.size());
  std::vector<const c10::TensorImpl*> found;
  for (size_t index = 0; index < count; ++index) found.push_back(static_cast<const c10::TensorImpl*>(parts[index]));
  return found;
}

}  // namespace um::hooks

void um_hooks_parts_set(um_hooks_parts tell) { um::hooks::tell_parts = tell; }
