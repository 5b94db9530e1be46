// The state of all blocks and what may be done to it. Model is this behind a pointer; each rule cites the driver's
// file.
#pragma once

#include "um/eviction_order.h"
#include "um/model.h"

namespace um::rules {

class Rules {
 public:
  Rules(uint32_t blocks, uint32_t device_chunks);
  ~Rules();
  Rules(const Rules&) = delete;
  Rules& operator=(const Rules&) = delete;

  Block& at(uint32_t index) { return blocks_[index]; }
  const Block& at(uint32_t index) const { return blocks_[index]; }
  void release(uint32_t index);

  // Only for accesses that the present mapping does not cover.
  Outcome device_fault(uint32_t index, bool write);
  Outcome host_fault(uint32_t index, bool write);
  Outcome prefetch(uint32_t index, Processor to);
  void discard(uint32_t index);

  void set_read_mostly(uint32_t index);
  void unset_read_mostly(uint32_t index, Outcome& outcome);
  void set_preferred_location(uint32_t index, Location location, Outcome& outcome);
  void set_accessed_by_device(uint32_t index, Outcome& outcome);

  void pin(uint32_t index);
  void unpin(uint32_t index);
  bool take_plain(Outcome& outcome);
  void give_plain() { --plain_; }

  uint32_t free_chunks() const { return chunks_ - plain_ - resident_; }
  uint32_t resident() const { return resident_; }
  uint32_t pinned_resident() const { return pinned_resident_; }
  uint32_t victim() const { return order_.first(); }
  const Counters& counters() const { return counters_; }

 private:
  void add(Outcome& outcome, Do what, Cause cause, uint32_t index);
  void mark_used(uint32_t index);
  void leave_device(uint32_t index);
  void drop_device(uint32_t index, Cause cause, Outcome& outcome);
  void drop_host(uint32_t index, Cause cause, Outcome& outcome);
  void fill_device(uint32_t index, Cause cause, Outcome& outcome);
  void fill_host(uint32_t index, Cause cause, Outcome& outcome);
  void share_or_leave_device(uint32_t index, bool duplicate, Cause cause, Outcome& outcome);
  bool map_accessed_by(uint32_t index);
  void evict(uint32_t index, Outcome& outcome);
  bool make_room(Outcome& outcome);
  void note_first_touch(const Block& block, Outcome& outcome);
  void note_collapse(const Block& block, bool write, Outcome& outcome);

  Block* const blocks_;
  const uint32_t count_, chunks_;
  uint32_t plain_ = 0, resident_ = 0, pinned_resident_ = 0;
  EvictionOrder order_;
  Counters counters_;
};

}  // namespace um::rules
