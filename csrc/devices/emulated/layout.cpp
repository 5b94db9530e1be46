#include "devices/emulated/layout.h"

#include <sys/mman.h>

#include <atomic>
#include <mutex>
#include <new>

namespace um::emulated {
namespace {
std::atomic<uint64_t> begin{0};
std::mutex reserving;
constexpr uint64_t kRangeBytes = kSpanBytes * kMostDevices;
}  // namespace

char* reserve_blocks(uint64_t bytes) {
  void* memory = mmap(nullptr, bytes + kBlockBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  char* const base = static_cast<char*>(memory);
  const uint64_t before = (kBlockBytes - reinterpret_cast<uint64_t>(base) % kBlockBytes) % kBlockBytes;
  if (before > 0) munmap(base, before);
  munmap(base + before + bytes, kBlockBytes - before);
  return base + before;
}

void reserve_range() {
  const std::lock_guard<std::mutex> guard(reserving);
  if (begin.load() == 0) begin.store(reinterpret_cast<uint64_t>(reserve_blocks(kRangeBytes)));
}

uint64_t range_begin() { return begin.load(std::memory_order_relaxed); }
uint64_t range_end() {
  const uint64_t base = range_begin();
  return base == 0 ? 0 : base + kRangeBytes;
}

Place place_of(uint64_t address) {
  const uint64_t base = range_begin();
  if (base == 0 || address < base || address - base >= kRangeBytes) return {-1, 0};
  const uint64_t offset = address - base;
  return {static_cast<int>(offset / kSpanBytes), static_cast<uint32_t>(offset % kSpanBytes / kBlockBytes)};
}

uint64_t block_address(int device, uint32_t block) {
  return range_begin() + static_cast<uint64_t>(device) * kSpanBytes + block * kBlockBytes;
}

}  // namespace um::emulated
