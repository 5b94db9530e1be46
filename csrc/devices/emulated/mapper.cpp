#include "devices/emulated/mapper.h"

#include <sys/mman.h>
#include <unistd.h>

#include "um/model.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

namespace um::emulated {
namespace {

constexpr int kReadWrite = PROT_READ | PROT_WRITE;

int protection(Mapper::Access access) {
  return access == Mapper::Access::none ? PROT_NONE : access == Mapper::Access::read ? PROT_READ : kReadWrite;
}

bool move_page_tables(void* from, void* to) {
  return mremap(from, kBlockBytes, kBlockBytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) != MAP_FAILED;
}

bool map_nothing(void* address, int how) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  return mmap(address, kBlockBytes, PROT_NONE, kFlags | how, -1, 0) == address;
}

// At the limit of mappings the kernel replaces none, but it takes one away.
bool make_inaccessible(void* address) {
  if (map_nothing(address, MAP_FIXED)) return true;
  return munmap(address, kBlockBytes) == 0 && map_nothing(address, MAP_FIXED_NOREPLACE);
}

}  // namespace

Mapper::Method Mapper::best() {
  static const Method method = [] {
    const Tier probe("umadvise-probe", 2);
    return move_page_tables(probe.alias(0), probe.alias(1)) ? Method::move_page_tables : Method::populate;
  }();
  return method;
}

bool Mapper::show(const Tier& tier, uint32_t slot, uint64_t address, bool writable) const {
  if (method_ == Method::populate) return map(tier, slot, address, writable ? Access::write : Access::read);
  void* target = reinterpret_cast<void*>(address);
  char* home = tier.alias(slot);
  if (writable) return move_page_tables(home, target);
  if (mprotect(home, kBlockBytes, PROT_READ) != 0) return false;
  const bool moved = move_page_tables(home, target);
  return mprotect(home, kBlockBytes, kReadWrite) == 0 && moved;
}

bool Mapper::hide(const Tier& tier, uint32_t slot, uint64_t address) const {
  void* target = reinterpret_cast<void*>(address);
  // Where they cannot move home (the limit of mappings) the alias gets page tables of its own, by minor faults.
  if (method_ == Method::populate || !move_page_tables(target, tier.alias(slot))) return make_inaccessible(target);
  // What another thread stores between these two calls goes to the same slot through a minor fault: nothing is lost.
  if (!make_inaccessible(target)) return false;
  return mprotect(tier.alias(slot), kBlockBytes, kReadWrite) == 0;
}

bool Mapper::map(const Tier& tier, uint32_t slot, uint64_t address, Access access) const {
  return mmap(reinterpret_cast<void*>(address), kBlockBytes, protection(access), MAP_SHARED | MAP_FIXED | MAP_POPULATE,
              tier.file(), static_cast<off_t>(slot * kBlockBytes)) != MAP_FAILED;
}

bool Mapper::unmap(uint64_t address) const { return make_inaccessible(reinterpret_cast<void*>(address)); }

bool Mapper::protect(uint64_t address, Access access) const {
  return mprotect(reinterpret_cast<void*>(address), kBlockBytes, protection(access)) == 0;
}

}  // namespace um::emulated
