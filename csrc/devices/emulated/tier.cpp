#include "devices/emulated/tier.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "um/model.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace um::emulated {
namespace {

void* reserve(uint64_t bytes, int protection) {
  void* memory = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return memory;
}

}  // namespace

Tier::Tier(const char* name, uint32_t slots) : slots_(slots) {
  // The alias starts on 2 MiB, as the blocks do: page tables then move as whole tables, not entry by entry.
  char* raw = static_cast<char*>(reserve(bytes() + kBlockBytes, PROT_NONE));
  base_ = reinterpret_cast<char*>((reinterpret_cast<uint64_t>(raw) + kBlockBytes - 1) / kBlockBytes * kBlockBytes);
  if (base_ > raw) munmap(raw, static_cast<uint64_t>(base_ - raw));
  munmap(base_ + bytes(), static_cast<uint64_t>(raw + kBlockBytes - base_));
  free_ = static_cast<uint32_t*>(reserve(slots * sizeof(uint32_t), PROT_READ | PROT_WRITE));
  populated_ = static_cast<bool*>(reserve(slots, PROT_READ | PROT_WRITE));
  file_ = memfd_create(name, MFD_CLOEXEC);
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(bytes())) != 0 ||
      mmap(base_, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file_, 0) == MAP_FAILED) {
    if (file_ >= 0) close(file_);
    munmap(base_, bytes());
    munmap(free_, slots * sizeof(uint32_t));
    munmap(populated_, slots);
    throw std::bad_alloc();
  }
  madvise(base_, bytes(), MADV_HUGEPAGE);  // where the system allows it for shared memory: fewer page tables to move
}

Tier::~Tier() {
  munmap(base_, bytes());
  munmap(free_, slots_ * sizeof(uint32_t));
  munmap(populated_, slots_);
  close(file_);
}

uint64_t Tier::bytes() const { return slots_ * kBlockBytes; }

char* Tier::alias(uint32_t slot) const { return base_ + slot * kBlockBytes; }

uint32_t Tier::take() {
  uint32_t slot = kNoSlot;
  if (free_count_ > 0) {
    slot = free_[--free_count_];
  } else if (never_used_ < slots_) {
    slot = never_used_++;
  } else {
    return kNoSlot;
  }
  ++taken_;
  return slot;
}

void Tier::give(uint32_t slot) {
  free_[free_count_++] = slot;
  --taken_;
}

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
