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
  char* data = nullptr;           // for the CPU and for copies
  unsigned long long handle = 0;  // CUmemGenericAllocationHandle; 0: page-locked
  Fences::Fence last_use = 0;
  HostChunk* next_free = nullptr;
};

// The chunks of one block, in order of its addresses.
struct HostRange {
  std::vector<HostChunk*> chunks;
  HostRange* next_free = nullptr;  // StablePool's
};

class HostChunks {
 public:
  HostChunks(const Backend& backend, Fences& fences, uint64_t chunk_bytes, uint64_t budget_bytes, bool mapped);
  // Every range was given back before. Whoever cares whether the driver takes the memory back calls give_back.
  ~HostChunks();
  HostChunks(const HostChunks&) = delete;
  HostChunks& operator=(const HostChunks&) = delete;

  // nullptr when the budget is used up, or the machine has no more; throws um::Error on another failure. Waits for the
  // last use of chunks that were given back.
  HostRange* take(uint64_t chunks);
  void give(HostRange* range, Fences::Fence last_use) noexcept;
  // Gives chunks that nobody holds back to the driver. False when it kept one.
  bool give_back() noexcept;
  // What is held beyond it stays until it is given back.
  void set_budget(uint64_t bytes) noexcept;

  uint64_t created() const { return all_.size(); }
  Level in_use;  // chunks

 private:
  void create();
  bool destroy(HostChunk& chunk) noexcept;
  HostChunk* take_idle();

  const Backend& backend_;
  Fences& fences_;
  const uint64_t chunk_bytes_;
  const bool mapped_;
  uint64_t budget_;  // chunks
  std::vector<std::unique_ptr<HostChunk>> all_;
  HostChunk* oldest_ = nullptr;  // nobody's, in the order in which they were given back
  HostChunk* newest_ = nullptr;
  uint64_t idle_ = 0;
  StablePool<HostRange> ranges_;
};

}  // namespace um
