#include "engine/owners.h"

#include <atomic>

namespace um::owners {
namespace {

std::atomic<const um_owner_functions*> current{nullptr};

// nullptr: nobody owns anything. An owner settles also what it could not do.
const um_owner_functions* called() noexcept {
  const um_owner_functions* const functions = current.load(std::memory_order_acquire);
  if (functions != nullptr) detail::unsettled = true;
  return functions;
}

}  // namespace

void set(const um_owner_functions* functions) noexcept { current.store(functions, std::memory_order_release); }

void* remember(void* storage, const void* address) noexcept {
  if (storage == nullptr) return nullptr;
  const um_owner_functions* const functions = called();
  return functions != nullptr ? functions->remember(storage, address) : nullptr;
}

bool repoint(void* owner, uint64_t from, uint64_t to) noexcept {
  return called()->repoint(owner, reinterpret_cast<const void*>(from), reinterpret_cast<void*>(to)) != 0;
}

void forget(void* owner) noexcept { called()->forget(owner); }

void detail::settle() noexcept {
  unsettled = false;  // first: what is let go of takes the lock again
  current.load(std::memory_order_acquire)->settle();
}

}  // namespace um::owners

namespace um {
namespace {

class ProcessOwners final : public Owners {
 public:
  void* remember(void* storage, uint64_t address) noexcept override {
    return owners::remember(storage, reinterpret_cast<const void*>(address));
  }
  bool repoint(void* owner, uint64_t from, uint64_t to) noexcept override { return owners::repoint(owner, from, to); }
  void forget(void* owner) noexcept override { owners::forget(owner); }
};

}  // namespace

Owners& process_owners() {
  static auto* const owners = new ProcessOwners;
  return *owners;
}

}  // namespace um
