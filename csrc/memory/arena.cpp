#include "memory/arena.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/error.h"

namespace um {
namespace {

constexpr uint64_t kPageGranules = kBlockBytes / kGranuleBytes;
// Small arenas keep their tables when they close: an arena of few pages may open and close often, and mapping the
// tables costs more than everything else.
constexpr uint64_t kMostKeptTableBytes = uint64_t{512} << 10;

}  // namespace

void Arena::open(um_device* owner, ManagedHeap* of, uint64_t address, uint64_t bytes) {
  const uint64_t granules = bytes / kGranuleBytes;
  const uint64_t table_bytes = granules * sizeof(Block*) + bytes / kBlockBytes * sizeof(Block*) + granules / 8;
  if (tables_bytes_ != table_bytes) {
    drop_tables();
    void* tables =
        mmap(nullptr, table_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (tables == MAP_FAILED) {
      throw Error(UM_OUT_OF_HOST_MEMORY,
                  "no address space for the tables of an arena (" + std::to_string(table_bytes) + " bytes)");
    }
    tables_ = tables;
    tables_bytes_ = table_bytes;
  }
  address_ = address;
  bytes_ = bytes;
  starts_ = static_cast<Block**>(tables_);
  across_ = starts_ + granules;
  start_bits_ = reinterpret_cast<uint64_t*>(across_ + bytes / kBlockBytes);
  static std::atomic<uint64_t> opened{0};
  serial = ++opened;
  heap = of;
  device.store(owner, std::memory_order_relaxed);
}

void Arena::close() noexcept {
  device.store(nullptr, std::memory_order_relaxed);
  if (tables_bytes_ > kMostKeptTableBytes) drop_tables();
  if (tables_ != nullptr)
    std::fill_n(across_, bytes_ / kBlockBytes, nullptr);  // the heap may be destroyed before the tables are
  heap = nullptr;
  first = nullptr;
}

void Arena::drop_tables() noexcept {
  if (tables_ != nullptr) munmap(tables_, tables_bytes_);
  tables_ = nullptr;
  tables_bytes_ = 0;
}

Block* Arena::containing(uint64_t at) const {
  const uint64_t here = granule(at);
  const uint64_t low_word = here / kPageGranules * kPageGranules / 64;
  uint64_t bits = start_bits_[here / 64] & (~uint64_t{0} >> (63 - here % 64));
  for (uint64_t word = here / 64;; bits = start_bits_[--word]) {
    if (bits != 0) {
      Block* nearest = starts_[word * 64 + 63 - static_cast<uint64_t>(__builtin_clzll(bits))];
      return at < nearest->end() ? nearest : nullptr;
    }
    if (word == low_word) break;
  }
  Block* across = across_[(at - address_) / kBlockBytes];
  // The descriptor may have been recycled. It counts only if its own start entry names it and it contains the address.
  if (across == nullptr || across->arena != this || across->free || across->parked) return nullptr;
  return across->address <= at && at < across->end() && starts_[granule(across->address)] == across ? across : nullptr;
}

Block* Arena::nearest(uint64_t at) const {
  if (Block* block = containing(at)) return block;
  const uint64_t here = granule(at), page_end = (here / kPageGranules + 1) * kPageGranules;
  for (uint64_t word = here / 64; word < page_end / 64; ++word) {
    const uint64_t above = word == here / 64 ? ~uint64_t{0} << (here % 64) : ~uint64_t{0};
    const uint64_t bits = start_bits_[word] & above;
    if (bits != 0) return starts_[word * 64 + static_cast<uint64_t>(__builtin_ctzll(bits))];
  }
  return nullptr;
}

}  // namespace um
