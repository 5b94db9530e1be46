#include "devices/emulated/tier.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "devices/emulated/layout.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace um::emulated {

Tier::Tier(const char* name, uint32_t slots) : slots_(slots), populated_(slots) {
  free_.reserve(slots);
  base_ = reserve_blocks(bytes());
  file_ = memfd_create(name, MFD_CLOEXEC);
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(bytes())) != 0 ||
      mmap(base_, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file_, 0) == MAP_FAILED) {
    if (file_ >= 0) close(file_);
    munmap(base_, bytes());
    throw std::bad_alloc();
  }
  madvise(base_, bytes(), MADV_HUGEPAGE);  // where the system allows it for shared memory: fewer page tables to move
}

Tier::~Tier() {
  munmap(base_, bytes());
  close(file_);
}

uint64_t Tier::bytes() const { return slots_ * kBlockBytes; }

char* Tier::alias(uint32_t slot) const { return base_ + slot * kBlockBytes; }

uint32_t Tier::take() {
  if (free_.empty()) return never_used_ < slots_ ? never_used_++ : kNoSlot;
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void Tier::give(uint32_t slot) { free_.push_back(slot); }

bool Tier::populate(uint32_t slot) {
  if (populated_[slot]) return false;
  populated_[slot] = true;
  fill_tables(slot);
  return true;
}

void Tier::fill_tables(uint32_t slot) const {
  madvise(alias(slot), kBlockBytes, MADV_POPULATE_WRITE);  // an old kernel says no and the first touch does it instead
}

}  // namespace um::emulated
