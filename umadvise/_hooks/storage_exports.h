// Storages whose addresses code outside of ops uses for a while: a collective, or a call of a C++ extension.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <vector>

#include "umadvise.h"

namespace um::hooks {

// Exports the memory of storages, so that it is resident, writable and pinned, and keeps the storages alive. The
// destructor ends the exports.
//
// Not thread-safe: an object belongs to one thread at a time.
class StorageExports {
 public:
  StorageExports() = default;
  ~StorageExports() { end(); }
  StorageExports(const StorageExports&) = delete;
  StorageExports& operator=(const StorageExports&) = delete;

  bool empty() const { return exported_.empty(); }
  // Exports a tensor's storage once. Does nothing for memory that is not ours, or that never moves. Returns
  // UM_OUT_OF_DEVICE_MEMORY if the memory does not fit on the device; the storage is then not exported.
  um_status add(const c10::TensorImpl& tensor);
  // Tells the core that the current CUDA streams use the memory: its next user waits for them.
  void note_current_streams() const;
  void end() noexcept;

 private:
  struct Exported {
    c10::Storage storage;
    const void* address;
    uint64_t serial;  // of the allocation, because torch may give the storage other memory meanwhile
  };
  std::vector<Exported> exported_;
};

}  // namespace um::hooks
