// The address space of one emulated device: managed blocks that move between two tiers as um::Model says, plain blocks
// that stay, and reserved ones under which physical memory is mapped by hand. Everything that touches pages is here;
// the fault handler is one caller among several.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/lazy_array.h"
#include "devices/emulated/delays.h"
#include "devices/emulated/event_ring.h"
#include "devices/emulated/hooks.h"
#include "devices/emulated/layout.h"
#include "devices/emulated/link.h"
#include "devices/emulated/mapper.h"
#include "devices/emulated/resident_blocks.h"
#include "devices/emulated/spin_lock.h"
#include "devices/emulated/tier.h"
#include "devices/emulated/virtual_memory.h"
#include "driver/types.h"
#include "um/block_ranges.h"
#include "um/model.h"
#include "um/plain_chunks.h"

namespace um::emulated {

// `asks`: whoever mapped reserved memory decides about an access that its mapping does not allow.
enum class Service { served, not_ours, asks, refused, failed };

class Space {
 public:
  // Throws std::bad_alloc. `device` is the index of its span (layout.h).
  Space(int device, const um_emulated_options& options, Mapper::Method method);

  // Life of ranges, in whole blocks. 0 when it does not fit. Managed ranges are limited by the host tier, so that an
  // eviction always finds a place; plain ones take device memory away from managed blocks.
  uint64_t allocate_managed(uint64_t bytes);
  uint64_t allocate_plain(uint64_t bytes);
  bool free(uint64_t address);
  // Bytes of the allocation that starts at `address`, 0 when none does.
  uint64_t allocation_bytes(uint64_t address);
  bool managed(uint64_t address, uint64_t bytes);  // the whole range is managed memory

  // A fault of the device at `address`, from the signal handler. Async-signal-safe.
  Service fault(uint64_t address, bool write);
  // The ordered way: the same service for every block of the range, ahead of the op. False when none needed it.
  bool touch(uint64_t address, uint64_t bytes, bool write);
  void prefetch(uint64_t address, uint64_t bytes, Processor to);
  void advise(uint64_t address, uint64_t bytes, Advice advice, Processor processor);
  void discard(uint64_t address, uint64_t bytes);
  bool pin(uint64_t address, uint64_t bytes);
  void unpin(uint64_t address, uint64_t bytes);

  // CUDA's virtual memory management (space_virtual.cpp): what a GPU's driver would refuse is refused. Unmapping and
  // changes of access wait for the copies that are at work on the range, not for those that wait in a stream.
  driver::CUresult reserve(uint64_t bytes, driver::CUdeviceptr* address);
  driver::CUresult free_reserved(uint64_t address, uint64_t bytes);
  driver::CUresult create(uint64_t bytes, bool on_device, driver::CUmemGenericAllocationHandle* handle);
  driver::CUresult release(uint64_t handle);
  driver::CUresult map(uint64_t address, uint64_t bytes, uint64_t handle);
  driver::CUresult unmap(uint64_t address, uint64_t bytes);
  driver::CUresult set_access(uint64_t address, uint64_t bytes, AccessGrant grant);
  // What is mapped there is for copies alone from now on, whoever has access to it / the opposite. Whole mappings of
  // this device. False when the kernel refuses (the limit of mappings).
  bool veil(uint64_t address, uint64_t bytes, bool veiled);
  // After Service::asks, where nobody answered: a write to what is read-only is carried out, all else is refused.
  Service carry_out(uint64_t address, bool write);

  // The copy engine, a piece within one block at a time: works on any state of residency of managed and plain memory,
  // and says whether the piece was on the device.
  bool copy_in(uint64_t address, const char* source, uint64_t bytes);
  bool copy_out(char* target, uint64_t address, uint64_t bytes);
  void fill(uint64_t address, uint8_t value, uint64_t bytes);
  // Reserved memory is lent to whoever copies instead, unless nothing that may be accessed is mapped there. A mapping
  // that is read-only for the device is lent for writing too.
  Lending lend(uint64_t address, bool write, Loan* loan);
  void end_loan(uint64_t address);
  bool may_copy(uint64_t address, uint64_t bytes);  // all of it is memory that is there
  // One copy over the link that could begin at `start_ns`.
  void charge_copy(Link::Direction direction, uint64_t bytes, int64_t start_ns);

  // From now on everything takes the time it would take there (link.h).
  void set_link(const um_link& link, const um_driver_costs& costs);
  um_charged charged();
  // The calling thread is in a driver call of its own for so long.
  void charge_call(int64_t um_driver_costs::* cost);

  void residency(uint64_t address, uint64_t bytes, uint64_t* device_blocks, uint64_t* host_blocks);
  void tag(uint64_t address, uint64_t bytes, uint32_t tag);
  void reset_peaks();
  Totals totals();
  uint64_t free_bytes();
  uint64_t capacity_bytes() const { return device_tier_.slots() * kBlockBytes; }
  const Tier& device_tier() const { return device_tier_; }
  const Tier& host_tier() const { return host_tier_; }

  std::atomic<uint64_t> context{0};
  EventRing events;
  Delays delays;

 private:
  using Guard = std::lock_guard<SpinLock>;
  enum class Kind : uint8_t { free, managed, plain, reserved };
  struct Block {
    uint32_t device_slot, host_slot;  // 0: none, else the slot's index + 1
    std::atomic<uint8_t> mapping;     // um::Mapping as the page tables are now
    Kind kind;
    uint8_t tag;
    bool had;                       // the device had it before: its pages are mapped there
    std::atomic<int64_t> ready_ns;  // when the charged link has brought it; 0 without one
    // Reserved blocks: the slots above are those that are mapped here.
    uint32_t reservation;  // its first block
    uint8_t device_access, host_access;
    std::atomic<uint32_t> copies;  // at work here
    bool has_tables;
    bool veiled;
    bool told;  // of a write to what is read-only
    uint8_t access() const { return device_access | host_access; }
    uint8_t copy_access() const { return device_slot != 0 ? device_access : access(); }  // the copy engine's
    uint8_t visible() const { return veiled ? uint8_t{0} : access(); }
  };
  struct Run {
    uint32_t first, count;
  };

  // With the lock held.
  Service serve(uint32_t block, uint64_t address, bool write, bool unordered);
  bool apply(const Outcome& outcome, uint32_t block);
  bool evict(const Outcome& outcome);
  bool perform(const Action& action);
  bool settle(uint32_t block);
  int64_t finish(uint32_t block);
  bool unmap(uint32_t block);
  bool covered(uint32_t block, bool write) const;
  void push(um_event_kind kind, Cause cause, uint64_t address, uint64_t bytes, int64_t start_ns, bool write = false,
            bool unordered = false, bool first_touch = false);
  void push(Change change, const Block& block);
  char* copy_source(uint32_t block) const;
  void open_for_store(uint32_t block);
  void release_block(uint32_t block);
  Service ask_about(uint32_t block, uint64_t address, bool write);
  bool show_access(uint32_t block, uint8_t wanted);
  bool set_block_access(uint32_t block, uint8_t device, uint8_t host);
  void put_slot(uint32_t block, const Handle& handle, uint32_t slot);
  void take_slot_away(uint32_t block);
  bool take_slot(Handle& handle);
  void give_slots(const Handle& handle);
  // Without the lock.
  template <class Holds>
  bool all_blocks(uint64_t address, uint64_t bytes, const Holds& holds);
  // With that of the ranges.
  bool whole_blocks(uint64_t address, uint64_t bytes, Run* out) const;
  bool whole_mappings(Run run) const;
  template <class Each>
  bool each_block(Run run, const Each& each);
  std::unique_lock<SpinLock> lock_without_copies(Run run);
  // The only ways in which a block gets and loses its place on a tier. False when the tier is full.
  bool take_device_slot(Block& block);
  bool take_host_slot(Block& block);
  void give_device_slot(Block& block);
  void give_host_slot(Block& block);

  template <class Each>
  void each_piece(uint64_t address, uint64_t bytes, const Each& each) const {
    each_block_of(address_of(0), address, bytes, each);
  }
  uint64_t address_of(uint32_t block) const;

  const int device_;
  const bool ordered_;
  Mapper mapper_;
  Tier device_tier_, host_tier_;
  Model model_;
  Link link_;
  int64_t unordered_faults_ = 0, fault_service_ns_ = 0;
  PlainChunks plain_;
  ResidentBlocks resident_;
  LazyArray<Block> blocks_{kSpanBlocks};  // zero is a free block with no slots and no mapping
  SpinLock lock_;

  std::mutex ranges_lock_;  // taken before lock_, never in the handler
  BlockRanges ranges_{kSpanBlocks};
  uint64_t managed_blocks_ = 0, host_handle_slots_ = 0;  // together at most the host tier's
  std::map<uint64_t, Handle> handles_;
  std::map<uint32_t, MappedRange> mappings_;  // by first block
  uint64_t last_handle_ = 0;
  int64_t silent_writes_ = 0;

 public:
  ~Space();
};

}  // namespace um::emulated
