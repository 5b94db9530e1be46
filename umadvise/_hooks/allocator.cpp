// The CPU allocator: threads with a route to a device get its memory, and all others that of the former allocator.
//
// It is installed for the life of the process. torch and its libraries free memory of an earlier allocator with the
// present one (as oneDNN does). So the deleter decides by address alone, and the context of every block is its address.
#include "allocator.h"

#include <c10/core/CPUAllocator.h>

#include <cstdint>
#include <limits>
#include <mutex>

#include "cuda_allocator.h"
#include "errors.h"
#include "fallbacks.h"
#include "hooks.h"
#include "interposer.h"
#include "owners.h"
#include "remedies.h"

namespace um::hooks {
namespace {

// Both are set once, before the allocator is installed.
c10::Allocator* previous_allocator = nullptr;
c10::DeleterFnPtr previous_free = nullptr;

thread_local bool routes_outside_ops = false;

void release(void* pointer) {
  if (um_free(pointer) == 0) previous_free(pointer);
}

c10::DataPtr with_our_deleter(void* block) { return {block, block, &release, c10::Device(c10::DeviceType::CPU)}; }

class RoutingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    um_device* const device = um_route_device();
    if (bytes == 0 || serves_cuda() || device == nullptr || (interposing_outside_ops() && !routes_outside_ops)) {
      return ordinary_data(bytes);
    }
    void* block = nullptr;
    const um_status status =
        request_with_remedies({kHostAllocation, device}, [&] { return um_allocate_routed(bytes, nullptr, &block); });
    if (status != UM_OK) note_refusal(bytes);
    throw_as_torch(status, um_hooks_last_error);
    ++allocations_made;
    return with_our_deleter(block);
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }
};

// It is never destroyed, because storages outlive static objects.
RoutingAllocator& routing_allocator() {
  static auto* const allocator = new RoutingAllocator;
  return *allocator;
}

}  // namespace

c10::DataPtr owned_data(void* address) { return with_our_deleter(address); }

c10::DataPtr ordinary_data(size_t bytes) { return with_our_deleter(previous_allocator->raw_allocate(bytes)); }

c10::Allocator* installed_allocator() { return &routing_allocator(); }

void install_allocator() {
  static std::mutex installing;
  const std::lock_guard<std::mutex> lock(installing);
  c10::Allocator* const present = c10::GetCPUAllocator();
  if (present == &routing_allocator()) return;
  if (previous_allocator != nullptr) {
    throw CoreError{UM_BAD_STATE, "another library has put its CPU allocator in place of umadvise's; load it first"};
  }
  if (present->raw_deleter() == nullptr) {
    throw CoreError{UM_UNSUPPORTED, "torch's present CPU allocator cannot free by address, which routing builds upon"};
  }
  previous_allocator = present;
  previous_free = present->raw_deleter();
  c10::SetCPUAllocator(&routing_allocator(), std::numeric_limits<uint8_t>::max());
  own_storages();
}

}  // namespace um::hooks

um_status um_hooks_allocator_install(void) { return um::hooks::guarded(um::hooks::install_allocator); }

void um_hooks_route_outside_ops(int32_t on) { um::hooks::routes_outside_ops = on != 0; }
