// The page rules, one test a rule. `um_fuzz` compares the whole with a naive reference; here each rule stands alone.
#include "um/model.h"

#include "check.h"
#include "um_text.h"

using namespace um;

namespace {

constexpr bool kRead = false, kWrite = true;
constexpr Processor kHost = Processor::host, kDevice = Processor::device;
constexpr int64_t kBytes = 2 * 1024 * 1024;

// Eight blocks, room for `chunks` of them.
struct Bench {
  explicit Bench(uint32_t chunks) : model(8, chunks) { model.allocate(0, 8); }
  std::string device(uint32_t block, bool write) { return text(model.access(block, kDevice, write)); }
  std::string host(uint32_t block, bool write) { return text(model.access(block, kHost, write)); }
  std::string prefetch(uint32_t block, Processor to) { return text(model.prefetch(block, to)); }
  std::string advise(uint32_t block, Advice advice, Processor processor = kDevice) {
    return text(model.advise(block, advice, processor));
  }
  std::string state(uint32_t block) { return text(model, block); }
  int64_t h2d(Cause cause) { return model.counters().bytes_h2d[static_cast<int>(cause)]; }
  int64_t d2h(Cause cause) { return model.counters().bytes_d2h[static_cast<int>(cause)]; }

  Model model;
};

}  // namespace

TEST(allocated_blocks_are_resident_nowhere) {
  Model model(4, 2);
  CHECK(!model.allocated(1));
  model.allocate(1, 2);
  CHECK(!model.allocated(0) && model.allocated(1) && model.allocated(2) && !model.allocated(3));
  CHECK_EQ(text(model, 1), "none,");
  CHECK_EQ(model.chunks.free(), 2u);
  CHECK_EQ(model.chunks.next_victim(), Model::kNone);
}

TEST(first_touch_by_the_device_zeroes_and_moves_nothing) {
  Bench bench(2);
  CHECK_EQ(bench.device(0, kRead), "fault, zero_device coherence 0, first_touch");
  CHECK_EQ(bench.state(0), "device_write, device");
  CHECK_EQ(bench.device(0, kWrite), "");  // a read maps for writing as well
  CHECK_EQ(bench.h2d(Cause::coherence), 0);
  CHECK_EQ(bench.model.counters().fault_groups, 1);
  CHECK_EQ(bench.model.counters().first_touches, 1);
  CHECK_EQ(bench.model.chunks.free(), 1u);
}

TEST(first_touch_by_the_host) {
  Bench bench(2);
  CHECK_EQ(bench.host(0, kRead), "fault, zero_host coherence 0, first_touch");
  CHECK_EQ(bench.host(0, kWrite), "");
  CHECK_EQ(bench.model.counters().host_fault_groups, 1);
  CHECK_EQ(bench.model.counters().fault_groups, 0);
}

TEST(a_fault_migrates_to_the_faulting_processor) {
  Bench bench(2);
  bench.host(0, kWrite);
  CHECK_EQ(bench.device(0, kRead), "fault, copy_h2d coherence 0, drop_host coherence 0");
  CHECK_EQ(bench.state(0), "device_write, device");
  CHECK_EQ(bench.host(0, kRead), "fault, copy_d2h coherence 0, drop_device coherence 0");
  CHECK_EQ(bench.state(0), "none, host");
  CHECK_EQ(bench.h2d(Cause::coherence), kBytes);
  CHECK_EQ(bench.d2h(Cause::coherence), kBytes);
  CHECK_EQ(bench.model.chunks.free(), 2u);
}

TEST(read_mostly_copies_for_a_read_and_collapses_for_a_write) {
  Bench bench(2);
  bench.host(0, kWrite);
  CHECK_EQ(bench.advise(0, Advice::set_read_mostly), "");
  CHECK_EQ(bench.device(0, kRead), "fault, copy_h2d coherence 0");
  CHECK_EQ(bench.state(0), "device_read, device host");
  CHECK_EQ(bench.host(0, kRead), "");
  CHECK_EQ(bench.device(0, kWrite), "fault, drop_host coherence 0, collapse");
  CHECK_EQ(bench.state(0), "device_write, device");
  CHECK_EQ(bench.host(0, kRead), "fault, copy_d2h coherence 0");
  CHECK_EQ(bench.state(0), "device_read, device host");
  CHECK_EQ(bench.host(0, kWrite), "fault, drop_device coherence 0, collapse");
  CHECK_EQ(bench.state(0), "none, host");
  CHECK_EQ(bench.device(0, kWrite), "fault, copy_h2d coherence 0, drop_host coherence 0");  // no duplicate, no collapse
  CHECK_EQ(bench.model.counters().collapses, 2);
}

TEST(read_mostly_wins_over_preferred_location) {
  Bench bench(2);
  bench.advise(0, Advice::set_preferred_location, kHost);
  bench.advise(0, Advice::set_read_mostly);
  CHECK_EQ(bench.device(0, kRead), "fault, zero_device coherence 0, first_touch");
  CHECK_EQ(bench.state(0), "device_read, device");
  CHECK_EQ(bench.device(0, kWrite), "fault");  // a protection fault: the sole holder gains the right
  CHECK_EQ(bench.state(0), "device_write, device");
  CHECK_EQ(bench.model.counters().fault_groups, 2);
  CHECK_EQ(bench.model.counters().collapses, 0);
}

TEST(preferred_location_host_keeps_the_page_and_maps_remotely) {
  Bench bench(2);
  bench.advise(0, Advice::set_preferred_location, kHost);
  CHECK_EQ(bench.device(0, kRead), "fault, zero_host coherence 0, first_touch, remote_map");
  CHECK_EQ(bench.state(0), "remote_write, host");
  bench.host(1, kWrite);
  bench.advise(1, Advice::set_preferred_location, kHost);
  CHECK_EQ(bench.device(1, kWrite), "fault, remote_map");
  CHECK_EQ(bench.state(1), "remote_write, host");
  CHECK_EQ(bench.model.counters().remote_maps, 2);
  CHECK_EQ(bench.model.chunks.resident(), 0u);
}

TEST(evicted_pages_preferred_on_the_host_stay_there) {
  Bench bench(1);
  bench.device(0, kWrite);
  CHECK_EQ(bench.advise(0, Advice::set_preferred_location, kHost), "");  // moves nothing by itself
  CHECK_EQ(bench.state(0), "device_write, device");
  bench.device(1, kWrite);
  CHECK_EQ(bench.state(0), "none, host");
  CHECK_EQ(bench.device(0, kRead), "fault, remote_map");
}

TEST(preferred_location_device_migrates_and_loses_remote_mappings) {
  Bench bench(2);
  bench.host(0, kWrite);
  bench.advise(0, Advice::set_accessed_by);
  CHECK_EQ(bench.state(0), "remote_write, host");
  CHECK_EQ(bench.advise(0, Advice::set_preferred_location, kDevice), "");
  CHECK_EQ(bench.state(0), "none, host");
  CHECK_EQ(bench.advise(0, Advice::unset_preferred_location), "remote_map");  // accessed by it again
  CHECK_EQ(bench.advise(0, Advice::set_preferred_location, kDevice), "");
  CHECK_EQ(bench.device(0, kRead), "fault, copy_h2d coherence 0, drop_host coherence 0");
}

TEST(preferred_location_device_does_not_protect_from_eviction) {
  Bench bench(1);
  bench.advise(0, Advice::set_preferred_location, kDevice);
  bench.device(0, kWrite);
  CHECK_EQ(bench.device(1, kWrite), "fault, evict_copy eviction 0, zero_device coherence 1, first_touch");
  CHECK_EQ(bench.state(0), "none, host");
}

TEST(the_host_takes_pages_preferred_on_the_device) {
  Bench bench(2);
  bench.advise(0, Advice::set_preferred_location, kDevice);
  CHECK_EQ(bench.host(0, kWrite), "fault, zero_host coherence 0, first_touch");
  bench.device(0, kWrite);
  CHECK_EQ(bench.host(0, kRead), "fault, copy_d2h coherence 0, drop_device coherence 0");
}

TEST(accessed_by_maps_eagerly_and_moves_nothing) {
  Bench bench(2);
  bench.host(0, kWrite);
  CHECK_EQ(bench.advise(0, Advice::set_accessed_by), "remote_map");
  CHECK_EQ(bench.state(0), "remote_write, host");
  CHECK_EQ(bench.device(0, kWrite), "");
  CHECK_EQ(bench.model.counters().fault_groups, 0);
  bench.advise(1, Advice::set_accessed_by);
  CHECK_EQ(bench.host(1, kRead), "fault, zero_host coherence 1, first_touch, remote_map");  // mapped as it appears
}

TEST(accessed_by_is_mapped_again_after_eviction_and_migration) {
  Bench bench(1);
  bench.advise(0, Advice::set_accessed_by);
  bench.device(0, kWrite);
  CHECK_EQ(bench.state(0), "device_write, device");
  bench.device(1, kWrite);
  CHECK_EQ(bench.state(0), "remote_write, host");
  CHECK_EQ(bench.model.counters().remote_maps, 1);
  CHECK_EQ(bench.prefetch(0, kDevice), "evict_copy eviction 1, copy_h2d user 0, drop_host user 0");
  CHECK_EQ(bench.prefetch(0, kHost), "copy_d2h user 0, drop_device user 0, remote_map");
  bench.prefetch(0, kDevice);
  CHECK_EQ(bench.host(0, kRead), "fault, copy_d2h coherence 0, drop_device coherence 0, remote_map");
}

TEST(accessed_by_does_not_count_where_the_device_is_preferred_or_the_page_is_read_mostly) {
  Bench bench(2);
  bench.host(0, kWrite);
  bench.advise(0, Advice::set_preferred_location, kDevice);
  CHECK_EQ(bench.advise(0, Advice::set_accessed_by), "");
  bench.host(1, kWrite);
  bench.advise(1, Advice::set_read_mostly);
  CHECK_EQ(bench.advise(1, Advice::set_accessed_by), "");
  CHECK_EQ(bench.state(1), "none, host");
}

TEST(unset_accessed_by_leaves_the_mapping) {
  Bench bench(2);
  bench.host(0, kWrite);
  bench.advise(0, Advice::set_accessed_by);
  CHECK_EQ(bench.advise(0, Advice::unset_accessed_by), "");
  CHECK_EQ(bench.state(0), "remote_write, host");
  bench.prefetch(0, kDevice);
  CHECK_EQ(bench.prefetch(0, kHost), "copy_d2h user 0, drop_device user 0");
  CHECK_EQ(bench.state(0), "none, host");
}

TEST(accessed_by_the_host_has_no_effect) {
  Bench bench(2);
  bench.device(0, kWrite);
  CHECK_EQ(bench.advise(0, Advice::set_accessed_by, kHost), "");
  CHECK_EQ(bench.host(0, kRead), "fault, copy_d2h coherence 0, drop_device coherence 0");
}

TEST(set_read_mostly_downgrades_and_unmaps) {
  Bench bench(3);
  bench.device(0, kWrite);
  bench.device(1, kWrite);
  CHECK_EQ(bench.advise(0, Advice::set_read_mostly), "");
  CHECK_EQ(bench.state(0), "device_read, device");
  CHECK_EQ(bench.model.chunks.next_victim(), 1u);  // the walk over populated blocks is a service of block 0
  bench.host(2, kWrite);
  bench.advise(2, Advice::set_accessed_by);
  bench.advise(2, Advice::set_read_mostly);
  CHECK_EQ(bench.state(2), "none, host");
}

TEST(unset_read_mostly_keeps_one_copy) {
  Bench bench(3);
  for (uint32_t block = 0; block < 3; ++block) {
    bench.host(block, kWrite);
    bench.advise(block, Advice::set_read_mostly);
    bench.device(block, kRead);
  }
  CHECK_EQ(bench.advise(0, Advice::unset_read_mostly), "drop_device user 0");
  CHECK_EQ(bench.state(0), "none, host");
  bench.advise(1, Advice::set_preferred_location, kDevice);
  CHECK_EQ(bench.advise(1, Advice::unset_read_mostly), "drop_host user 1");
  CHECK_EQ(bench.state(1), "device_read, device");
  CHECK_EQ(bench.model.chunks.next_victim(), 2u);  // keeping the device's copy was a service of block 1
  CHECK_EQ(bench.device(1, kWrite), "fault");
  bench.advise(2, Advice::set_accessed_by);
  CHECK_EQ(bench.advise(2, Advice::unset_read_mostly), "drop_device user 2, remote_map");
  CHECK_EQ(bench.model.counters().collapses, 0);
}

TEST(prefetch_moves_with_cause_user_and_without_a_fault) {
  Bench bench(2);
  CHECK_EQ(bench.prefetch(0, kDevice), "zero_device user 0, first_touch");  // populates what was never touched
  CHECK_EQ(bench.prefetch(0, kHost), "copy_d2h user 0, drop_device user 0");
  CHECK_EQ(bench.prefetch(0, kDevice), "copy_h2d user 0, drop_host user 0");
  CHECK_EQ(bench.device(0, kWrite), "");
  CHECK_EQ(bench.h2d(Cause::user), kBytes);
  CHECK_EQ(bench.d2h(Cause::user), kBytes);
  CHECK_EQ(bench.model.counters().fault_groups, 0);
}

TEST(prefetch_wins_over_preferred_location) {
  Bench bench(2);
  bench.advise(0, Advice::set_preferred_location, kHost);
  bench.host(0, kWrite);
  CHECK_EQ(bench.prefetch(0, kDevice), "copy_h2d user 0, drop_host user 0");
  bench.advise(1, Advice::set_preferred_location, kDevice);
  bench.device(1, kWrite);
  CHECK_EQ(bench.prefetch(1, kHost), "copy_d2h user 1, drop_device user 1");
}

TEST(prefetch_of_a_read_mostly_block_adds_a_copy) {
  Bench bench(2);
  bench.host(0, kWrite);
  bench.advise(0, Advice::set_read_mostly);
  CHECK_EQ(bench.prefetch(0, kDevice), "copy_h2d user 0");
  CHECK_EQ(bench.state(0), "device_read, device host");
  bench.advise(1, Advice::set_read_mostly);
  bench.device(1, kWrite);
  CHECK_EQ(bench.prefetch(1, kHost), "copy_d2h user 1");
  CHECK_EQ(bench.state(1), "device_read, device host");
}

TEST(eviction_takes_the_least_recently_serviced) {
  Bench bench(2);
  bench.device(0, kWrite);
  bench.device(1, kWrite);
  CHECK_EQ(bench.device(0, kRead), "");  // a plain access is invisible to the driver
  CHECK_EQ(bench.model.chunks.next_victim(), 0u);
  CHECK_EQ(bench.device(2, kWrite), "fault, evict_copy eviction 0, zero_device coherence 2, first_touch");
  CHECK_EQ(bench.state(0), "none, host");
  CHECK_EQ(bench.d2h(Cause::eviction), kBytes);
  CHECK_EQ(bench.model.counters().evictions, 1);
}

TEST(a_service_that_moves_nothing_refreshes) {
  Bench bench(2);
  bench.advise(0, Advice::set_read_mostly);
  bench.device(0, kRead);
  bench.device(1, kWrite);
  CHECK_EQ(bench.device(0, kWrite), "fault");
  CHECK_EQ(bench.model.chunks.next_victim(), 1u);
}

TEST(a_prefetch_of_a_resident_block_refreshes) {
  Bench bench(2);
  bench.device(0, kWrite);
  bench.device(1, kWrite);
  CHECK_EQ(bench.prefetch(0, kDevice), "");
  CHECK_EQ(bench.model.chunks.next_victim(), 1u);
}

TEST(a_host_fault_on_a_duplicate_does_not_refresh) {
  Bench bench(2);
  bench.advise(0, Advice::set_read_mostly);
  bench.device(0, kWrite);
  bench.device(1, kWrite);
  bench.host(0, kRead);
  CHECK_EQ(bench.model.chunks.next_victim(), 0u);
}

TEST(a_duplicate_is_dropped_without_a_copy) {
  Bench bench(1);
  bench.host(0, kWrite);
  bench.advise(0, Advice::set_read_mostly);
  bench.device(0, kRead);
  CHECK_EQ(bench.device(1, kWrite), "fault, evict_drop eviction 0, zero_device coherence 1, first_touch");
  CHECK_EQ(bench.state(0), "none, host");
  CHECK_EQ(bench.model.counters().evictions_dropped, 1);
  CHECK_EQ(bench.d2h(Cause::eviction), 0);
}

TEST(clean_pages_are_copied_all_the_same) {
  Bench bench(1);
  bench.host(0, kWrite);
  bench.device(0, kRead);
  CHECK_EQ(bench.device(1, kRead), "fault, evict_copy eviction 0, zero_device coherence 1, first_touch");
}

TEST(discarded_blocks_go_first_and_without_a_copy) {
  Bench bench(2);
  bench.device(0, kWrite);
  bench.device(1, kWrite);
  bench.model.discard(1);
  CHECK_EQ(bench.state(1), "none, device");
  CHECK_EQ(bench.device(2, kWrite), "fault, evict_drop eviction 1, zero_device coherence 2, first_touch");
  CHECK_EQ(bench.state(1), "none,");
  CHECK_EQ(bench.device(1, kRead), "fault, evict_copy eviction 0, zero_device coherence 1, first_touch");
  CHECK_EQ(bench.model.chunks.next_victim(), 1u);  // read again, still discarded
}

TEST(discard_ends_with_a_write) {
  Bench bench(2);
  bench.device(0, kWrite);
  bench.device(1, kWrite);
  bench.model.discard(1);
  CHECK_EQ(bench.device(1, kRead), "fault");
  CHECK_EQ(bench.state(1), "device_read, device");
  CHECK_EQ(bench.model.chunks.next_victim(), 1u);
  CHECK_EQ(bench.device(1, kWrite), "fault");
  CHECK_EQ(bench.state(1), "device_write, device");
  CHECK_EQ(bench.model.chunks.next_victim(), 0u);
}

TEST(discard_ends_with_a_prefetch) {
  Bench bench(2);
  bench.device(0, kWrite);
  bench.device(1, kWrite);
  bench.model.discard(1);
  CHECK_EQ(bench.prefetch(1, kDevice), "");
  CHECK_EQ(bench.state(1), "device_write, device");
  CHECK_EQ(bench.model.chunks.next_victim(), 0u);
  bench.model.discard(1);
  CHECK_EQ(bench.prefetch(1, kHost), "zero_host user 1, drop_device user 1");
}

TEST(discarded_contents_are_never_copied) {
  Bench bench(2);
  bench.host(0, kWrite);
  bench.model.discard(0);
  CHECK_EQ(bench.device(0, kRead), "fault, zero_device coherence 0, drop_host coherence 0");
  CHECK_EQ(bench.host(0, kRead), "fault, zero_host coherence 0, drop_device coherence 0");
  CHECK_EQ(bench.host(0, kWrite), "fault");
  CHECK_EQ(bench.device(0, kRead), "fault, copy_h2d coherence 0, drop_host coherence 0");
}

TEST(accessed_by_mappings_of_discarded_pages_wait_for_the_write) {
  Bench bench(2);
  bench.host(0, kWrite);
  bench.model.discard(0);
  CHECK_EQ(bench.advise(0, Advice::set_accessed_by), "");
  CHECK_EQ(bench.device(0, kRead), "fault, remote_map");
  CHECK_EQ(bench.state(0), "remote_read, host");
  CHECK_EQ(bench.device(0, kWrite), "fault");
  CHECK_EQ(bench.state(0), "remote_write, host");
}

TEST(a_prefetch_collapses_a_discarded_read_mostly_block) {
  Bench bench(2);
  bench.host(0, kWrite);
  bench.advise(0, Advice::set_read_mostly);
  bench.model.discard(0);
  CHECK_EQ(bench.prefetch(0, kDevice), "zero_device user 0, drop_host user 0");
  bench.host(0, kRead);
  bench.model.discard(0);
  bench.advise(0, Advice::set_preferred_location, kHost);
  CHECK_EQ(bench.prefetch(0, kDevice), "drop_device user 0");
  CHECK_EQ(bench.state(0), "none, host");
}

TEST(pinned_blocks_are_never_evicted) {
  Bench bench(2);
  bench.device(0, kWrite);
  bench.device(1, kWrite);
  bench.model.chunks.pin(0);
  bench.model.chunks.pin(0);
  CHECK_EQ(bench.model.chunks.pins(0), 2u);
  CHECK_EQ(bench.model.chunks.pinned(), 1u);
  CHECK_EQ(bench.device(2, kWrite), "fault, evict_copy eviction 1, zero_device coherence 2, first_touch");
  bench.model.chunks.unpin(0);
  CHECK_EQ(bench.model.chunks.next_victim(), 2u);
  bench.model.chunks.unpin(0);
  CHECK_EQ(bench.model.chunks.pinned(), 0u);
  bench.device(3, kWrite);
  CHECK_EQ(bench.model.chunks.next_victim(), 0u);  // unpinned to the tail
}

TEST(a_pin_holds_before_the_block_arrives) {
  Bench bench(2);
  bench.model.chunks.pin(0);
  CHECK_EQ(bench.model.chunks.pinned(), 0u);
  bench.device(0, kWrite);
  CHECK_EQ(bench.model.chunks.pinned(), 1u);
  CHECK_EQ(bench.model.chunks.next_victim(), Model::kNone);
}

TEST(without_an_evictable_chunk_a_fault_maps_the_host_copy) {
  Bench bench(1);
  bench.host(1, kWrite);
  bench.device(0, kWrite);
  bench.model.chunks.pin(0);
  CHECK_EQ(bench.device(1, kRead), "fault, remote_map");
  CHECK_EQ(bench.state(1), "remote_write, host");
  CHECK_EQ(bench.device(2, kWrite), "fault, zero_host coherence 2, first_touch, remote_map");
  CHECK_EQ(bench.state(2), "remote_write, host");
  CHECK_EQ(bench.prefetch(1, kDevice), "");
  CHECK_EQ(bench.prefetch(3, kDevice), "");
  CHECK_EQ(bench.state(3), "none,");
  bench.advise(4, Advice::set_read_mostly);
  bench.host(4, kWrite);
  CHECK_EQ(bench.device(4, kRead), "fault, remote_map");
  CHECK_EQ(bench.state(4), "remote_read, host");
  bench.model.chunks.unpin(0);
  CHECK_EQ(bench.device(4, kWrite), "fault, evict_copy eviction 0, copy_h2d coherence 4, drop_host coherence 4");
}

TEST(plain_chunks_take_room_and_give_it_back) {
  Bench bench(2);
  bench.device(0, kWrite);
  Outcome outcome;
  CHECK(bench.model.take_chunk(outcome));
  CHECK_EQ(text(outcome), "");
  CHECK_EQ(bench.model.chunks.free(), 0u);
  CHECK(bench.model.take_chunk(outcome));
  CHECK_EQ(text(outcome), "evict_copy eviction 0");
  CHECK(!bench.model.take_chunk(outcome));
  CHECK_EQ(bench.device(1, kWrite), "fault, zero_host coherence 1, first_touch, remote_map");
  bench.model.chunks.give_plain();
  CHECK_EQ(bench.model.chunks.free(), 1u);
  CHECK_EQ(bench.device(0, kRead), "fault, copy_h2d coherence 0, drop_host coherence 0");
}

TEST(release_forgets_everything) {
  Bench bench(1);
  bench.advise(0, Advice::set_read_mostly);
  bench.device(0, kWrite);
  bench.model.chunks.pin(0);
  bench.model.discard(0);
  bench.model.release(0);
  CHECK(!bench.model.allocated(0));
  CHECK_EQ(bench.model.chunks.pins(0), 0u);
  CHECK_EQ(bench.model.chunks.pinned(), 0u);
  CHECK_EQ(bench.model.chunks.free(), 1u);
  CHECK_EQ(bench.model.chunks.next_victim(), Model::kNone);
  bench.model.allocate(0, 1);
  CHECK_EQ(bench.device(0, kRead), "fault, zero_device coherence 0, first_touch");
  CHECK_EQ(bench.state(0), "device_write, device");
}

TEST(a_freed_chunk_is_taken_before_anything_is_evicted) {
  Bench bench(2);
  bench.device(0, kWrite);
  bench.device(1, kWrite);
  bench.model.discard(1);
  bench.prefetch(0, kHost);  // its chunk is unused: before discarded, before used
  CHECK_EQ(bench.device(2, kWrite), "fault, zero_device coherence 2, first_touch");
  CHECK_EQ(bench.model.counters().evictions + bench.model.counters().evictions_dropped, 0);
}

// Least recently serviced is first in, first out for a cyclic sweep: its worst case.
TEST(a_cyclic_sweep_of_five_quarters_of_capacity_misses_every_block_every_pass) {
  constexpr uint32_t kChunks = 64, kBlocks = 80;
  constexpr int kPasses = 6;
  Model model(kBlocks, kChunks);
  model.allocate(0, kBlocks);
  for (uint32_t block = 0; block < kBlocks; ++block) model.access(block, Processor::host, true);
  for (int pass = 1; pass <= kPasses; ++pass) {
    for (uint32_t block = 0; block < kBlocks; ++block) {
      CHECK(model.access(block, Processor::device, false).fault);
    }
    CHECK_EQ(model.counters().bytes_h2d[static_cast<int>(Cause::coherence)], pass * kBlocks * kBytes);
    CHECK_EQ(model.counters().evictions, int64_t{pass} * kBlocks - kChunks);
  }
}

// Published for the same sweep with PreferredLocation(host) and AccessedBy(device): nothing migrates.
TEST(a_sweep_over_remote_pages_migrates_nothing) {
  Bench bench(4);
  for (uint32_t block = 0; block < 8; ++block) {
    bench.host(block, kWrite);
    bench.advise(block, Advice::set_preferred_location, kHost);
    bench.advise(block, Advice::set_accessed_by);
  }
  for (int pass = 0; pass < 3; ++pass) {
    for (uint32_t block = 0; block < 8; ++block) CHECK_EQ(bench.device(block, kWrite), "");
  }
  CHECK_EQ(bench.model.chunks.resident(), 0u);
  CHECK_EQ(bench.model.counters().fault_groups, 0);
}

TEST(half_a_million_blocks_work) {
  Model model(524288, 1024);
  model.allocate(524287, 1);
  CHECK_EQ(text(model.access(524287, Processor::device, true)), "fault, zero_device coherence 524287, first_touch");
  CHECK(!model.allocated(0));
}
