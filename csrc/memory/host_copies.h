// Pinned host memory for the contents of storages that are evicted. A storage on the host points into this memory.
//
// Slabs are large, because each call for pinned memory takes milliseconds and stops the device. Once there are two
// slabs, the helper allocates the next one before it is needed.
//
// Memory that is given back while copies still use it can be taken again at once: the next user's stream waits. So the
// host, which runs ahead of the device, waits for no copy, and needs no new slab only because it has not seen a copy
// end.
//
// Not thread-safe: callers hold the device's lock, and its context is current.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "memory/backend.h"
#include "memory/fence.h"
#include "memory/managed_heap.h"
#include "memory/statistics.h"

namespace um {

// Pinned memory within a budget.
class HostSlabs : public ArenaSource {
 public:
  HostSlabs(const Backend& backend, uint64_t budget_bytes) : backend_(backend) { set_budget(budget_bytes); }
  // Requires that drop_ahead() was called.
  ~HostSlabs() override = default;
  HostSlabs(const HostSlabs&) = delete;
  HostSlabs& operator=(const HostSlabs&) = delete;

  // Sets the budget; 0: as much as the machine can afford now. Slabs beyond the budget are kept until they are
  // released. Throws um::Error.
  void set_budget(uint64_t bytes);
  // Returns less than wanted if the budget ends, or if the driver has no more. Throws UM_OUT_OF_HOST_MEMORY if there is
  // less than `least_bytes`.
  Range acquire(uint64_t least_bytes, uint64_t wanted_bytes) override;
  bool release(Range range) noexcept override;
  // Gives the slab that was allocated ahead of time back to the driver. Returns false if the driver refused.
  bool drop_ahead() noexcept;
  uint64_t created_bytes() const { return created_bytes_; }
  uint64_t budget_bytes() const { return budget_bytes_; }

 private:
  struct Slab {
    void* memory;  // the driver's address
    uint64_t address;
  };
  // A slab that the helper allocates. It may be read only after the job has ended.
  struct Ahead {
    Helper::Ticket job = 0;
    void* memory = nullptr;
    uint64_t bytes = 0;  // counted in created_bytes_
  };
  driver::CUresult allocate(uint64_t bytes, void** memory) const;
  void make_ahead(uint64_t bytes) noexcept;
  const Ahead& ahead() noexcept;
  Range keep(void* memory, uint64_t bytes);

  const Backend& backend_;
  uint64_t budget_bytes_ = 0, created_bytes_ = 0;
  std::vector<Slab> slabs_;
  Ahead ahead_;
};

class HostCopies {
 public:
  static constexpr uint64_t kSlabBytes = uint64_t{256} << 20;
  // The first slab's size on the emulated device, whose driver allocates host memory at no cost.
  static constexpr uint64_t kSmallSlabBytes = uint64_t{16} << 20;

  // `blocks`: the descriptors of one device, shared by its heaps. `slab_bytes`: the size on a GPU. Throws um::Error.
  HostCopies(um_device* device, const Backend& backend, Fences& fences, StablePool<Block>& blocks,
             uint64_t budget_bytes, uint64_t slab_bytes = kSlabBytes);
  // Requires that every block was given back.
  ~HostCopies() { static_cast<void>(give_back()); }
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // Returns a parked place of at least so many bytes, for work that the stream is given from now on. Without a stream
  // it is for the CPU, and this call waits for earlier users. nullptr: the budget is used up, or the driver has no
  // more. Throws um::Error.
  Block* take(uint64_t bytes, const driver::CUstream* user);
  void give(Block* block, Fences::Fence last_use) noexcept;
  void set_budget(uint64_t bytes);
  // Gives slabs without blocks back to the driver. Returns false if the driver refused one.
  bool give_back() noexcept;

  uint64_t created_bytes() const { return slabs_.created_bytes(); }
  const std::vector<Arena*>& arenas() const { return heap_.arenas(); }
  Level in_use;  // bytes

 private:
  // Memory that was given back before its last use had ended.
  struct Use {
    uint64_t begin, end;
    Fences::Fence until;  // holds a reference
  };
  void forget_passed() noexcept;

  Fences& fences_;
  HostSlabs slabs_;
  ManagedHeap heap_;
  std::deque<Use> uses_;  // in the order in which they were given back
};

}  // namespace um
