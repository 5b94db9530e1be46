// Keeps managed memory on the device within a budget below the device's capacity. A model of a device with that
// capacity is given all uses, and the pages that it evicts are sent to the host. This needs no page faults, so it works
// alike on CUDA.
//
// Example: the budget is 4 MiB, which is two pages. An op uses the pages A and B, and the next op uses C. The model
// evicts A, and enforce() prefetches A to the host before that op runs.
//
// Invariant: a page that was used is resident in the model, or is among the victims until enforce() has sent it to the
// host. Pages in `returned_` are on the device beyond the budget, and become victims at the next use.
//
// Not thread-safe: callers hold the device's lock.
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

  // Without a budget everything fits, and no use is followed.
  Budget() = default;
  // `most_pages` bounds the managed arenas that can be followed.
  Budget(uint64_t bytes, uint32_t most_pages);

  // Returns the bytes of all pages that a range touches.
  static uint64_t spanned_bytes(uint64_t address, uint64_t bytes);
  // Follows arenas that were opened, and forgets those that were closed. Throws um::Error if they have more than
  // `most_pages`.
  void follow(const Allocations& allocations);
  // Notes the use of a range. If it exceeds the budget, the excess is evicted at the next use.
  void use(uint64_t address, uint64_t bytes, Use use);
  // Notes the uses of an op, whose pages are then not evicted for each other. If they exceed the budget, all are
  // resident while the op runs, and the excess is evicted before the next op.
  void use(const WorkingSet& working_set);
  // Does the same if only the last access is new, because the running op has just allocated it.
  void use_newest(const WorkingSet& working_set);
  // Keeps a page that has just been used and faults, and the page that faulted before it: one instruction may need
  // both, as a load across their border does. If the budget does not hold them beside the `used_bytes` of running ops,
  // they exceed it until the next fault or op.
  void keep_faulted(uint64_t address, uint64_t used_bytes);
  // Pins an exported range on the device.
  void pin(uint64_t address, uint64_t bytes);
  void unpin(uint64_t address, uint64_t bytes);
  bool owes() const { return !victims_.empty(); }
  // Sends the victims to the host in that stream. Throws um::Error; the next call then sends the rest. The context is
  // current.
  void enforce(const Backend& backend, driver::CUstream stream);

  // Returns whether all of the range is resident in the model.
  bool holds(uint64_t address, uint64_t bytes) const;
  bool bounded() const { return !page_addresses_.empty(); }
  uint64_t bytes() const { return bytes_; }
  // Returns the budget without the pages that exports and workspaces pin.
  uint64_t room_bytes() const { return bytes_ - std::min(bytes_, model_.chunks.pinned() * kBlockBytes); }
  uint64_t resident_bytes() const { return bounded() ? model_.chunks.resident() * kBlockBytes : bytes_; }

 private:
  struct Followed {
    uint64_t address, bytes, serial;
    uint32_t first_page;  // its first page in the model
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
  std::map<uint32_t, uint32_t> unused_pages_;  // first page -> count
  std::vector<uint64_t> page_addresses_;       // by page of the model
  std::vector<uint64_t> victims_;              // addresses of pages, in the order of eviction
  std::vector<uint64_t> returned_;             // addresses of pages that are on the device beyond the budget
  uint64_t last_faulted_ = 0;                  // the address of a page
  uint64_t changes_seen_ = ~uint64_t{0};
};

}  // namespace um
