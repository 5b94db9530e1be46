// The exact mode: where pages go, advice, prefetches, thrashing, access counters and the clock, one test a rule.
#include "check.h"
#include "um_pages_bench.h"

// ---- where pages go -------------------------------------------------------------------------------------------------

TEST(a_fault_migrates_and_back) {
  Bench bench(4);
  const auto id = bench.allocate();
  bench.host(id, kWrite);
  bench.device(id, kRead);
  bench.device(id, kWrite);                 // a read maps for writing too
  CHECK_EQ(bench.count().fault_groups, 2);  // 256 pages a batch
  CHECK_EQ(bench.h2d(), kBytes);
  bench.host(id, kRead);
  CHECK_EQ(bench.d2h(), kBytes);
  CHECK_EQ(bench.count().host_fault_groups, 12);
  CHECK_EQ(bench.sizes(Direction::d2h, Cause::speculative), "60 60 124 252 508 1020 ");
}

TEST(first_touch_on_the_preferred_location_populates_the_block_at_once) {
  Bench bench(4);
  const auto id = bench.allocate();
  bench.advise(id, Advice::set_preferred_location, kDevice);
  bench.model.touch(id, {0, kBlock, kDevice, kWrite});
  CHECK_EQ(bench.count().fault_groups, 1);
  CHECK_EQ(bench.h2d(), 0);
}

TEST(nothing_is_prefetched_away_from_the_preferred_location) {
  Bench bench(4);
  const auto id = bench.allocate();
  bench.device(id, kWrite);
  bench.advise(id, Advice::set_preferred_location, kDevice);
  bench.host(id, kRead, 64 * kKiB);  // the host reaches host memory only
  CHECK_EQ(bench.count().host_fault_groups, 16);
  CHECK_EQ(bench.d2h(), 64 * 1024);
}

TEST(preferred_location_host_maps_what_is_there_page_by_page) {
  Bench bench(4);
  const auto id = bench.allocate();
  bench.host(id, kWrite);
  bench.advise(id, Advice::set_preferred_location, kHost);
  bench.model.touch(id, {0, kBlock, kDevice, kWrite});
  CHECK_EQ(bench.count().fault_groups, 512);  // pages that the host maps are not prefetched to it
  CHECK_EQ(bench.h2d(), 0);
  CHECK_EQ(bench.model.counters().remote_bytes, kBytes);
  const auto untouched = bench.allocate();
  bench.advise(untouched, Advice::set_preferred_location, kHost);
  bench.device(untouched, kWrite);
  CHECK_EQ(bench.count().fault_groups, 513);  // resident nowhere: populated there at once
  CHECK_EQ(bench.model.counters().zeroed_bytes, 0);
}

TEST(v9_preferred_location_host_and_accessed_by_never_migrate) {
  Bench bench(8);
  const auto id = bench.allocate(16 * kBlock);
  bench.host(id, kWrite, 16 * kBlock);
  bench.advise(id, Advice::set_preferred_location, kHost);
  bench.advise(id, Advice::set_accessed_by);
  const int64_t start_ns = bench.model.now_ns();
  for (int pass = 0; pass < 3; ++pass) bench.device(id, kRead, 16 * kBlock);
  CHECK_EQ(bench.count().fault_groups, 0);
  CHECK_EQ(bench.h2d() + bench.d2h(), 0);
  CHECK_EQ(bench.model.counters().remote_bytes, 3 * 16 * kBytes);
  const double gib_per_s = 3 * 16 * 2.0 / 1024 / (static_cast<double>(bench.model.now_ns() - start_ns) * 1e-9);
  CHECK(gib_per_s > 10.7 && gib_per_s < 11.5);
}

TEST(the_host_maps_device_memory_on_coherent_machines_only) {
  for (const bool coherent : {false, true}) {
    Bench bench(4, coherent);
    const auto id = bench.allocate();
    bench.advise(id, Advice::set_preferred_location, kDevice);
    bench.device(id, kWrite);
    bench.host(id, kRead);
    CHECK_EQ(bench.d2h(), coherent ? 0 : kBytes);
    CHECK_EQ(bench.model.counters().remote_bytes, coherent ? kBytes : 0);
    const auto other = bench.allocate();
    bench.advise(other, Advice::set_accessed_by, kHost);
    bench.device(other, kWrite);
    const int64_t host_groups = bench.count().host_fault_groups;
    bench.host(other, kRead);
    CHECK_EQ(bench.count().host_fault_groups - host_groups, coherent ? 0 : 6);
  }
}

// ---- read mostly ----------------------------------------------------------------------------------------------------

TEST(read_mostly_duplicates_and_collapses_page_by_page) {
  Bench bench(4);
  const auto id = bench.allocate();
  bench.host(id, kWrite);
  bench.advise(id, Advice::set_read_mostly);
  bench.device(id, kRead);
  const int64_t host_groups = bench.count().host_fault_groups;
  bench.host(id, kRead);
  CHECK_EQ(bench.count().host_fault_groups, host_groups);  // the host has its copy still
  bench.host(id, kWrite);
  // Pages that come along are only read, so that every page is written for itself.
  CHECK_EQ(bench.count().host_fault_groups, host_groups + 512);
  CHECK_EQ(bench.count().collapses, 512);
  CHECK_EQ(bench.d2h(), 0);
  bench.device(id, kRead);
  CHECK_EQ(bench.h2d(), 2 * kBytes);
}

TEST(v10_read_mostly_with_writes_is_slower_than_no_advice) {
  int64_t took_ns[2], moved[2];
  for (const bool advice : {false, true}) {
    Bench bench(64);
    const auto id = bench.allocate(32 * kBlock);
    bench.host(id, kWrite, 32 * kBlock);
    if (advice) bench.advise(id, Advice::set_read_mostly);
    const int64_t start_ns = bench.model.now_ns();
    for (int iteration = 0; iteration < 5; ++iteration) {
      bench.device(id, kRead, 32 * kBlock);
      bench.host(id, kWrite, 32 * kBlock);
    }
    took_ns[advice] = bench.model.now_ns() - start_ns;
    moved[advice] = bench.h2d();
    CHECK_EQ(bench.count().collapses, advice ? 5 * 32 * 512 : 0);
  }
  CHECK_EQ(moved[true], moved[false]);  // the copies are made anew each time
  CHECK(took_ns[true] > 3 * took_ns[false]);
}

TEST(unset_read_mostly_keeps_the_hosts_copies) {
  Bench bench(4);
  const auto id = bench.allocate();
  bench.host(id, kWrite);
  bench.advise(id, Advice::set_read_mostly);
  bench.device(id, kRead);
  bench.advise(id, Advice::unset_read_mostly);
  bench.device(id, kRead);
  CHECK_EQ(bench.h2d(), 2 * kBytes);
  CHECK_EQ(bench.d2h(), 0);
}

// ---- 64 KiB pages ---------------------------------------------------------------------------------------------------

TEST(serial_sweep_in_64_kib_pages) {
  Bench bench(4, true, 65536);
  const auto id = bench.allocate();
  bench.host(id, kWrite);
  bench.model.touch(id, {0, kBlock, kDevice, kRead});
  CHECK_EQ(bench.count().fault_groups, 6);
  CHECK_EQ(bench.sizes(Direction::h2d, Cause::coherence), "64 64 64 64 64 64 ");
  CHECK_EQ(bench.sizes(Direction::h2d, Cause::speculative), "64 192 448 960 ");
}

// ---- prefetch -------------------------------------------------------------------------------------------------------

TEST(prefetch_moves_whole_blocks_without_faults) {
  Bench bench(8);
  const auto id = bench.allocate(3 * kBlock + 8 * kKiB);
  const uint64_t bytes = 3 * kBlock + 8 * kKiB;
  bench.host(id, kWrite, bytes);
  bench.model.prefetch(id, kDevice);
  CHECK_EQ(bench.sizes(Direction::h2d, Cause::user), "2048 2048 2048 8 ");
  bench.device(id, kWrite, bytes);
  CHECK_EQ(bench.count().fault_groups, 0);
  bench.model.prefetch(id, kHost);
  CHECK_EQ(bench.sizes(Direction::d2h, Cause::user), "2048 2048 2048 8 ");
  const int64_t host_groups = bench.count().host_fault_groups;
  bench.host(id, kWrite, bytes);
  CHECK_EQ(bench.count().host_fault_groups, host_groups);
}

TEST(prefetch_moves_what_is_missing_and_ends_a_discard) {
  Bench bench(4);
  const auto id = bench.allocate();
  bench.host(id, kWrite);
  bench.model.touch(id, {512 * kKiB, 64 * kKiB, kDevice, kRead, TouchOrder::serial, 16});
  const size_t before = bench.now();
  bench.model.prefetch(id, kDevice);
  CHECK_EQ(bench.sizes(Direction::h2d, Cause::user, before), "512 1472 ");
  bench.model.discard(id);
  bench.model.prefetch(id, kDevice);
  CHECK_EQ(bench.h2d(), kBytes);
  bench.host(id, kRead);
  CHECK_EQ(bench.d2h(), kBytes);
}

TEST(prefetches_evict_and_overlap_with_their_own_evictions) {
  Bench bench(4);
  const auto id = bench.allocate(8 * kBlock);
  bench.host(id, kWrite, 8 * kBlock);
  bench.model.prefetch(id, kDevice);
  CHECK_EQ(bench.count().evictions, 4);
  const std::vector<Record>& records = bench.model.records();
  int overlaps = 0;
  for (const Record& out : records)
    for (const Record& in : records)
      overlaps += out.cause == Cause::eviction && in.cause == Cause::user && in.start_ns < out.end_ns &&
                  out.start_ns < in.end_ns;
  CHECK(overlaps > 0);
  CHECK(bench.model.now_ns() < records.back().end_ns);  // the caller went on
  const int64_t last_ns = records.back().end_ns;
  bench.device(id, kRead, 4096, 7 * kBlock);
  CHECK_EQ(bench.model.now_ns(), last_ns);  // what comes after it waits
}

// ---- thrashing ------------------------------------------------------------------------------------------------------

TEST(pages_that_two_processors_fight_over_are_throttled_then_pinned) {
  Bench bench(4);
  const auto id = bench.allocate(kBlock);
  for (int round = 0; round < 60; ++round) {
    bench.host(id, kWrite, 4096);
    bench.model.touch(id, {0, 4096, kDevice, kWrite});
  }
  const pages::PageCounters& counters = bench.model.counters();
  CHECK(counters.thrashing_pages > 0);
  CHECK(counters.throttles >= 10);
  CHECK(counters.pinned_pages > 0);
  CHECK(counters.remote_bytes > 0);  // pinned on the host: the only place that both reach
}

TEST(slow_ping_pong_is_not_thrashing) {
  Bench bench(64);
  const auto id = bench.allocate(32 * kBlock);
  for (int round = 0; round < 8; ++round) {
    bench.host(id, kWrite, 32 * kBlock);
    bench.device(id, kWrite, 32 * kBlock);
  }
  CHECK_EQ(bench.model.counters().thrashing_pages, 0);
}

TEST(a_device_that_fights_its_own_evictions_is_not_thrashing) {
  Bench bench(1);
  const auto a = bench.allocate(), b = bench.allocate();
  for (int round = 0; round < 50; ++round) {
    bench.device(a, kWrite, 4096);
    bench.device(b, kWrite, 4096);
  }
  CHECK_EQ(bench.count().evictions, 99);
  CHECK_EQ(bench.model.counters().thrashing_pages, 0);
}

TEST(duplicates_do_not_thrash) {
  Bench bench(4);
  const auto id = bench.allocate();
  bench.advise(id, Advice::set_read_mostly);
  for (int round = 0; round < 50; ++round) {
    bench.host(id, kWrite, 4096);
    bench.model.touch(id, {0, 4096, kDevice, kRead});
  }
  CHECK_EQ(bench.model.counters().thrashing_pages, 0);
}

// ---- access counters ------------------------------------------------------------------------------------------------

TEST(access_counters_migrate_on_coherent_machines_only) {
  for (const bool coherent : {false, true}) {
    Bench bench(4, coherent);
    const auto id = bench.allocate();
    bench.host(id, kWrite);
    bench.advise(id, Advice::set_accessed_by);
    bench.device(id, kRead, 28 * kKiB);  // 224 requests of 128 bytes
    CHECK_EQ(bench.h2d(), 0);
    bench.device(id, kRead, 28 * kKiB);
    CHECK_EQ(bench.count().bytes_h2d[static_cast<int>(Cause::access_counter)], coherent ? kBytes : 0);
  }
}

// ---- the clock ------------------------------------------------------------------------------------------------------

TEST(a_batch_takes_the_sum_of_its_parts) {
  Bench bench(4);
  const pages::Costs costs;
  const auto id = bench.allocate(2 * kBlock);
  bench.host(id, kWrite, 2 * kBlock);
  bench.device(id, kRead, 64 * kKiB);  // maps the first block's host pages
  const int64_t start_ns = bench.model.now_ns();
  // Ten pages on both sides of the blocks' border: one batch, two blocks.
  bench.device(id, kRead, 40 * kKiB, kBlock - 20 * kKiB);
  const Record& last = bench.model.records().back();
  const size_t records = bench.now();
  int64_t expected_ns = costs.batch_ns + 10 * costs.entry_ns + 2 * (costs.block_ns + costs.migrate_ns) +
                        costs.first_map_ns;  // the second block's
  int groups = 0;
  for (size_t i = 0; i < records; ++i) {
    const Record& record = bench.model.records()[i];
    if (record.start_ns < start_ns) continue;
    if (record.direction == Direction::none) {
      CHECK_EQ(record.start_ns, start_ns);
      CHECK_EQ(record.end_ns, bench.model.now_ns());
      CHECK_EQ(record.faults, 5u);
      ++groups;
    } else {
      const double copy_ns = static_cast<double>(record.bytes) * 1e9 / costs.h2d_bytes_per_s;
      expected_ns += costs.transfer_ns + static_cast<int64_t>(copy_ns + 0.5);
    }
  }
  CHECK_EQ(groups, 2);
  CHECK_EQ(last.end_ns, bench.model.now_ns());
  CHECK_EQ(bench.model.now_ns() - start_ns, expected_ns);
}

// ---- what cannot be -------------------------------------------------------------------------------------------------

TEST(impossible_machines_and_ranges_are_refused) {
  const auto refused = [](const auto& work) {
    try {
      work();
    } catch (const std::exception&) {
      return true;
    }
    return false;
  };
  CHECK(refused([] { PageModel({kMiB, 4096, false}, {}); }));
  CHECK(refused([] { PageModel({kBlock, 8192, false}, {}); }));
  pages::Costs costs;
  costs.h2d_bytes_per_s = 0;
  CHECK(refused([&] { PageModel({kBlock, 4096, false}, costs); }));
  Bench bench(4);
  const auto id = bench.allocate(4096);
  CHECK(refused([&] { bench.allocate(0); }));
  CHECK(refused([&] { bench.device(id, kRead, 4097); }));
  CHECK(refused([&] { bench.device(id, kRead, 1, ~uint64_t{0}); }));
  bench.model.free(id);
  CHECK(refused([&] { bench.model.free(id); }));
  CHECK(refused([&] { bench.device(id, kRead, 1); }));
}
