// Moving a live storage's bytes into our memory and back. Tensors find their data through the storage, so all of them,
// with their offsets, follow when its data pointer changes.
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "allocator.h"
#include "errors.h"
#include "hooks.h"

namespace um::hooks {
namespace {

constexpr uint64_t kStagingBytes = uint64_t{8} << 20;

c10::StorageImpl& checked(void* storage) {
  if (storage == nullptr) throw CoreError{UM_INVALID_ARGUMENT, "no storage was given"};
  auto& found = *static_cast<c10::StorageImpl*>(storage);
  if (found.device_type() != c10::DeviceType::CPU) {
    throw CoreError{UM_UNSUPPORTED, "only storages of the CPU can be moved, this one is on " + found.device().str()};
  }
  found.mutable_data();  // ends a lazy copy (copy on write): the storage has bytes of its own from here on
  return found;
}

// Between two places of ours through host memory: a driver's copy takes one side from the host.
void copy_within(char* to, const char* from, uint64_t bytes) {
  std::vector<char> staging(std::min(bytes, kStagingBytes));
  for (uint64_t done = 0; done < bytes; done += staging.size()) {
    const uint64_t part = std::min<uint64_t>(staging.size(), bytes - done);
    check_core(um_copy_to_host(staging.data(), from + done, part));
    check_core(um_copy_from_host(to + done, staging.data(), part));
  }
}

void adopt(c10::StorageImpl& storage, um_device* device, const um_placement& placement) {
  const uint64_t bytes = storage.nbytes();
  void* address = nullptr;
  check_core(um_allocate(device, bytes, &placement, nullptr, &address));
  if (address == nullptr) return;  // an empty storage has nothing to move
  c10::DataPtr data = owned_data(address);
  if (um_owns(storage.data()) != 0) {
    copy_within(static_cast<char*>(address), static_cast<const char*>(storage.data()), bytes);
  } else {
    check_core(um_copy_from_host(address, storage.data(), bytes));
  }
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_allocator(installed_allocator());  // a later resize_ frees and allocates by the rules of ours
}

void give_back(c10::StorageImpl& storage) {
  if (um_owns(storage.data()) == 0) return;
  c10::DataPtr data = ordinary_data(storage.nbytes());
  check_core(um_copy_to_host(data.get(), storage.data(), storage.nbytes()));
  storage.set_data_ptr_noswap(std::move(data));
}

}  // namespace
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
