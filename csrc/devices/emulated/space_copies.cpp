// The copy engine: reads whichever copy is newest and moves nothing for it; a store migrates like a prefetch.
#include <cstring>

#include "devices/emulated/space.h"
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

bool Space::copy_out(char* target, uint64_t address, uint64_t bytes) {
  const uint32_t block = place_of(address).block;
  const Guard guard(lock_);
  const char* source = copy_source(block);
  if (source == nullptr) {
    std::memset(target, 0, bytes);  // never touched
  } else {
    std::memcpy(target, source + (address - address_of(block)), bytes);
  }
  return blocks_[block].device_slot != 0;
}

void Space::open_for_store(uint32_t block) {
  link_.begin(now_ns());
  if (blocks_[block].kind != Kind::managed) return;
  calls::open_for_store(model_, block, [&](const Outcome& outcome, uint32_t of) { return apply(outcome, of); });
}

bool Space::copy_in(uint64_t address, const char* source, uint64_t bytes) {
  const Guard guard(lock_);
  open_for_store(place_of(address).block);
  std::memcpy(reinterpret_cast<char*>(address), source, bytes);
  return true;  // as a rule: where all of the device is pinned it was stored on the host
}

void Space::fill(uint64_t address, uint8_t value, uint64_t bytes) {
  const Guard guard(lock_);
  open_for_store(place_of(address).block);
  std::memset(reinterpret_cast<char*>(address), value, bytes);
}

Lending Space::lend(uint64_t address, bool write, Loan* loan) {
  const uint32_t index = place_of(address).block;
  const Guard guard(lock_);
  Block& block = blocks_[index];
  if (block.kind == Kind::managed || block.kind == Kind::plain) return Lending::other_memory;
  const bool on_device = block.device_slot != 0;
  if (block.kind == Kind::free || block.copy_access() == 0) return Lending::refused;
  ++block.copies;
  loan->on_device = on_device;
  loan->bytes = reinterpret_cast<char*>(address);
  if ((block.visible() & (write ? kWriteAccess : kReadAccess)) != 0) return Lending::lent;
  const Tier& tier = on_device ? device_tier_ : host_tier_;
  const uint32_t slot = (on_device ? block.device_slot : block.host_slot) - 1;
  loan->bytes = tier.alias(slot) + (address - address_of(index));
  return Lending::lent;
}

void Space::end_loan(uint64_t address) { --blocks_[place_of(address).block].copies; }

}  // namespace um::emulated
