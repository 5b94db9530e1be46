#include "storage_exports.h"

#include <algorithm>
#include <utility>

#include "accesses.h"
#include "cuda_streams.h"

namespace um::hooks {

// Another thread's allocation may move the memory before the core has found it. Then the export fails, or is one of the
// memory that has the address now.
um_status StorageExports::add(const c10::TensorImpl& tensor) {
  c10::StorageImpl* const storage = storage_of_ours(tensor);
  const auto is_it = [&](const Exported& each) { return each.storage.unsafeGetStorageImpl() == storage; };
  if (storage == nullptr || std::any_of(exported_.begin(), exported_.end(), is_it)) return UM_OK;
  exported_.reserve(exported_.size() + 1);
  for (;;) {
    const void* const before = address_of(*storage);
    const void* present = nullptr;
    const um_status status = um_export(before, &present);
    if (status == UM_UNSUPPORTED) return UM_OK;  // on a GPU, which uses it wherever it lies
    const void* const now = address_of(*storage);
    um_allocation found{};
    if (status == UM_OK && now == present && um_allocation_at(present, &found) == UM_OK) {
      exported_.push_back({tensor.storage(), present, found.serial});
      return UM_OK;
    }
    if (status == UM_OK) {
      um_export_release(present);
    } else if (now == before) {
      return status;
    }
  }
}

void StorageExports::note_current_streams() const {
  for (const Exported& each : exported_) {
    const c10::Device device = each.storage.device();
    if (device.is_cuda()) um_stream_uses(each.address, current_cuda_stream(device.index()));
  }
}

void StorageExports::end() noexcept {
  for (const Exported& each : std::exchange(exported_, {})) {
    um_allocation found{};
    if (um_allocation_at(each.address, &found) == UM_OK && found.serial == each.serial) um_export_release(each.address);
  }
}

}  // namespace um::hooks
