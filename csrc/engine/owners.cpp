#include "engine/owners.h"

#include <atomic>

namespace um::owners {
namespace {

std::atomic<const um_owner_functions*> current{nullptr};

// Returns nullptr if there are no owners. Notes that owners are called, also if the call fails: they may then have
// references to drop.
const um_owner_functions* called() noexcept {
  const um_owner_functions* const functions = current.load(std::memory_order_acquire);
  if (functions != nullptr) detail::references_pending = true;
  return functions;
}

class ProcessOwners final : public Owners {
 public:
  void* remember(void* storage, uint64_t address) noexcept override {
    const um_owner_functions* const functions = storage != nullptr ? called() : nullptr;
    return functions != nullptr ? functions->remember(storage, reinterpret_cast<const void*>(address)) : nullptr;
  }
  bool repoint(void* owner, uint64_t from, uint64_t to) noexcept override {
    return called()->repoint(owner, reinterpret_cast<const void*>(from), reinterpret_cast<void*>(to)) != 0;
  }
  void forget(void* owner) noexcept override { called()->forget(owner); }
};

}  // namespace

void set(const um_owner_functions* functions) noexcept { current.store(functions, std::memory_order_release); }

void detail::drop_references() noexcept {
  references_pending = false;  // first, because a dropped reference takes the lock again
  current.load(std::memory_order_acquire)->drop_references();
}

}  // namespace um::owners

um::Owners& um::process_owners() {
  static auto* const owners = new owners::ProcessOwners;
  return *owners;
}
