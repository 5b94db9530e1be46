// Moves the bytes of a live storage into our memory, and back. Tensors find their data through the storage, so all of
// them follow, with their offsets, when its data pointer changes.
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "accesses.h"
#include "allocator.h"
#include "errors.h"
#include "hooks.h"
#include "owners.h"

namespace um::hooks {
namespace {

c10::StorageImpl& checked(void* storage) {
  if (storage == nullptr) throw CoreError{UM_INVALID_ARGUMENT, "no storage was given"};
  auto& found = *static_cast<c10::StorageImpl*>(storage);
  if (found.device_type() != c10::DeviceType::CPU) {
    throw CoreError{UM_UNSUPPORTED, "only storages of the CPU can be moved, this one is on " + found.device().str()};
  }
  found.mutable_data();  // ends a lazy copy (copy on write): from here on the storage has bytes of its own
  return found;
}

// A storage's memory together with memory that it held before and that code outside of torch may still use. All of it
// is freed together.
struct Succession {
  c10::DataPtr present;
  std::vector<c10::DataPtr> former;
};

void end_succession(void* context) { delete static_cast<Succession*>(context); }

// Asks the core about the storage's bytes, and repeats that if another thread's allocation moved them before the core
// found them.
template <class Ask>
um_status asked(const c10::StorageImpl& storage, const Ask& ask) {
  for (;;) {
    const void* const address = storage.data();
    const um_status status = ask(address);
    if (storage.data() == address) return status;
  }
}

// Replaces the storage's memory by `data`. Torch marks a storage whose memory numpy shares, or other code owns, as not
// resizable: that memory outlives the move. Our own memory does not, so the caller moves no exported block.
void succeed(c10::StorageImpl& storage, c10::DataPtr data) {
  c10::DataPtr replaced;  // freed after the lock has been released
  const std::lock_guard<std::mutex> lock(replacing_memory());
  auto* const before = storage.mutable_data_ptr().cast_context<Succession>(&end_succession);
  const bool shared = !storage.resizable() && um_owns(storage.data()) == 0;
  if (shared || before != nullptr) {
    auto succession = std::make_unique<Succession>();
    if (before != nullptr) succession->former = std::move(before->former);
    if (shared) succession->former.push_back(storage.set_data_ptr({}));
    void* const address = data.get();
    succession->present = std::move(data);
    data = {address, succession.release(), &end_succession, c10::Device(c10::DeviceType::CPU)};
  }
  replaced = storage.set_data_ptr(std::move(data));
  storage.set_allocator(installed_allocator());  // a later resize_ frees and allocates as our allocator does
  storage.set_resizable(true);                   // the new memory is not shared
}

void adopt(c10::StorageImpl& storage, um_device* device, const um_placement& placement) {
  const uint64_t bytes = storage.nbytes();
  void* address = nullptr;
  check_core(um_allocate(device, bytes, &placement, nullptr, &address));
  if (address == nullptr) return;  // an empty storage has nothing to move
  c10::DataPtr data = owned_data(address);
  check_core(asked(storage, [&](const void* present) { return um_copy_from_host(address, present, bytes); }));
  succeed(storage, std::move(data));
  const um_shown shown{address, &storage};
  um_show(&shown);
}

void give_back(c10::StorageImpl& storage) {
  if (um_owns(storage.data()) == 0) return;
  c10::DataPtr data = ordinary_data(storage.nbytes());
  const uint64_t bytes = storage.nbytes();
  check_core(asked(storage, [&](const void* present) { return um_copy_to_host(data.get(), present, bytes); }));
  succeed(storage, std::move(data));
}

}  // namespace

bool is_succession(const c10::DataPtr& data) { return data.get_deleter() == &end_succession; }

void repoint_succession(c10::DataPtr& data, void* to) {
  auto* const succession = static_cast<Succession*>(data.release_context());
  static_cast<void>(succession->present.release_context());  // a move frees no memory
  succession->present = owned_data(to);
  data = {to, succession, &end_succession, data.device()};
}

}  // namespace um::hooks

um_status um_hooks_storage_adopt(void* storage, um_device* device, const um_placement* placement) {
  using namespace um::hooks;
  return guarded([&] {
    install_allocator();
    adopt(checked(storage), device, *placement);
  });
}

um_status um_hooks_storage_give_back(void* storage) {
  using namespace um::hooks;
  return guarded([&] {
    install_allocator();
    give_back(checked(storage));
  });
}

void um_hooks_show(const void* tensor) {
  using namespace um::hooks;
  static_cast<void>(guarded([&] {
    ShownList shown;
    each_part(*static_cast<const c10::TensorImpl*>(tensor),
              [&](const c10::TensorImpl& part) { add_output(part, shown); });
    for (const um_shown& each : shown) um_show(&each);
  }));
}
