#include "devices/emulated/copy_engine.h"

#include <cstring>

#include "um/driver_calls.h"

namespace um::emulated {

bool CopyEngine::may_copy(uint64_t address, uint64_t bytes) {
  return blocks_.all(address, bytes, [](const Block& block) {
    return block.kind != Kind::free && (block.kind != Kind::reserved || block.copy_access() != 0);
  });
}

const char* CopyEngine::source_of(uint32_t index) {
  const Block& block = blocks_[index];
  if (block.mapping.load() != Mapping::none) {  // its page tables are there
    return reinterpret_cast<const char*>(blocks_.address_of(index));
  }
  const bool on_device = block.device_slot != 0;
  return on_device || block.host_slot != 0 ? blocks_.tier(on_device).alias(block.slot(on_device)) : nullptr;
}

void CopyEngine::charge(Link::Direction direction, uint64_t bytes, int64_t start_ns) {
  if (link_.is_virtual()) return;  // it counts where it was asked for
  Moment over(link_);
  const SpinGuard guard(blocks_.lock);
  link_.begin(start_ns);
  link_.copy(direction, bytes);
  over.ns = link_.at_ns();
}

bool CopyEngine::copy_out(char* target, uint64_t address, uint64_t bytes) {
  const uint32_t block = place_of(address).block;
  const SpinGuard guard(blocks_.lock);
  const char* source = source_of(block);
  if (source == nullptr) {
    std::memset(target, 0, bytes);  // never touched
  } else {
    std::memcpy(target, source + (address - blocks_.address_of(block)), bytes);
  }
  return blocks_[block].device_slot != 0;
}

void CopyEngine::open_for_store(uint32_t block) {
  link_.begin(link_.now_ns());
  if (blocks_[block].kind != Kind::managed) return;
  calls::open_for_store(migrator_.model, block,
                        [&](const Outcome& outcome, uint32_t of) { return migrator_.apply(outcome, of); });
}

bool CopyEngine::copy_in(uint64_t address, const char* source, uint64_t bytes) {
  const SpinGuard guard(blocks_.lock);
  open_for_store(place_of(address).block);
  std::memcpy(reinterpret_cast<char*>(address), source, bytes);
  return true;  // as a rule: where all of the device is pinned it was stored on the host
}

void CopyEngine::fill(uint64_t address, uint8_t value, uint64_t bytes) {
  const SpinGuard guard(blocks_.lock);
  open_for_store(place_of(address).block);
  std::memset(reinterpret_cast<char*>(address), value, bytes);
}

Lending CopyEngine::lend(uint64_t address, bool write, Loan* loan) {
  const uint32_t index = place_of(address).block;
  const SpinGuard guard(blocks_.lock);
  const Block& block = blocks_[index];
  if (block.kind == Kind::managed || block.kind == Kind::plain) return Lending::other_memory;
  const bool on_device = block.device_slot != 0;
  if (block.kind == Kind::free || block.copy_access() == 0) return Lending::refused;
  ++loans_[index];
  loan->on_device = on_device;
  const bool allowed = (block.visible() & (write ? kWriteAccess : kReadAccess)) != 0;
  loan->bytes = allowed ? reinterpret_cast<char*>(address)
                        : blocks_.tier(on_device).alias(block.slot(on_device)) + (address - blocks_.address_of(index));
  return Lending::lent;
}

}  // namespace um::emulated
