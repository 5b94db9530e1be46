// The blocks of one emulated device, which all its parts share: of what kind each is, which slots of the two tiers lie
// under it, how the page tables show them, and the lock over all that, without which nobody may do more than ask
// whether a block covers an access and when it is ready.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/lazy_array.h"
#include "devices/emulated/event_ring.h"
#include "devices/emulated/layout.h"
#include "devices/emulated/mapper.h"
#include "devices/emulated/spin_lock.h"
#include "devices/emulated/tier.h"
#include "devices/resident_blocks.h"
#include "um/block_ranges.h"
#include "um/model.h"

namespace um::emulated {

// What became of an access that faulted. `asks`: whoever mapped reserved memory decides about it.
enum class Service { served, not_ours, asks, announces, refused, failed };

// Bits of CUmemAccess_flags.
inline constexpr uint8_t kReadAccess = 1, kWriteAccess = 2;

inline bool on_device(Mapping mapping) { return mapping == Mapping::device_read || mapping == Mapping::device_write; }
inline bool writable(Mapping mapping) { return mapping == Mapping::device_write || mapping == Mapping::remote_write; }

inline constexpr uint64_t kHollowBytes = uint64_t{64} << 10;

enum class Kind : uint8_t { free, managed, plain, reserved };

// Zero is a free one with no slots and no mapping.
struct Block {
  uint32_t device_slot, host_slot;  // 0: none, else the slot's index + 1
  std::atomic<Mapping> mapping;     // as the page tables are now
  Kind kind;
  uint8_t tag;
  bool had;                       // the device had it before: its pages are mapped there
  std::atomic<int64_t> ready_ns;  // when the charged link has brought it; 0 without one
  // Reserved blocks: the slots above are those that are mapped here.
  uint32_t reservation;  // its first block
  uint8_t device_access, host_access;
  bool has_tables;
  bool veiled;
  bool told;  // of a write to what is read-only

  // Whether the device can access it without a fault.
  bool covers(bool write) const {
    const Mapping now = mapping.load(std::memory_order_relaxed);
    return write ? writable(now) : now != Mapping::none;
  }
  uint32_t slot(bool device) const { return (device ? device_slot : host_slot) - 1; }
  uint8_t access() const { return device_access | host_access; }
  uint8_t copy_access() const { return device_slot != 0 ? device_access : access(); }  // the copy engine's
  uint8_t visible() const { return veiled ? uint8_t{0} : access(); }
};

class BlockTable {
 public:
  // Throws std::bad_alloc. `device` is the index of its span (layout.h).
  BlockTable(int device, const um_emulated_options& options, Mapper::Method method, EventRing& events);

  Block& operator[](uint32_t index) { return blocks_[index]; }
  const Block& operator[](uint32_t index) const { return blocks_[index]; }
  uint64_t address_of(uint32_t index) const { return block_address(device_, index); }
  Tier& tier(bool device) { return device ? device_tier : host_tier; }

  // Calls each(index, address, bytes) for the part of the range in every block.
  template <class Each>
  void each_piece(uint64_t address, uint64_t bytes, const Each& each) const {
    each_block_of(address_of(0), address, bytes, each);
  }

  // With the lock held. The only ways in which a block gets and loses its place on a tier, but for mappings. False when
  // the tier is full.
  bool take_device_slot(uint32_t index);
  bool take_host_slot(uint32_t index);
  void give_device_slot(uint32_t index);
  void give_host_slot(uint32_t index);

  // These take the lock. Whether the range lies in this device's span, and each of its blocks is like that.
  template <class Holds>
  bool all(uint64_t address, uint64_t bytes, const Holds& holds) {
    const uint64_t begin = address_of(0);
    if (address < begin || bytes > kSpanBytes || address - begin > kSpanBytes - bytes) return false;
    bool all = true;
    const SpinGuard guard(lock);
    each_piece(address, bytes, [&](uint32_t index, uint64_t, uint64_t) { all = all && holds(blocks_[index]); });
    return all;
  }
  void residency(uint64_t address, uint64_t bytes, uint64_t* device_blocks, uint64_t* host_blocks);
  void tag(uint64_t address, uint64_t bytes, uint32_t tag);
  void reset_peaks();

  SpinLock lock;
  Tier device_tier, host_tier;
  devices::ResidentBlocks resident;
  const Mapper mapper;
  EventRing& events;
  // Mapped memory has no bytes, so that there can be more of it than the machine has: copies and fills from
  // kHollowBytes on leave it alone. Only a test's driver library sets this, before anything is mapped.
  bool hollow = false;

 private:
  const int device_;
  LazyArray<Block> blocks_{kSpanBlocks};
};

}  // namespace um::emulated
