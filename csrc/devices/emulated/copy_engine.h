// The copy engine: reads whichever copy is newest and moves nothing for it; a store migrates like a prefetch. A piece
// within one block at a time; mapped memory is lent to whoever copies instead.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/lazy_array.h"
#include "devices/emulated/migrator.h"

namespace um::emulated {

// Bytes of one block, up to its end, for a copy. Nobody takes them away before they are given back.
struct Loan {
  char* bytes = nullptr;
  bool on_device = false;
};
enum class Lending : uint8_t { lent, other_memory, refused };

class CopyEngine {
 public:
  // All are borrowed.
  CopyEngine(BlockTable& table, Migrator& migrator, Link& link) : blocks_(table), migrator_(migrator), link_(link) {}

  bool may_copy(uint64_t address, uint64_t bytes);  // all of it is memory that is there
  // Between ordinary memory and any state of residency of managed and plain memory. Whether the piece was on the
  // device.
  bool copy_in(uint64_t address, const char* source, uint64_t bytes);
  bool copy_out(char* target, uint64_t address, uint64_t bytes);
  void fill(uint64_t address, uint8_t value, uint64_t bytes);
  // One copy over the link that could begin at `start_ns`.
  void charge(Link::Direction direction, uint64_t bytes, int64_t start_ns);

  // Reserved memory is lent, unless nothing that may be accessed is mapped there. A mapping that is read-only for the
  // device is lent for writing too.
  Lending lend(uint64_t address, bool write, Loan* loan);
  void end_loan(uint64_t address) { --loans_[place_of(address).block]; }
  // Something of the blocks is lent. While the table's lock is held no loan begins.
  bool at_work(uint32_t first, uint32_t count) const {
    return std::any_of(&loans_[first], &loans_[first] + count, [](const auto& loans) { return loans.load() != 0; });
  }

 private:
  const char* source_of(uint32_t block);
  void open_for_store(uint32_t block);

  BlockTable& blocks_;
  Migrator& migrator_;
  Link& link_;
  LazyArray<std::atomic<uint32_t>> loans_{kSpanBlocks};
};

}  // namespace um::emulated
