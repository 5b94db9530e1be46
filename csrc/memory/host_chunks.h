// Host memory for what left the device, in chunks that are recycled: page-locked memory or, where it is to be mapped at
// the device's addresses, physical memory of the driver's that lies on the host.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "memory/backend.h"
#include "memory/fence.h"
#include "memory/stable_pool.h"
#include "memory/statistics.h"

namespace um {

struct HostChunk {
  char* data = nullptr;                             // for the CPU and for copies
  driver::CUmemGenericAllocationHandle handle = 0;  // 0: page-locked
  bool mapped = false;                              // the handle, at `data`
  Fences::Fence last_use = 0;                       // of who gave it back
  HostChunk* newer = nullptr;                       // of those that nobody has
  size_t index = 0;                                 // among all
};

// The chunks of one block, in order of its addresses.
struct HostRange {
  std::vector<HostChunk*> chunks;
  HostRange* next_free = nullptr;  // StablePool's
};

class HostChunks {
 public:
  // Throws um::Error.
  HostChunks(const Backend& backend, Fences& fences, uint64_t chunk_bytes, uint64_t budget_bytes, bool mappable);
  // Every range was given back, and every chunk to the driver, before.
  ~HostChunks() = default;
  HostChunks(const HostChunks&) = delete;
  HostChunks& operator=(const HostChunks&) = delete;

  // nullptr when the budget is used up, or the driver has no more. Waits for the last use of what it takes: throws
  // um::Error.
  HostRange* take(uint64_t chunks);
  void give(HostRange* range, Fences::Fence last_use) noexcept;
  // Chunks that nobody has go back to the driver. False when it kept one.
  bool give_back() noexcept;
  // 0: what the machine has available now. What is in use beyond it stays. Throws um::Error.
  void set_budget(uint64_t bytes);

  uint64_t created() const { return all_.size(); }
  Level in_use;  // chunks

 private:
  HostChunk* create();
  driver::CUresult obtain(HostChunk& chunk) const;
  driver::CUresult obtain_mappable(HostChunk& chunk) const;
  bool destroy(HostChunk& chunk) const noexcept;
  HostChunk* take_one();
  HostChunk* pop_oldest() noexcept;
  void put(HostRange* range, Fences::Fence last_use) noexcept;
  void shed() noexcept;
  void drop_oldest() noexcept;

  const Backend& backend_;
  Fences& fences_;
  const uint64_t chunk_bytes_;
  const bool mappable_;
  uint64_t budget_ = 0;  // chunks
  std::vector<std::unique_ptr<HostChunk>> all_;
  std::vector<std::unique_ptr<HostChunk>> leftovers_;  // half made, or half taken back
  HostChunk* oldest_ = nullptr;                        // that nobody has, in the order in which they were given back
  HostChunk* newest_ = nullptr;
  StablePool<HostRange> ranges_;
};

}  // namespace um
