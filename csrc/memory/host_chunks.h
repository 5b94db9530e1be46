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

struct HostSlab;

struct HostChunk {
  char* data = nullptr;                             // for the CPU and for copies
  driver::CUmemGenericAllocationHandle handle = 0;  // 0: page-locked
  Fences::Fence last_use = 0;                       // of who gave it back
  HostChunk* newer = nullptr;                       // of those that nobody has
  HostSlab* slab = nullptr;
};

// What the driver gives at once, as each of its calls for page-locked memory takes milliseconds and stops the device:
// many chunks of page-locked memory, or one that can be mapped.
struct HostSlab {
  char* data = nullptr;
  driver::CUmemGenericAllocationHandle handle = 0;
  bool mapped = false;  // the handle, at `data`
  uint64_t bytes = 0;
  std::vector<HostChunk> chunks;
  uint64_t idle = 0;  // chunks that nobody has
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

  // What somebody gave back before what is new. nullptr when the budget is used up, or the driver has no more. What
  // `user` is given from now on runs after the last use of what is taken; where that is no stream, the host waits.
  // Throws um::Error.
  HostRange* take(uint64_t chunks, const driver::CUstream* user);
  void give(HostRange* range, Fences::Fence last_use) noexcept;
  // Slabs of which nobody has a chunk go back to the driver. False when it kept one.
  bool give_back() noexcept;
  // 0: what the machine can spare now. Slabs beyond it of which a chunk is in use stay. Throws um::Error.
  void set_budget(uint64_t bytes);

  uint64_t created() const { return created_; }
  Level in_use;  // chunks

 private:
  bool create();
  std::unique_ptr<HostSlab> obtain(uint64_t chunks, driver::CUresult* result);
  driver::CUresult obtain_memory(HostSlab& slab) const;
  driver::CUresult obtain_mappable(HostSlab& slab) const;
  bool destroy(HostSlab& slab) const noexcept;
  HostChunk* take_one(const driver::CUstream* user);
  HostChunk* pop_oldest() noexcept;
  void push_newest(HostChunk* chunk) noexcept;
  void put(HostRange* range, Fences::Fence last_use) noexcept;
  HostSlab* idle_slab() noexcept;
  void drop(HostSlab* slab) noexcept;

  const Backend& backend_;
  Fences& fences_;
  const uint64_t chunk_bytes_;
  const bool mappable_;
  const uint64_t slab_chunks_;
  uint64_t budget_ = 0;   // chunks
  uint64_t created_ = 0;  // likewise
  std::vector<std::unique_ptr<HostSlab>> slabs_;
  std::vector<std::unique_ptr<HostSlab>> leftovers_;  // half made, or half taken back
  HostChunk* oldest_ = nullptr;                       // that nobody has, in the order in which they were given back
  HostChunk* newest_ = nullptr;
  StablePool<HostRange> ranges_;
};

}  // namespace um
