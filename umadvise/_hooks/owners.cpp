// Storages as owners of our memory: they show its address to all tensors on them, and can be re-pointed.
//
// The core keeps a weak reference to a storage: the address of its StorageImpl. Other threads may drop the storage at
// any time, so it is re-pointed under a strong reference. If that turns out to be the last one, dropping it frees
// memory, so it is dropped only after the device's lock has been released.
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

struct KeptOwner {
  Strong storage;
  KeptOwner* next;
};
thread_local KeptOwner* held =
    nullptr;  // needs no destructor, because memory is freed after thread-local objects have ended

// The ways in which a storage holds our memory.
enum class Holding : uint8_t { in_no_known_way, by_address, in_succession, by_torchs_allocator };

// `address` is the start of an allocation of ours. A lazy copy (copy on write) has a deleter of torch, and memory that
// is shared with other libraries has one of theirs.
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
  static_cast<void>(data.release_context());  // a move frees no memory
  if (device.is_cpu()) {
    storage.set_data_ptr_noswap(owned_data(to));
  } else {
    storage.set_data_ptr_noswap({to, to, &free_moved, device});
    note_move(from, to);
  }
  return true;
}

// To refer to a storage that only its Python object refers to, torch takes Python's lock. A thread with Python's lock
// may wait for the device's lock, so such a storage is not locked here.
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
  auto* const keep = new (std::nothrow) KeptOwner{{}, held};
  if (keep == nullptr) return 0;
  held = keep;
  Weak weak = Weak::reclaim(storage);
  if (!is_pythons_alone(*storage, weak.use_count())) keep->storage = weak.lock();
  static_cast<void>(weak.release());  // this reference is the core's
  if (!keep->storage) return 0;       // its memory is about to be freed
  return move(*storage, from, to);
}

void forget(void* owner) noexcept { Weak::reclaim(static_cast<c10::StorageImpl*>(owner)); }

// A dropped reference may be the last one to a storage, whose free then calls this function again.
void drop_references() noexcept {
  for (KeptOwner* each = std::exchange(held, nullptr); each != nullptr;) delete std::exchange(each, each->next);
}

constexpr um_owner_functions kFunctions{remember, repoint, forget, drop_references};

}  // namespace

void own_storages() { um_owners_set(&kFunctions); }

std::mutex& replacing_memory() {
  static auto* const lock = new std::mutex;  // storages outlive static objects
  return *lock;
}

}  // namespace um::hooks

const um_owner_functions* um_hooks_owner_functions(void) { return &um::hooks::kFunctions; }
