// Keeps managed memory on the device below a budget that is smaller than the device: a model of its own, fed with what
// is used, says which pages would have left a device of that size, and those are sent to the host. Works without page
// faults to look at, so it is the same on CUDA. Not thread-safe: the device's lock is held.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "engine/running_op.h"
#include "memory/allocations.h"
#include "um/model.h"

namespace um {

class Budget {
 public:
  enum class Use { read, write, to_device, to_host };

  // Of no device: all fits, and nothing is followed.
  Budget() = default;
  // `most_pages`: managed arenas in all, at most.
  Budget(uint64_t bytes, uint32_t most_pages);

  // Of all pages that a range touches.
  static uint64_t spanned_bytes(uint64_t address, uint64_t bytes);
  // Arenas that came or went. Throws um::Error when there are more than `most_pages`.
  void follow(const Allocations& allocations);
  // A range by itself: what does not fit leaves at the next use.
  void use(uint64_t address, uint64_t bytes, Use use);
  // Everything that an op uses. Nothing of it is sent away for the rest of it: when it is more than fits, what is too
  // much is there while the op runs, and is sent away before the next one.
  void use(const WorkingSet& working_set);
  // Likewise, when all but its last access was used before: what the op that runs has just allocated.
  void use_newest(const WorkingSet& working_set);
  // Keeps a page that has just been used and faults, and the page that faulted before it: one instruction may need
  // both, as a load across their border does. If the budget does not hold them beside the `used_bytes` of running ops,
  // they exceed it until the next fault or op.
  void keep_faulted(uint64_t address, uint64_t used_bytes);
  // An exported range stays on the device.
  void pin(uint64_t address, uint64_t bytes);
  void unpin(uint64_t address, uint64_t bytes);
  bool owes() const { return !victims_.empty(); }
  // Sends what must leave to the host, in that stream. Throws um::Error; what was not sent is sent next time.
  // The context is current.
  void enforce(const Backend& backend, driver::CUstream stream);

  // All of the range is on the device, as far as the model knows.
  bool holds(uint64_t address, uint64_t bytes) const;
  bool bounded() const { return !page_addresses_.empty(); }
  uint64_t bytes() const { return bytes_; }
  // That exports and workspaces leave.
  uint64_t room_bytes() const { return bytes_ - std::min(bytes_, model_.chunks.pinned() * kBlockBytes); }
  uint64_t resident_bytes() const { return bounded() ? model_.chunks.resident() * kBlockBytes : bytes_; }

 private:
  struct Followed {
    uint64_t address, bytes, serial;
    uint32_t first_page;  // in the model
    bool read_mostly;
    bool live;
  };
  uint32_t take_pages(uint32_t count);
  void forget(const Followed& arena);
  const Followed* arena_of(uint64_t address) const;
  void recall();
  void pass(uint64_t address, uint64_t bytes, Use use);
  void note_return(uint64_t address, uint64_t bytes);
  void note_victims(const Outcome& outcome);
  void keep(const WorkingSet& working_set, size_t first_victim, size_t first_access);
  void send(const Backend& backend, driver::CUstream stream, const Followed& arena, uint64_t address,
            uint64_t bytes) const;
  template <class Each>
  void each_page(uint64_t address, uint64_t bytes, const Each& each) const;

  const uint64_t bytes_ = ~uint64_t{0};
  Model model_{1, UINT32_MAX};
  std::map<uint64_t, Followed> arenas_;        // by address
  std::map<uint32_t, uint32_t> unused_pages_;  // first -> count
  std::vector<uint64_t> page_addresses_;       // by model page
  std::vector<uint64_t> victims_;              // addresses of pages, in order of eviction
  std::vector<uint64_t> returned_;             // likewise, of what was used last and is there all the same
  uint64_t last_faulted_ = 0;                  // address of a page
  uint64_t changes_seen_ = ~uint64_t{0};
};

}  // namespace um
