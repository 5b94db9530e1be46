// Two grains, one set of rules: while every access takes whole 2 MiB blocks in one service, the page-accurate model
// must move, evict and map what um::Model does, after every one of many random operations.
#include <random>
#include <string>

#include "check.h"
#include "um/model.h"
#include "um/pages.h"

using namespace um;

namespace {

constexpr Processor kHost = Processor::host, kDevice = Processor::device;

pages::Costs whole_blocks_without_thrashing() {
  pages::Costs costs;
  costs.batch_max = 512;
  costs.batch_ns = costs.host_fault_ns = costs.prefetch_call_ns = 1'000'000'000;  // longer than any lapse
  return costs;
}

class Pair {
 public:
  Pair(uint32_t seed, uint32_t blocks, uint32_t chunks)
      : random_(seed),
        coarse_(blocks, chunks),
        fine_({chunks * kBlockBytes, 4096, false}, whole_blocks_without_thrashing()) {
    coarse_.allocate(0, blocks);
    read_mostly_.resize(blocks);
    for (uint32_t block = 0; block < blocks; ++block) ids_.push_back(fine_.allocate(kBlockBytes));
  }

  void step() {
    const uint32_t block = below(static_cast<uint32_t>(ids_.size())), kind = below(100);
    const Processor who = below(3) != 0 ? kDevice : kHost;
    if (kind < 60) {
      const bool write = below(2) != 0;
      coarse_.access(block, who, write);
      fine_.touch(ids_[block], {0, kBlockBytes, who, write, pages::TouchOrder::serial, 512});
    } else if (kind < 75) {
      // A prefetch in place takes the right to write ReadMostly pages away (uvm_va_block_make_resident_read_duplicate).
      // The coarse model leaves it.
      if (read_mostly_[block] && coarse_.mapping(block) == Mapping::device_write) return;
      coarse_.prefetch(block, who);
      fine_.prefetch(ids_[block], who);
    } else if (kind < 97) {
      const auto advice = static_cast<Advice>(below(6));
      if (advice == Advice::set_read_mostly) read_mostly_[block] = true;
      if (advice == Advice::unset_read_mostly) read_mostly_[block] = false;
      coarse_.advise(block, advice, who);
      fine_.advise(ids_[block], advice, who);
    } else {
      coarse_.release(block);
      coarse_.allocate(block, 1);
      read_mostly_[block] = false;
      fine_.free(ids_[block]);
      ids_[block] = fine_.allocate(kBlockBytes);
    }
    compare();
  }
  const Counters& counters() const { return coarse_.counters(); }

 private:
  uint32_t below(uint32_t limit) { return static_cast<uint32_t>(random_() % limit); }

  void compare() const {
    const Counters& coarse = coarse_.counters();
    const Counters& fine = fine_.counters().shared;
    CHECK_EQ(fine.fault_groups, coarse.fault_groups);
    CHECK_EQ(fine.evictions, coarse.evictions);
    CHECK_EQ(fine.evictions_dropped, coarse.evictions_dropped);
    for (Cause cause : {Cause::user, Cause::eviction}) {
      CHECK_EQ(of(fine.bytes_h2d, cause), of(coarse.bytes_h2d, cause));
      CHECK_EQ(of(fine.bytes_d2h, cause), of(coarse.bytes_d2h, cause));
    }
    // What the coarse model calls coherence is the faulted page and the prefetched rest.
    CHECK_EQ(of(fine.bytes_h2d, Cause::coherence) + of(fine.bytes_h2d, Cause::speculative),
             of(coarse.bytes_h2d, Cause::coherence));
    CHECK_EQ(of(fine.bytes_d2h, Cause::coherence) + of(fine.bytes_d2h, Cause::speculative),
             of(coarse.bytes_d2h, Cause::coherence));
    CHECK_EQ(fine_.counters().thrashing_pages, 0);
  }
  static int64_t of(const int64_t (&bytes)[kCauses], Cause cause) { return bytes[static_cast<int>(cause)]; }

  std::mt19937 random_;
  Model coarse_;
  PageModel fine_;
  std::vector<PageModel::Id> ids_;
  std::vector<bool> read_mostly_;
};

}  // namespace

TEST(whole_blocks_are_serviced_as_by_the_coarse_model) {
  int64_t evictions = 0, dropped = 0, groups = 0;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    Pair pair(seed, 3 + seed % 5, 1 + seed % 4);
    for (int step = 0; step < 1500; ++step) {
      try {
        pair.step();
      } catch (const check::Failure& failure) {
        throw check::Failure("seed " + std::to_string(seed) + ", step " + std::to_string(step) + ": " + failure.what());
      }
    }
    evictions += pair.counters().evictions;
    dropped += pair.counters().evictions_dropped;
    groups += pair.counters().fault_groups;
  }
  CHECK(evictions > 1000 && dropped > 300 && groups > 3000);
}
