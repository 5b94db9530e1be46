// The copy engine: reads whichever copy is newest and moves nothing for it; a store migrates like a prefetch.
#include <cstring>

#include "driver/emulated/space.h"
#include "um/driver_calls.h"

namespace um::emulated {

char* Space::copy_source(uint32_t index) const {
  const Block& block = blocks_[index];
  if (block.mapping != 0) return reinterpret_cast<char*>(address_of(index));  // mapped: its page tables are there
  if (block.device_slot != 0) return device_tier_.alias(block.device_slot - 1);
  return block.host_slot != 0 ? host_tier_.alias(block.host_slot - 1) : nullptr;
}

// One copy over the link that could begin at `start_ns`.
void Space::charge_copy(Link::Direction direction, uint64_t bytes, int64_t start_ns) {
  Moment over;
  const Guard guard(lock_);
  link_.begin(start_ns);
  link_.copy(direction, bytes);
  over.ns = link_.at_ns();
}

void Space::copy_out(char* target, uint64_t address, uint64_t bytes) {
  const int64_t start = now_ns();
  uint64_t device_bytes = 0;
  each_piece(address, bytes, [&](uint32_t block, uint64_t piece, uint64_t piece_bytes) {
    const Guard guard(lock_);
    const char* source = copy_source(block);
    device_bytes += blocks_[block].device_slot != 0 ? piece_bytes : 0;
    if (source == nullptr) {
      std::memset(target, 0, piece_bytes);  // never touched
    } else {
      std::memcpy(target, source + (piece - address_of(block)), piece_bytes);
    }
    target += piece_bytes;
  });
  charge_copy(Link::d2h, device_bytes, start);
}

void Space::open_for_store(uint32_t block) {
  link_.begin(now_ns());
  if (blocks_[block].kind != Kind::managed) return;
  calls::open_for_store(model_, block, [&](const Outcome& outcome, uint32_t of) { return apply(outcome, of); });
}

void Space::copy_in(uint64_t address, const char* source, uint64_t bytes) {
  const int64_t start = now_ns();
  each_piece(address, bytes, [&](uint32_t block, uint64_t piece, uint64_t piece_bytes) {
    const Guard guard(lock_);
    open_for_store(block);
    std::memcpy(reinterpret_cast<char*>(piece), source, piece_bytes);
    source += piece_bytes;
  });
  charge_copy(Link::h2d, bytes, start);
}

void Space::fill(uint64_t address, uint8_t value, uint64_t bytes) {
  each_piece(address, bytes, [&](uint32_t block, uint64_t piece, uint64_t piece_bytes) {
    const Guard guard(lock_);
    open_for_store(block);
    std::memset(reinterpret_cast<char*>(piece), value, piece_bytes);
  });
}

}  // namespace um::emulated
