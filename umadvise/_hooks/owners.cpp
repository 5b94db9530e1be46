// Storages as owners of memory of ours: they show its address to all tensors on them, and are told of another one.
//
// What the core keeps of a storage is a weak reference, as the address of its StorageImpl. Other threads may let go of
// the storage at any time, so it is re-pointed under a strong reference. That may be the last one in the end, and then
// frees memory: it is dropped once the device's lock has been released.
#include "owners.h"

#include <c10/core/StorageImpl.h>

#include <new>
#include <utility>

#include "allocator.h"
#include "cuda_allocator.h"
#include "hooks.h"

namespace um::hooks {
namespace {

using Strong = c10::intrusive_ptr<c10::StorageImpl>;
using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

struct Held {
  Strong storage;
  Held* next;
};
thread_local Held* held = nullptr;  // needs no destructor: frees come after thread-local objects are gone

// How a storage holds memory of ours.
enum class Holding : uint8_t { in_no_known_way, by_address, in_succession, by_torchs_allocator };

// `address`: of an allocation of ours, at its start. A lazy copy (copy on write) has a deleter of torch's, and whoever
// shares memory with others one of theirs.
Holding holding(c10::StorageImpl& storage, const void* address) {
  const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  if (data.get() != address || storage.sym_nbytes().is_heap_allocated()) return Holding::in_no_known_way;
  if (is_succession(data)) return Holding::in_succession;
  if (data.get_context() != address || storage.allocator() == nullptr) return Holding::in_no_known_way;
  const c10::DeleterFnPtr deleter = data.get_deleter();
  if (data.device().is_cpu()) {
    return deleter == installed_allocator()->raw_deleter() ? Holding::by_address : Holding::in_no_known_way;
  }
  if (deleter == &free_moved) return Holding::by_address;
  return deleter == storage.allocator()->raw_deleter() ? Holding::by_torchs_allocator : Holding::in_no_known_way;
}

bool move(c10::StorageImpl& storage, const void* from, void* to) {
  const std::lock_guard<std::mutex> lock(replacing_memory());
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  const Holding how = holding(storage, from);
  if (how == Holding::in_no_known_way) return false;
  if (how == Holding::in_succession) {
    repoint_succession(data, to);
    return true;
  }
  if (how == Holding::by_torchs_allocator && !take_over(data.get(), data.get_deleter())) return false;
  const c10::Device device = data.device();
  static_cast<void>(data.release_context());  // a move frees nothing
  if (device.is_cpu()) {
    storage.set_data_ptr_noswap(owned_data(to));
  } else {
    storage.set_data_ptr_noswap({to, to, &free_moved, device});
    note_move(from, to);
  }
  return true;
}

// Torch takes Python's lock to refer to a storage that only its Python object refers to, and a thread that has that
// lock may wait for the device's.
template <class Storage>
bool is_pythons_alone(const Storage& storage, size_t references) {
  if constexpr (requires { storage.pyobj_slot()->load_pyobj(); }) {  // from torch 2.10 on
    return references == 1 && storage.pyobj_slot()->load_pyobj() != nullptr;
  }
  return false;
}

void* remember(void* storage, const void* address) noexcept {
  auto* const shown = static_cast<c10::StorageImpl*>(storage);
  if (holding(*shown, address) == Holding::in_no_known_way) return nullptr;
  c10::raw::weak_intrusive_ptr::incref(shown);
  return shown;
}

int32_t repoint(void* owner, const void* from, void* to) noexcept {
  auto* const storage = static_cast<c10::StorageImpl*>(owner);
  auto* const keep = new (std::nothrow) Held{{}, held};
  if (keep == nullptr) return 0;
  held = keep;
  Weak weak = Weak::reclaim(storage);
  if (!is_pythons_alone(*storage, weak.use_count())) keep->storage = weak.lock();
  static_cast<void>(weak.release());  // it is the core's
  if (!keep->storage) return 0;       // its memory is about to be freed
  return move(*storage, from, to);
}

void forget(void* owner) noexcept { Weak::reclaim(static_cast<c10::StorageImpl*>(owner)); }

// What is let go of may be the last reference to a storage, and so come here again.
void settle() noexcept {
  for (Held* each = std::exchange(held, nullptr); each != nullptr;) delete std::exchange(each, each->next);
}

constexpr um_owner_functions kFunctions{remember, repoint, forget, settle};

}  // namespace

void own_storages() { um_owners_set(&kFunctions); }

std::mutex& replacing_memory() {
  static auto* const lock = new std::mutex;  // storages outlive every static
  return *lock;
}

}  // namespace um::hooks

const um_owner_functions* um_hooks_owner_functions(void) { return &um::hooks::kFunctions; }
