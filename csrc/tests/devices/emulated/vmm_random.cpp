// Random programs of virtual memory management against a reference that is plain arrays of bytes: what the driver
// accepts, what it refuses, and every byte.
#include <array>
#include <deque>
#include <optional>
#include <random>

#include "emulated_vmm.h"

using namespace um::driver;  // NOLINT
using test::kBlock;
using test::kMiB;
using test::VirtualMemory;

namespace {

constexpr uint64_t kDeviceBlocks = 8, kHostBlocks = 5, kRanges[] = {9, 4}, kBlocks = kRanges[0] + kRanges[1];

struct Memory {
  VirtualMemory::Handle handle;
  bool on_device, released = false;
  uint64_t blocks;
  int mappings = 0;
  std::vector<unsigned char> bytes;
};

struct Lot {                      // one block of address space
  std::optional<size_t> memory;   // index
  uint64_t offset = 0;            // within it
  uint64_t first = 0, count = 0;  // of the mapping
  unsigned access = 0;            // bits: 1 read, 2 write
};

class Program {
 public:
  Program(unsigned seed, uint32_t delay_max_us)
      : random_(seed), device_(kDeviceBlocks * kBlock, delay_max_us, UM_COUNTING_ORDERED, kHostBlocks * kBlock) {
    base_ = device_.reserve(kRanges[0] * kBlock);
    CHECK_EQ(device_.reserve(kRanges[1] * kBlock), base_ + kRanges[0] * kBlock);
    scratch_ = device_.reserve(3 * kBlock);
    CHECK_EQ(call().stream_create(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  ~Program() { call().stream_destroy(stream_); }

  void run(int steps) {
    void (Program::* const acts[])() = {
        &Program::create,      &Program::release, &Program::map,      &Program::map,
        &Program::map,         &Program::unmap,   &Program::allow,    &Program::allow,
        &Program::allow,       &Program::copy_in, &Program::copy_out, &Program::copy_across,
        &Program::copy_across, &Program::fill,    &Program::store,    &Program::compare};
    for (int step = 0; step < steps; ++step) (this->*acts[below(std::size(acts))])();
    finish();
  }

  int accepted = 0, refused = 0;

 private:
  struct Span {
    uint64_t begin, bytes;  // relative to base_
  };
  const Table& call() const { return device_.driver.call; }
  uint64_t below(uint64_t bound) { return random_() % bound; }
  CUdeviceptr at(uint64_t offset) const { return base_ + offset; }
  void expect(CUresult result, bool valid, CUresult refusal = CUDA_ERROR_INVALID_VALUE) {
    CHECK_EQ(result, valid ? CUDA_SUCCESS : refusal);
    (valid ? accepted : refused) += 1;
  }
  void synchronize() { CHECK_EQ(call().stream_synchronize(stream_), CUDA_SUCCESS); }

  uint64_t taken(bool on_device) const {
    uint64_t sum = 0;
    for (const Memory& memory : memories_)
      if (memory.on_device == on_device && (!memory.released || memory.mappings > 0)) sum += memory.blocks;
    return sum;
  }

  void create() {
    const bool on_device = below(3) != 0;
    const uint64_t blocks = 1 + below(3);
    const bool fits = taken(on_device) + blocks <= (on_device ? kDeviceBlocks : kHostBlocks);
    const auto wanted = device_.properties(on_device);
    VirtualMemory::Handle handle = 0;
    expect(call().mem_create(&handle, blocks * kBlock, &wanted, 0), fits, CUDA_ERROR_OUT_OF_MEMORY);
    if (!fits) return;
    memories_.push_back({handle, on_device, false, blocks, 0, {}});
    memories_.back().bytes.resize(blocks * kBlock);
    // What new memory holds is not told.
    device_.map(scratch_, blocks * kBlock, handle);
    device_.allow(scratch_, blocks * kBlock, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK_EQ(call().memset_d8_async(scratch_, 0, blocks * kBlock, nullptr), CUDA_SUCCESS);
    device_.unmap(scratch_, blocks * kBlock);
  }

  void release() {
    if (memories_.empty()) return;
    if (below(2) == 0 && taken(true) < kDeviceBlocks - 1) return;
    Memory& memory = memories_[below(memories_.size())];
    expect(call().mem_release(memory.handle), !memory.released);
    memory.released = true;
  }

  void map() {
    if (memories_.empty()) return;
    synchronize();
    const size_t index =
        below(4) == 0 ? below(memories_.size()) : memories_.size() - 1 - below(std::min<size_t>(4, memories_.size()));
    Memory& memory = memories_[index];
    uint64_t first = below(kBlocks);
    while (below(6) != 0 && lots_[first].memory) first = below(kBlocks);
    const uint64_t count = 1 + below(memory.blocks + (below(8) == 0));
    bool valid = !memory.released && count <= memory.blocks && first + count <= kBlocks &&
                 (first < kRanges[0]) == (first + count <= kRanges[0]);
    for (uint64_t lot = first; valid && lot < first + count; ++lot) valid = !lots_[lot].memory;
    expect(call().mem_map(at(first * kBlock), count * kBlock, 0, memory.handle, 0), valid);
    if (!valid) return;
    ++memory.mappings;
    for (uint64_t i = 0; i < count; ++i) lots_[first + i] = {index, i * kBlock, first, count, 0};
  }

  // A random run of blocks, more often than not one of whole mappings.
  std::pair<uint64_t, uint64_t> some_run() {
    uint64_t first = below(kBlocks), count = 1 + below(4);
    if (below(4) != 0 && lots_[first].memory) {
      count = lots_[first].count;
      first = lots_[first].first;
      const uint64_t next = first + count;
      if (below(2) == 0 && next < kBlocks && lots_[next].memory) count += lots_[next].count;
    }
    return {first, count};
  }
  bool whole(uint64_t first, uint64_t count) const {
    if (first + count > kBlocks) return false;
    for (uint64_t lot = first; lot < first + count; ++lot) {
      const Lot& each = lots_[lot];
      if (!each.memory || each.first < first || each.first + each.count > first + count) return false;
    }
    return true;
  }

  void unmap() {
    synchronize();
    const auto [first, count] = some_run();
    const bool valid = whole(first, count);
    expect(call().mem_unmap(at(first * kBlock), count * kBlock), valid);
    if (!valid) return;
    for (uint64_t lot = first; lot < first + count; ++lot) {
      if (lots_[lot].first == lot) --memories_[*lots_[lot].memory].mappings;
      lots_[lot] = {};
    }
  }

  void allow() {
    synchronize();
    const auto [first, count] = some_run();
    const unsigned access = std::array<unsigned, 6>{0, 1, 1, 3, 3, 3}[below(6)];
    const bool valid = whole(first, count);
    const auto wanted = device_.access(CUmemAccess_flags{access});
    expect(call().mem_set_access(at(first * kBlock), count * kBlock, &wanted, 1), valid);
    for (uint64_t lot = first; valid && lot < first + count; ++lot) lots_[lot].access = access;
  }

  // Anywhere or, more often, where all may be used.
  Span some_span() {
    const uint64_t bytes = 1 + below(below(2) == 0 ? 5000 : 2 * kBlock);
    const Span anywhere{below(kBlocks * kBlock - bytes), bytes};
    if (below(5) == 0) return anywhere;
    for (uint64_t tries = 0; tries < kBlocks; ++tries) {
      const uint64_t lot = (anywhere.begin / kBlock + tries) % kBlocks;
      uint64_t end = lot;
      while (end < kBlocks && lots_[end].access != 0) ++end;
      if (end == lot) continue;
      const uint64_t begin = lot * kBlock + below(kBlock);
      return {begin, std::min(bytes, end * kBlock - begin)};
    }
    return anywhere;
  }
  bool usable(Span span) const {
    for (uint64_t lot = span.begin / kBlock; lot <= (span.begin + span.bytes - 1) / kBlock; ++lot)
      if (lots_[lot].access == 0) return false;
    return true;
  }
  // The reference's byte behind an address.
  unsigned char& byte(uint64_t offset) {
    const Lot& lot = lots_[offset / kBlock];
    return memories_[*lot.memory].bytes[lot.offset + offset % kBlock];
  }

  void copy_in() {
    const Span span = some_span();
    const bool valid = usable(span);
    inputs_.push_back(test::pattern_of(span.bytes, static_cast<unsigned>(random_())));  // lives until synchronised
    expect(call().memcpy_htod_async(at(span.begin), inputs_.back().data(), span.bytes, stream_), valid);
    for (uint64_t i = 0; valid && i < span.bytes; ++i) byte(span.begin + i) = inputs_.back()[i];
    if (inputs_.size() < 8) return;
    synchronize();
    inputs_.clear();
  }

  void copy_out() {
    const Span span = some_span();
    const bool valid = usable(span);
    std::vector<unsigned char> out(span.bytes);
    expect(call().memcpy_dtoh_async(out.data(), at(span.begin), span.bytes, stream_), valid);
    synchronize();
    for (uint64_t i = 0; valid && i < span.bytes; ++i) CHECK_EQ(+out[i], +byte(span.begin + i));
  }

  void copy_across() {
    Span to = some_span(), from = some_span();
    to.bytes = from.bytes = std::min(to.bytes, from.bytes);
    if (overlap(to, from)) return;
    const bool valid = usable(to) && usable(from);
    void* host = reinterpret_cast<void*>(at(from.begin));
    expect(call().memcpy_htod_async(at(to.begin), host, to.bytes, stream_), valid);
    for (uint64_t i = 0; valid && i < to.bytes; ++i) byte(to.begin + i) = byte(from.begin + i);
  }
  // Also where two addresses are one memory: what such a copy does is not told.
  bool overlap(Span to, Span from) const {
    for (uint64_t a = to.begin / kBlock; a <= (to.begin + to.bytes - 1) / kBlock; ++a)
      for (uint64_t b = from.begin / kBlock; b <= (from.begin + from.bytes - 1) / kBlock; ++b)
        if (a == b || (lots_[a].memory && lots_[a].memory == lots_[b].memory)) return true;
    return false;
  }

  void fill() {
    const Span span = some_span();
    const bool valid = usable(span);
    const auto value = static_cast<unsigned char>(random_());
    expect(call().memset_d8_async(at(span.begin), value, span.bytes, stream_), valid);
    for (uint64_t i = 0; valid && i < span.bytes; ++i) byte(span.begin + i) = value;
  }

  // A store by an op, announced or not.
  void store() {
    const uint64_t offset = below(kBlocks * kBlock);
    Lot& lot = lots_[offset / kBlock];
    if (lot.access == 0) return;
    synchronize();
    const auto value = static_cast<unsigned char>(random_());
    test::bytes_at(base_)[offset] = byte(offset) = value;
    if (lot.access == 1) ++silent_writes_;
    lot.access = 3;
    CHECK_EQ(device_.totals().silent_writes, silent_writes_);
  }

  void compare() {
    synchronize();
    for (uint64_t lot = 0; lot < kBlocks; ++lot) {
      if (lots_[lot].access == 0) continue;
      const unsigned char* expected = memories_[*lots_[lot].memory].bytes.data() + lots_[lot].offset;
      CHECK(std::equal(expected, expected + kBlock, test::bytes_at(at(lot * kBlock))));
    }
    CHECK_EQ(device_.free_bytes(), (kDeviceBlocks - taken(true)) * kBlock);
    CHECK_EQ(device_.totals().device_bytes, taken(true) * kBlock);
    CHECK_EQ(device_.totals().host_bytes, taken(false) * kBlock);
  }

  void finish() {
    compare();
    for (uint64_t lot = 0; lot < kBlocks; ++lot) {
      if (!lots_[lot].memory) continue;
      device_.unmap(at(lot * kBlock), lots_[lot].count * kBlock);
      lot += lots_[lot].count - 1;
    }
    for (const Memory& memory : memories_)
      if (!memory.released) device_.release(memory.handle);
    CHECK_EQ(device_.free_bytes(), kDeviceBlocks * kBlock);
    CHECK_EQ(device_.totals().device_bytes + device_.totals().host_bytes, 0u);
    device_.free_reserved(scratch_, 3 * kBlock);
    device_.free_reserved(base_, kRanges[0] * kBlock);
    device_.free_reserved(at(kRanges[0] * kBlock), kRanges[1] * kBlock);
  }

  std::mt19937_64 random_;
  VirtualMemory device_;
  CUdeviceptr base_ = 0, scratch_ = 0;
  CUstream stream_{};
  Lot lots_[kBlocks];
  std::vector<Memory> memories_;
  std::deque<std::vector<unsigned char>> inputs_;
  int64_t silent_writes_ = 0;
};

}  // namespace

TEST(random_programs_agree_with_arrays_of_bytes) {
  int accepted = 0, refused = 0;
  for (unsigned seed = 1; seed <= 6; ++seed) {
    Program program(seed, seed % 2 == 0 ? 60 : 0);
    program.run(1200);
    accepted += program.accepted;
    refused += program.refused;
  }
  CHECK(accepted > 2000);
  CHECK(refused > 1000);
}
