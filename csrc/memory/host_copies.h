// Host memory for the contents of storages that left the device: blocks of page-locked slabs, so that a storage that is
// out can point there. A slab is large, as each of the driver's calls for page-locked memory takes milliseconds and
// stops the device; once there are two, the helper makes the next one before it is needed.
//
// What is given back is taken again in stream order: the host, which runs ahead, waits for no copy, and no new slab is
// made because it has not seen one end. Not thread-safe: the device's lock is held, and its context is current.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "memory/backend.h"
#include "memory/fence.h"
#include "memory/managed_heap.h"
#include "memory/statistics.h"

namespace um {

// Page-locked memory within a budget.
class HostSlabs : public ArenaSource {
 public:
  HostSlabs(const Backend& backend, uint64_t budget_bytes) : backend_(backend) { set_budget(budget_bytes); }
  // drop_ahead was called before.
  ~HostSlabs() override = default;
  HostSlabs(const HostSlabs&) = delete;
  HostSlabs& operator=(const HostSlabs&) = delete;

  // 0: what the machine can spare now. What there is beyond it stays until it is released. Throws um::Error.
  void set_budget(uint64_t bytes);
  // Less than wanted where the budget ends or the driver has no more. Throws UM_OUT_OF_HOST_MEMORY for less than the
  // least.
  Range acquire(uint64_t least_bytes, uint64_t wanted_bytes) override;
  bool release(Range range) noexcept override;
  // The slab that nobody has asked for goes back to the driver. False when it was kept.
  bool drop_ahead() noexcept;
  uint64_t created_bytes() const { return created_bytes_; }
  uint64_t budget_bytes() const { return budget_bytes_; }

 private:
  struct Slab {
    void* memory;  // as the driver gave it
    uint64_t address;
  };
  // Made by the helper: nobody looks at it before the job has ended.
  struct Ahead {
    Helper::Ticket job = 0;
    void* memory = nullptr;
    uint64_t bytes = 0;  // part of what is created
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
  // Of few copies. The emulated device's memory is the machine's own, and its driver gives it in no time.
  static constexpr uint64_t kSmallSlabBytes = uint64_t{16} << 20;

  // `blocks`: the descriptors of one device, shared by its heaps; `slab_bytes`: of a GPU. Throws um::Error.
  HostCopies(um_device* device, const Backend& backend, Fences& fences, StablePool<Block>& blocks,
             uint64_t budget_bytes, uint64_t slab_bytes = kSlabBytes);
  // Every block was given back before.
  ~HostCopies() { static_cast<void>(give_back()); }
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // A parked place of at least so many bytes, used by what the stream is given from now on or, without one, by the CPU,
  // which waits. nullptr when the budget is used up, or the driver has no more. Throws um::Error.
  Block* take(uint64_t bytes, const driver::CUstream* user);
  void give(Block* block, Fences::Fence last_use) noexcept;
  void set_budget(uint64_t bytes);
  // Slabs in which nobody has a block go back to the driver. False when it kept one.
  bool give_back() noexcept;

  uint64_t created_bytes() const { return slabs_.created_bytes(); }
  const std::vector<Arena*>& arenas() const { return heap_.arenas(); }
  Level in_use;  // bytes

 private:
  // Memory that was given back while it was still used.
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
