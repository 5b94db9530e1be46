// Managed memory on the emulated device: real faults on real pages. Contents are compared with an ordinary array that
// went through the same stores; counters with closed forms.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <random>
#include <thread>

#include "devices/emulated/layout.h"
#include "devices/emulated/mapper.h"
#include "emulated_device.h"

using namespace um::driver;  // NOLINT
using test::EmulatedDevice;
using test::kBlock;
using test::kMiB;

TEST(untouched_memory_reads_as_zero_and_costs_one_fault_a_block) {
  EmulatedDevice device(32 * kMiB);
  unsigned char* data = device.managed(6 * kMiB);
  for (uint64_t i = 0; i < 6 * kMiB; i += 4096) CHECK_EQ(+data[i], 0);
  CHECK_EQ(device.totals().model.fault_groups, 3);
  CHECK_EQ(device.totals().model.first_touches, 3);
  CHECK_EQ(device.totals().unordered_faults, 3);
  device.free(data);
}

TEST(recycled_memory_reads_as_zero) {
  EmulatedDevice device(16 * kMiB);
  for (int round = 0; round < 3; ++round) {
    unsigned char* data = device.managed(32 * kMiB);
    for (uint64_t i = 0; i < 32 * kMiB; i += 512) {
      CHECK_EQ(+data[i], 0);
      data[i] = 0xAB;
    }
    device.free(data);
  }
}

TEST(a_sweep_over_more_than_the_capacity_keeps_every_byte) {
  EmulatedDevice device(16 * kMiB);
  const uint64_t bytes = 40 * kMiB;
  unsigned char* data = device.managed(bytes);
  for (int pass = 0; pass < 3; ++pass) {
    for (uint64_t i = 0; i < bytes; i += 64) {
      if (pass > 0) CHECK_EQ(+data[i], static_cast<int>((i / 64 + pass - 1) % 251));
      data[i] = static_cast<unsigned char>((i / 64 + pass) % 251);
    }
  }
  // Least recently serviced = first in, first out: a cyclic sweep misses every block of every pass. A block that came
  // in for a read is mapped writable at once, so one fault each.
  const auto totals = device.totals().model;
  CHECK_EQ(totals.fault_groups, 3 * 20);
  CHECK_EQ(totals.evictions, 3 * 20 - 8);
  CHECK_EQ(totals.bytes_h2d[static_cast<int>(um::Cause::coherence)], static_cast<int64_t>(40 * kBlock));
  CHECK_EQ(totals.bytes_d2h[static_cast<int>(um::Cause::eviction)], static_cast<int64_t>((3 * 20 - 8) * kBlock));
  device.free(data);
}

TEST(random_stores_of_many_threads_equal_an_ordinary_array) {
  for (const uint32_t delay : {0u, 200u}) {
    EmulatedDevice device(24 * kMiB, delay, UM_COUNTING_RAW);
    const uint64_t bytes = 48 * kMiB;
    auto* data = reinterpret_cast<uint64_t*>(device.managed(bytes));
    const uint64_t words = bytes / sizeof(uint64_t);
    constexpr int kThreads = 4;
    std::vector<uint64_t> expected(words, 0);
    const uint64_t stores = check::times(delay == 0 ? 4000 : 400);
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(t);
        for (uint64_t i = 0; i < stores; ++i) {  // threads own interleaved words: blocks are shared
          const uint64_t word = random() % (words / kThreads) * kThreads + t;
          if (data[word] != expected[word]) ++wrong;
          data[word] = expected[word] = random();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    CHECK_EQ(wrong.load(), 0);
    for (uint64_t word = 0; word < words; word += 1) {
      if (data[word] != expected[word]) ++wrong;
    }
    CHECK_EQ(wrong.load(), 0);
    CHECK_EQ(device.totals().unordered_faults, 0);  // raw counting
    device.free(data);
  }
}

TEST(touch_serves_ahead_and_counts_as_ordered) {
  EmulatedDevice device(16 * kMiB);
  unsigned char* data = device.managed(8 * kMiB);
  device.hooks.touch(device.ordinal, EmulatedDevice::as_pointer(data) + 100, 4 * kMiB, true);  // touches 3 blocks
  data[100] = 1;
  data[4 * kMiB + 99] = 2;
  CHECK_EQ(device.totals().model.fault_groups, 3);
  CHECK_EQ(device.totals().unordered_faults, 0);
  data[7 * kMiB] = 3;
  CHECK_EQ(device.totals().unordered_faults, 1);
  device.free(data);
}

TEST(read_mostly_duplicates_are_dropped_not_copied_and_collapse_on_a_store) {
  EmulatedDevice device(16 * kMiB);
  unsigned char* data = device.managed(4 * kMiB);
  unsigned char* other = device.managed(16 * kMiB);
  data[5] = 42;
  data[kBlock + 5] = 43;
  CHECK_EQ(device.prefetch(data, 4 * kMiB, true), CUDA_SUCCESS);
  CHECK_EQ(device.advise(data, 4 * kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY), CUDA_SUCCESS);
  CHECK_EQ(+data[5], 42);  // a copy now lies on each side
  CHECK_EQ(+data[kBlock + 5], 43);
  data[5] = 44;  // collapse
  CHECK_EQ(device.totals().model.collapses, 1);
  for (uint64_t i = 0; i < 16 * kMiB; i += kBlock) other[i] = 1;  // evicts both
  CHECK_EQ(device.totals().model.evictions_dropped, 1);
  CHECK_EQ(device.totals().model.evictions, 1);
  CHECK_EQ(+data[5], 44);
  CHECK_EQ(+data[kBlock + 5], 43);
  device.free(data);
  device.free(other);
}

TEST(accessed_by_maps_the_host_copy_and_moves_nothing) {
  EmulatedDevice device(16 * kMiB);
  unsigned char* data = device.managed(4 * kMiB);
  data[0] = 9;
  data[kBlock] = 10;
  CHECK_EQ(device.prefetch(data, 4 * kMiB, true), CUDA_SUCCESS);
  CHECK_EQ(device.advise(data, 4 * kMiB, CU_MEM_ADVISE_SET_ACCESSED_BY), CUDA_SUCCESS);
  const auto before = device.totals().model;
  CHECK_EQ(+data[0], 9);
  data[kBlock] = 11;
  const auto after = device.totals().model;
  CHECK_EQ(after.fault_groups, before.fault_groups);
  CHECK_EQ(after.bytes_h2d[1], before.bytes_h2d[1]);
  unsigned char value = 0;
  CHECK_EQ(device.driver.call.memcpy_dtoh_async(&value, EmulatedDevice::as_pointer(data + kBlock), 1, nullptr),
           CUDA_SUCCESS);
  CHECK_EQ(+value, 11);
  device.free(data);
}

TEST(copies_see_every_state_of_residency) {
  EmulatedDevice device(16 * kMiB);
  const uint64_t bytes = 24 * kMiB;
  unsigned char* data = device.managed(bytes);
  std::vector<unsigned char> source(bytes), back(bytes);
  std::mt19937 random(3);
  for (auto& byte : source) byte = static_cast<unsigned char>(random());
  const auto& call = device.driver.call;
  // Unaligned ends; the rest stays untouched and reads as zero.
  CHECK_EQ(call.memcpy_htod_async(EmulatedDevice::as_pointer(data) + 777, source.data() + 777, bytes - 2000, nullptr),
           CUDA_SUCCESS);
  CHECK_EQ(call.memcpy_dtoh_async(back.data(), EmulatedDevice::as_pointer(data), bytes, nullptr), CUDA_SUCCESS);
  for (uint64_t i = 0; i < 777; ++i) CHECK_EQ(+back[i], 0);
  CHECK(std::memcmp(back.data() + 777, source.data() + 777, bytes - 2000) == 0);
  CHECK(std::memcmp(data + 777, source.data() + 777, bytes - 2000) == 0);
  CHECK_EQ(call.memset_d8_async(EmulatedDevice::as_pointer(data), 7, bytes, nullptr), CUDA_SUCCESS);
  for (uint64_t i = 0; i < bytes; i += 1000) CHECK_EQ(+data[i], 7);
  device.free(data);
}

TEST(pinned_ranges_stay_and_the_kernel_may_use_them) {
  EmulatedDevice device(16 * kMiB);
  unsigned char* data = device.managed(8 * kMiB);
  unsigned char* other = device.managed(32 * kMiB);
  std::memset(data, 5, 8 * kMiB);
  CHECK(device.hooks.pin(device.ordinal, EmulatedDevice::as_pointer(data), 8 * kMiB));
  for (uint64_t i = 0; i < 32 * kMiB; i += 4096) other[i] = 1;
  std::FILE* file = std::tmpfile();
  CHECK_EQ(std::fwrite(data, 1, 8 * kMiB, file), 8 * kMiB);  // write(2) straight from the pages
  std::fclose(file);
  uint64_t on_device = 0, on_host = 0;
  device.hooks.residency(device.ordinal, EmulatedDevice::as_pointer(data), 8 * kMiB, &on_device, &on_host);
  CHECK_EQ(on_device, 4u);
  CHECK(!device.hooks.pin(device.ordinal, EmulatedDevice::as_pointer(other), 32 * kMiB));  // larger than what is left
  device.hooks.unpin(device.ordinal, EmulatedDevice::as_pointer(data), 8 * kMiB);
  for (uint64_t i = 0; i < 32 * kMiB; i += 4096) other[i] = 2;
  device.hooks.residency(device.ordinal, EmulatedDevice::as_pointer(data), 8 * kMiB, &on_device, &on_host);
  CHECK_EQ(on_device, 0u);
  device.free(data);
  device.free(other);
}

TEST(everything_pinned_leaves_remote_access) {
  EmulatedDevice device(16 * kMiB);
  unsigned char* pinned = device.managed(16 * kMiB);
  unsigned char* other = device.managed(4 * kMiB);
  CHECK(device.hooks.pin(device.ordinal, EmulatedDevice::as_pointer(pinned), 16 * kMiB));
  other[3] = 8;
  CHECK_EQ(+other[3], 8);
  CHECK_EQ(device.totals().model.remote_maps, 1);
  device.free(pinned);  // with its pins
  other[kBlock] = 1;
  device.free(other);
}

TEST(an_access_across_two_blocks_ends_however_little_is_left) {
  for (const uint64_t pinned_bytes : {10 * kMiB, 12 * kMiB, 14 * kMiB, 16 * kMiB}) {
    EmulatedDevice device(16 * kMiB);
    unsigned char* pinned = device.managed(pinned_bytes);
    unsigned char* data = device.managed(8 * kMiB);
    CHECK(device.hooks.pin(device.ordinal, EmulatedDevice::as_pointer(pinned), pinned_bytes));
    uint64_t word = 0x0102030405060708;
    for (int pass = 0; pass < 2; ++pass) {
      for (uint64_t edge = kBlock; edge < 8 * kMiB; edge += kBlock) {
        __builtin_memcpy(data + edge - 3, &word, sizeof(word));  // one store
        uint64_t back = 0;
        __builtin_memcpy(&back, data + edge - 3, sizeof(back));
        CHECK_EQ(back, word);
        ++word;
      }
    }
    device.hooks.unpin(device.ordinal, EmulatedDevice::as_pointer(pinned), pinned_bytes);
    CHECK_EQ(device.prefetch(data, 8 * kMiB, false), CUDA_SUCCESS);
    uint64_t on_device = 0, on_host = 0;
    device.hooks.residency(device.ordinal, EmulatedDevice::as_pointer(data), 8 * kMiB, &on_device, &on_host);
    CHECK_EQ(on_device, 4u);  // what was withheld came back
    device.free(pinned);
    device.free(data);
  }
}

TEST(plain_memory_takes_capacity_and_pushes_managed_blocks_out) {
  EmulatedDevice device(16 * kMiB);
  unsigned char* data = device.managed(16 * kMiB);
  std::memset(data, 3, 16 * kMiB);
  CUdeviceptr plain = 0;
  CHECK_EQ(device.driver.call.mem_alloc(&plain, 8 * kMiB), CUDA_SUCCESS);
  std::memset(reinterpret_cast<void*>(plain), 4, 8 * kMiB);
  CHECK_EQ(device.totals().model.evictions, 4);
  CUdeviceptr more = 0;
  CHECK_EQ(device.driver.call.mem_alloc(&more, 10 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  size_t free_bytes = 0, total = 0;
  CHECK_EQ(device.driver.call.mem_get_info(&free_bytes, &total), CUDA_SUCCESS);
  CHECK_EQ(total, 16 * kMiB);
  for (uint64_t i = 0; i < 16 * kMiB; ++i) CHECK_EQ(+data[i], 3);
  for (uint64_t i = 0; i < 8 * kMiB; i += 512) CHECK_EQ(+reinterpret_cast<unsigned char*>(plain)[i], 4);
  device.free(reinterpret_cast<void*>(plain));
  CHECK_EQ(device.driver.call.mem_alloc(&more, 16 * kMiB), CUDA_SUCCESS);
  device.free(reinterpret_cast<void*>(more));
  device.free(data);
}

TEST(discarded_blocks_leave_first_and_without_a_copy) {
  EmulatedDevice device(16 * kMiB);
  unsigned char* data = device.managed(16 * kMiB);
  unsigned char* other = device.managed(kBlock);
  std::memset(data, 1, 16 * kMiB);
  CUstream stream{};
  CHECK_EQ(device.driver.call.stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  CUdeviceptr dead = EmulatedDevice::as_pointer(data) + 5 * kBlock;
  size_t bytes = kBlock;
  CHECK_EQ(device.driver.call.mem_discard_batch_async(&dead, &bytes, 1, 0, nullptr),
           CUDA_ERROR_INVALID_VALUE);  // legacy stream
  CHECK_EQ(device.driver.call.mem_discard_batch_async(&dead, &bytes, 1, 0, stream), CUDA_SUCCESS);
  CHECK_EQ(device.driver.call.stream_synchronize(stream), CUDA_SUCCESS);
  other[0] = 1;
  CHECK_EQ(device.totals().model.evictions, 0);
  CHECK_EQ(device.totals().model.evictions_dropped, 1);
  for (int block = 0; block < 8; ++block) {
    if (block != 5) CHECK_EQ(+data[block * kBlock], 1);
  }
  CHECK_EQ(device.driver.call.stream_destroy(stream), CUDA_SUCCESS);
  device.free(data);
  device.free(other);
}

TEST(events_add_up_to_the_counters) {
  EmulatedDevice device(16 * kMiB);
  device.hooks.set_context(device.ordinal, 99);
  unsigned char* data = device.managed(48 * kMiB);
  for (int pass = 0; pass < 2; ++pass) {
    for (uint64_t i = 0; i < 48 * kMiB; i += kBlock) data[i] = 1;
  }
  int64_t faults = 0, h2d = 0, d2h = 0, evictions = 0, first = 0, resident = 0, resident_peak = 0;
  for (const auto& event : device.events()) {
    CHECK_EQ(event.context, 99u);
    CHECK(event.duration_ns >= 0);
    if (event.change != um::driver::ResidencyChange::none) {
      resident += event.change == um::driver::ResidencyChange::arrived ? 1 : -1;
      resident_peak = std::max(resident_peak, resident);
      continue;
    }
    faults += event.kind == UM_EVENT_FAULT_GROUP;
    first += event.kind == UM_EVENT_FAULT_GROUP && event.first_touch;
    evictions += event.kind == UM_EVENT_EVICTION;
    if (event.kind == UM_EVENT_TRANSFER_H2D) h2d += static_cast<int64_t>(event.bytes);
    if (event.kind == UM_EVENT_TRANSFER_D2H) d2h += static_cast<int64_t>(event.bytes);
  }
  const auto totals = device.totals().model;
  CHECK_EQ(faults, totals.fault_groups);
  CHECK_EQ(first, totals.first_touches);
  CHECK_EQ(evictions, totals.evictions + totals.evictions_dropped);
  CHECK_EQ(h2d, totals.bytes_h2d[1]);
  CHECK_EQ(d2h, totals.bytes_d2h[3]);
  CHECK_EQ(resident, 8);
  CHECK_EQ(resident_peak, 8);
  CHECK_EQ(device.hooks.dropped(device.ordinal), 0u);
  device.free(data);
}

TEST(bad_arguments_are_refused) {
  EmulatedDevice device(16 * kMiB);
  const auto& call = device.driver.call;
  CUdeviceptr address = 0;
  CHECK_EQ(call.mem_alloc_managed(&address, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(call.mem_alloc_managed(&address, 1, 77), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(call.mem_alloc_managed(&address, 512 * kMiB, CU_MEM_ATTACH_GLOBAL),
           CUDA_ERROR_OUT_OF_MEMORY);  // host tier: 256
  CHECK_EQ(call.mem_free(12345), CUDA_ERROR_INVALID_CONTEXT);
  unsigned char* data = device.managed(4 * kMiB);
  CHECK_EQ(call.mem_free(EmulatedDevice::as_pointer(data) + kBlock), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(device.prefetch(data, 6 * kMiB, true), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(device.advise(data, 0, CU_MEM_ADVISE_SET_READ_MOSTLY), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(device.advise(data, ~uint64_t{0}, CU_MEM_ADVISE_SET_READ_MOSTLY), CUDA_ERROR_INVALID_VALUE);
  const CUmemLocation elsewhere{CU_MEM_LOCATION_TYPE_DEVICE, device.ordinal + 1};
  CHECK_EQ(call.mem_prefetch_async(EmulatedDevice::as_pointer(data), 1, elsewhere, 0, nullptr),
           CUDA_ERROR_INVALID_DEVICE);
  device.free(data);
}

TEST(an_injected_failure_happens_once_at_the_nth_call) {
  EmulatedDevice device(16 * kMiB);
  CHECK(!device.hooks.fail(device.ordinal, "cuNoSuchThing", 1));
  CHECK(device.hooks.fail(device.ordinal, "cuMemAllocManaged", 2));
  CUdeviceptr first = 0, second = 0;
  const auto& call = device.driver.call;
  CHECK_EQ(call.mem_alloc_managed(&first, 1, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  CHECK_EQ(call.mem_alloc_managed(&second, 1, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQ(call.mem_alloc_managed(&second, 1, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  CHECK_EQ(device.hooks.calls(device.ordinal, "cuMemAllocManaged"), 3u);
  device.free(reinterpret_cast<void*>(first));
  device.free(reinterpret_cast<void*>(second));
}

TEST(both_ways_of_mapping_show_the_same_bytes) {
  using um::emulated::Mapper;
  for (const auto method : {Mapper::best(), Mapper::Method::populate}) {
    um::emulated::Tier tier("test", 4);
    const Mapper mapper(method);
    EmulatedDevice device(16 * kMiB);  // for its reserved range: a free block's address
    const uint64_t address = um::emulated::range_end() - kBlock;
    const uint32_t slot = tier.take();
    tier.populate(slot);
    std::memset(tier.alias(slot), 17, kBlock);
    CHECK(mapper.show(tier, slot, address, false));
    CHECK_EQ(+reinterpret_cast<unsigned char*>(address)[4097], 17);
    CHECK(mapper.protect(address, Mapper::Access::write));
    reinterpret_cast<unsigned char*>(address)[9] = 18;
    CHECK(mapper.hide(tier, slot, address));
    CHECK_EQ(+tier.alias(slot)[9], 18);
    tier.alias(slot)[9] = 19;
    CHECK(mapper.show(tier, slot, address, true));
    CHECK_EQ(+reinterpret_cast<unsigned char*>(address)[9], 19);
    CHECK(mapper.hide(tier, slot, address));
  }
}
