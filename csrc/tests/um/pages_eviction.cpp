// The exact mode: who is evicted, with or without a copy, and what blocks smaller than 2 MiB take.
#include "check.h"
#include "um_pages_bench.h"

// ---- eviction -------------------------------------------------------------------------------------------------------

TEST(the_least_recently_serviced_leaves) {
  Bench bench(2);
  const auto first = bench.allocate(), second = bench.allocate(), third = bench.allocate();
  bench.device(first, kWrite);
  bench.device(second, kWrite);
  bench.device(first, kRead);  // the driver does not see it
  bench.device(third, kWrite);
  CHECK_EQ(bench.count().evictions, 1);
  CHECK_EQ(bench.sizes(Direction::d2h, Cause::eviction), "2048 ");
  CHECK_EQ(bench.model.records().back().address, bench.model.address(third));
  const size_t before = bench.now();
  bench.model.prefetch(second, kDevice);  // in place already; the order is refreshed
  bench.device(first, kRead);
  CHECK_EQ(bench.sizes(Direction::d2h, Cause::eviction, before), "2048 ");
  for (const Record& record : bench.model.records())
    if (record.cause == Cause::eviction && record.direction == Direction::d2h)
      CHECK(record.address != bench.model.address(second));
}

TEST(what_is_partly_resident_leaves_in_runs) {
  Bench bench(1);
  const auto first = bench.allocate(), second = bench.allocate();
  bench.device(first, kWrite, 64 * kKiB);
  bench.device(first, kWrite, 64 * kKiB, 256 * kKiB);
  bench.device(second, kWrite, 4 * kKiB);
  CHECK_EQ(bench.sizes(Direction::d2h, Cause::eviction), "64 64 ");
}

TEST(v7_v8_cyclic_sweeps_miss_everything) {
  constexpr uint64_t kChunks = 64, kBlocks = kChunks * 5 / 4;
  Bench bench(kChunks);
  const auto id = bench.allocate(kBlocks * kBlock);
  bench.host(id, kWrite, kBlocks * kBlock);
  bench.model.touch(id, {0, kBlocks * kBlock, kDevice, kWrite, TouchOrder::serial, 1, 1, 0, 4096});
  const int64_t h2d = bench.h2d(), d2h = bench.d2h();
  constexpr int kPasses = 4;
  for (int pass = 0; pass < kPasses; ++pass)
    bench.model.touch(id, {0, kBlocks * kBlock, kDevice, kRead, TouchOrder::serial, 1, 1, 0, 4096});
  CHECK_EQ(bench.h2d() - h2d, kPasses * static_cast<int64_t>(kBlocks) * kBytes);
  CHECK_EQ(bench.d2h() - d2h, kPasses * static_cast<int64_t>(kBlocks) * kBytes);
  for (const Record& record : bench.model.records())
    if (record.cause == Cause::eviction) CHECK_EQ(record.bytes, kBlock);
}

TEST(clean_duplicates_and_discards_leave_without_a_copy) {
  Bench bench(1);
  const auto duplicated = bench.allocate(), other = bench.allocate();
  bench.host(duplicated, kWrite);
  bench.advise(duplicated, Advice::set_read_mostly);
  bench.device(duplicated, kRead);
  bench.device(other, kWrite);
  CHECK_EQ(bench.count().evictions_dropped, 1);
  bench.model.discard(other);
  bench.device(duplicated, kRead);
  CHECK_EQ(bench.count().evictions_dropped, 2);
  CHECK_EQ(bench.count().evictions, 0);
  CHECK_EQ(bench.d2h(), 0);
  bench.device(other, kRead);  // what was discarded is never copied
  CHECK_EQ(bench.h2d(), 2 * kBytes);
}

TEST(discarded_chunks_leave_first) {
  Bench bench(2);
  const auto first = bench.allocate(), second = bench.allocate(), third = bench.allocate();
  bench.device(first, kWrite);
  bench.device(second, kWrite);
  bench.model.discard(second);
  bench.device(third, kWrite);
  CHECK_EQ(bench.count().evictions, 0);
  CHECK_EQ(bench.count().evictions_dropped, 1);
  bench.device(first, kRead);
  CHECK_EQ(bench.h2d(), 0);
}

TEST(a_write_ends_a_discard) {
  Bench bench(2);
  const auto first = bench.allocate(), second = bench.allocate(), third = bench.allocate();
  bench.device(first, kWrite);
  bench.device(second, kWrite);
  bench.model.discard(first);
  bench.device(first, kWrite);
  bench.device(third, kWrite);
  CHECK_EQ(bench.count().evictions, 1);  // `second`: `first` was serviced since
  bench.device(first, kRead);
  CHECK_EQ(bench.h2d(), 0);
}

TEST(accessed_by_maps_again_after_eviction) {
  Bench bench(1);
  const auto first = bench.allocate(), second = bench.allocate();
  bench.advise(first, Advice::set_accessed_by);
  bench.device(first, kWrite);
  bench.device(second, kWrite);
  const int64_t groups = bench.count().fault_groups;
  bench.device(first, kRead);
  CHECK_EQ(bench.count().fault_groups, groups);
  CHECK_EQ(bench.model.counters().remote_bytes, kBytes);
}

// ---- blocks smaller than 2 MiB --------------------------------------------------------------------------------------

TEST(small_blocks_take_64_kib_and_single_pages) {
  Bench bench(4);
  const auto id = bench.allocate(100 * kKiB);  // 64 KiB and 9 pages
  bench.host(id, kWrite, 100 * kKiB);
  CHECK_EQ(bench.count().host_fault_groups, 1);  // 16 of 25 pages are more than 51 %
  bench.model.touch(id, {0, 100 * kKiB, kDevice, kRead});
  CHECK_EQ(bench.count().fault_groups, 1);
  CHECK_EQ(bench.sizes(Direction::h2d, Cause::speculative), "96 ");
  const auto tiny = bench.allocate(12 * kKiB);
  bench.host(tiny, kWrite, 12 * kKiB);
  bench.model.touch(tiny, {8 * kKiB, 4 * kKiB, kDevice, kRead});
  CHECK_EQ(bench.h2d(), 112 * 1024);
}

TEST(small_blocks_share_a_chunk_and_leave_together) {
  Bench bench(2);
  const auto a = bench.allocate(256 * kKiB), b = bench.allocate(256 * kKiB);
  const auto first = bench.allocate(), second = bench.allocate();
  bench.device(a, kWrite, 256 * kKiB);
  bench.device(b, kWrite, 256 * kKiB);  // of the chunk that was split for `a`
  bench.device(first, kWrite);
  CHECK_EQ(bench.count().evictions, 0);
  bench.host(a, kRead, 4 * kKiB);
  bench.device(a, kWrite, 4 * kKiB);  // a service, but only full blocks move to the order's end
  bench.device(second, kWrite);
  CHECK_EQ(bench.count().evictions, 2);
  CHECK_EQ(bench.sizes(Direction::d2h, Cause::eviction), "256 256 ");
  bench.device(first, kRead);
  CHECK_EQ(bench.h2d(), 64 * 1024);  // what went to the host and back for `a` alone
}

TEST(freed_memory_is_free) {
  Bench bench(2);
  for (int round = 0; round < 10; ++round) {
    const auto big = bench.allocate(), small = bench.allocate(300 * kKiB);
    bench.device(big, kWrite);
    bench.device(small, kWrite, 300 * kKiB);
    bench.model.free(big);
    bench.model.free(small);
  }
  CHECK_EQ(bench.count().evictions + bench.count().evictions_dropped, 0);
}
