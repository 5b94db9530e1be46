// Chunked memory on an emulated device: real bytes in chunks that move, and counted driver calls.
#include <algorithm>

#include "chunked_fixture.h"
#include "memory/chunked_memory.h"
#include "memory/host_memory.h"

using test::data;
using test::fill;
using test::filled;
using test::kChunk;
using test::kChunked;
using test::kMiB;
using test::Rig;
using test::status_of;
using um::Block;
using um::ChunkedMemory;
using um::Fences;
using um::driver::CUstream;

// ---- options -------------------------------------------------------------------------------------------------

TEST(what_cannot_be_is_refused_with_a_reason) {
  Rig rig(4);
  const auto make = [&](um_chunk_options options) {
    return status_of([&] { ChunkedMemory made(rig.backend, options, *rig.fences); });
  };
  CHECK_EQ(make({8 * kMiB, 0, 3 * kMiB, 0, 0}), UM_INVALID_ARGUMENT);
  CHECK_EQ(make({8 * kMiB, 0, 1 * kMiB, 0, 0}), UM_INVALID_ARGUMENT);
  CHECK_EQ(make({2 * kMiB - 1, 0, 0, 0, 0}), UM_INVALID_ARGUMENT);
  CHECK_EQ(make({8 * kMiB, 1, 0, 0, 0}), UM_INVALID_ARGUMENT);
  CHECK_EQ(make({8 * kMiB, 0, 0, 0, 0}), UM_OK);
  CHECK_EQ(make({8 * kMiB, 0, 6 * kMiB, 1, 0}), UM_OK);
  CHECK_EQ(status_of([&] { rig.memory->set_budget(kChunk - 1); }), UM_INVALID_ARGUMENT);
  um::Backend simulated = um::Backend::open_simulated({64 * kMiB, 0, UM_COUNTING_ORDERED, 0, 0});
  CHECK_EQ(status_of([&] { ChunkedMemory made(simulated, {8 * kMiB, 0, 0, 0, 0}, *rig.fences); }), UM_UNSUPPORTED);
  simulated.close();
  um::Allocations without(nullptr, rig.backend);
  CHECK_EQ(status_of([&] { without.allocate(kChunk, kChunked, {}); }), UM_BAD_STATE);
}

TEST(blocks_above_half_a_chunk_have_chunks_of_their_own) {
  Rig rig(8);
  CHECK_EQ(rig.memory->chunks_of(*rig.allocate(kChunk / 2 + 1)), uint64_t{1});
  CHECK_EQ(rig.memory->chunks_of(*rig.allocate(3 * kChunk)), uint64_t{3});
  CHECK_EQ(rig.memory->chunks_of(*rig.allocate(3 * kChunk + 1)), uint64_t{4});
  CHECK_EQ(rig.memory->created(), uint64_t{0});
  CHECK_EQ(rig.allocations->statistics.reserved_bytes.now, uint64_t{0});  // addresses are not memory
  CHECK_EQ(rig.allocations->statistics.requested_bytes.now, kChunk / 2 + 1 + 3 * kChunk + 3 * kChunk + 1);
  rig.allocate(kChunk / 2);
  CHECK_EQ(rig.memory->created(), uint64_t{1});
  CHECK_EQ(rig.allocations->statistics.reserved_bytes.now, kChunk);
  CHECK_EQ(rig.allocations->plain_bytes(), kChunk);
  CHECK_EQ(rig.device_bytes(), kChunk);
}

TEST(all_blocks_have_chunks_of_their_own_where_small_ones_leave_too) {
  um_chunk_options options{};
  options.small = UM_SMALL_LEAVE;
  Rig rig(2, options);
  Block* block = rig.allocate(1);
  CHECK_EQ(rig.memory->chunks_of(*block), uint64_t{1});
  CHECK(rig.memory->back(*block, nullptr));
  CHECK_EQ(rig.memory->pinned().now, uint64_t{0});
  CHECK_EQ(rig.memory->large().now, uint64_t{1});
  rig.memory->strip(*block);
  CHECK_EQ(rig.memory->obtainable(), uint64_t{2});
}

// ---- chunks under blocks -------------------------------------------------------------------------------------

TEST(contents_survive_the_way_to_the_host_and_back_through_other_chunks) {
  Rig rig(3);
  Block* block = rig.allocate(2 * kChunk + 1000);
  CHECK(rig.memory->back(*block, nullptr));
  CHECK_EQ(rig.memory->backed(*block), uint64_t{3});
  fill(data(block), block->record.bytes, 5);
  um::HostRange* host = rig.memory->take_host(*block);
  rig.memory->copy_out(*block, host, rig.stream);
  rig.synchronize();
  rig.memory->strip(*block);
  CHECK_EQ(rig.memory->backed(*block), uint64_t{0});
  CHECK_EQ(rig.memory->obtainable(), uint64_t{3});
  Block* other = rig.backed(3);  // has those chunks now
  std::memset(data(other), 0xEE, 3 * kChunk);
  CHECK_EQ(rig.memory->created(), uint64_t{3});
  CHECK(!rig.memory->back(*block, nullptr));
  rig.memory->strip(*other);
  CHECK(rig.memory->back(*block, nullptr));
  rig.memory->copy_in(*block, host, rig.stream);
  rig.synchronize();
  CHECK(filled(data(block), block->record.bytes, 5));
  CHECK_EQ(data(block)[2 * kChunk + 1000], 0xEE);  // only what was asked for is copied
  rig.memory->give_host(host, 0);
}

TEST(equal_sizes_again_cost_no_driver_call) {
  Rig rig(4);
  rig.free(rig.backed(3));
  const uint64_t before = rig.calls();
  for (int i = 0; i < 10; ++i) rig.free(rig.backed(3));
  CHECK_EQ(rig.calls(), before);
}

TEST(a_block_that_grows_over_a_freed_neighbour_maps_only_what_is_missing) {
  Rig rig(8);
  Block* low = rig.backed(2);
  Block* middle = rig.backed(3);
  Block* high = rig.backed(1);
  CHECK_EQ(middle->address, low->end());
  rig.free(low);
  rig.memory->strip(*middle);
  CHECK_EQ(rig.memory->obtainable(), uint64_t{7});
  rig.free(middle);
  const uint64_t maps = rig.calls("cuMemMap"), creates = rig.calls("cuMemCreate");
  Block* large = rig.backed(5);
  CHECK_EQ(large->end(), high->address);
  CHECK_EQ(rig.calls("cuMemMap"), maps + 3);
  CHECK_EQ(rig.calls("cuMemCreate"), creates);
  std::memset(data(large), 1, large->bytes);
}

TEST(what_is_cached_under_a_block_is_not_taken_for_its_other_slots) {
  Rig rig(4);
  Block* low = rig.backed(2);
  rig.free(rig.backed(2));
  rig.memory->strip(*low);
  rig.free(low);
  const uint64_t maps = rig.calls("cuMemMap"), unmaps = rig.calls("cuMemUnmap");
  Block* all = rig.backed(4);
  CHECK_EQ(rig.calls("cuMemMap"), maps + 2);
  CHECK_EQ(rig.calls("cuMemUnmap"), unmaps);
  std::memset(data(all), 1, all->bytes);
}

TEST(no_chunk_is_created_once_as_many_as_are_needed_at_once_exist) {
  Rig rig(6);
  std::vector<Block*> blocks;
  for (int step = 0; step < 5; ++step) {
    for (const uint64_t chunks : {1, 3, 2}) blocks.push_back(rig.backed(chunks));
    std::rotate(blocks.begin(), blocks.begin() + step % 3, blocks.end());
    for (Block* block : blocks) rig.free(block);
    blocks.clear();
  }
  CHECK_EQ(rig.calls("cuMemCreate"), uint64_t{6});
  CHECK_EQ(rig.memory->created(), uint64_t{6});
}

TEST(read_only_memory_is_writable_for_the_next_one) {
  Rig rig(2);
  Block* block = rig.backed(2);
  fill(data(block), block->bytes, 9);
  rig.memory->show(*block, um::Access::read);
  CHECK(filled(data(block), block->bytes, 9));
  const uint64_t calls = rig.calls("cuMemSetAccess");
  rig.memory->show(*block, um::Access::read);
  CHECK_EQ(rig.calls("cuMemSetAccess"), calls);
  rig.free(block);
  Block* next = rig.backed(2);
  CHECK_EQ(rig.calls("cuMemSetAccess"), calls + 1);
  fill(data(next), next->bytes, 10);
  um::emulated::Totals totals{};
  rig.backend.hooks->totals(rig.backend.ordinal, &totals);
  CHECK_EQ(totals.silent_writes, 0);
}

// ---- fences --------------------------------------------------------------------------------------------------

TEST(a_fence_covers_all_its_streams_and_is_recycled) {
  Rig rig(1);
  Fences& fences = *rig.fences;
  CHECK_EQ(fences.record(nullptr, 0), Fences::Fence{0});
  CHECK(fences.passed(0, um::Wait::unnamed));
  const CUstream both[] = {rig.stream, nullptr};
  uint64_t created = 0;
  for (int i = 0; i < 20; ++i) {
    const Fences::Fence first = fences.record(both, 2);
    const Fences::Fence second = fences.record(both, 1);
    CHECK(first != second);
    fences.retain(first);
    fences.release(first);
    fences.order(nullptr, first, um::Wait::unnamed);
    fences.wait(second, um::Wait::unnamed);
    CHECK(fences.passed(second, um::Wait::unnamed));
    fences.release(first);
    fences.release(second);
    if (i == 0) created = rig.calls("cuEventCreate");
  }
  CHECK_EQ(rig.calls("cuEventCreate"), created);
  CHECK_EQ(fences.live(), uint64_t{0});
}

// Delays of the streams make a chunk that is taken too early show: the copy of its former contents is wrong then.
TEST(chunks_are_taken_only_after_the_last_use_of_their_former_owner) {
  Rig rig(2, {}, 3000);
  std::vector<um::HostRange*> copies;
  for (uint64_t i = 0; i < 12; ++i) {
    const bool in_place = i % 4 < 2;  // the next one too; else the chunks must move to another place
    Block* keeps_place = in_place ? nullptr : rig.allocate(2 * kChunk);
    Block* block = rig.backed(2);
    fill(data(block), block->bytes, i);
    copies.push_back(rig.memory->take_host(*block));
    rig.memory->copy_out(*block, copies.back(), rig.stream);
    const test::HeldFence fence(*rig.fences, rig.fences->record(&rig.stream, 1));
    rig.free(block, fence);
    if (keeps_place != nullptr) {
      CHECK(rig.memory->back(*keeps_place, nullptr));
      std::memset(data(keeps_place), 0xEE, keeps_place->bytes);
      rig.free(keeps_place);
    }
  }
  rig.synchronize();
  std::vector<unsigned char> contents(2 * kChunk);
  for (uint64_t i = 0; i < copies.size(); ++i) {
    rig.memory->read(copies[i], 0, contents.data(), contents.size());
    CHECK(filled(contents.data(), contents.size(), i));
    rig.memory->give_host(copies[i], 0);
  }
}

TEST(chunks_whose_last_use_is_over_are_preferred) {
  Rig rig(2, {}, 3000);
  Block* busy = rig.backed(1);
  Block* ready = rig.backed(1);
  Block* elsewhere = rig.allocate(kChunk);
  um::HostRange* host = rig.memory->take_host(*busy);
  for (int i = 0; i < 20; ++i) rig.memory->copy_out(*busy, host, rig.stream);
  const test::HeldFence fence(*rig.fences, rig.fences->record(&rig.stream, 1));
  rig.free(busy, fence);
  rig.free(ready);
  const uint64_t waits = rig.calls("cuEventSynchronize");
  CHECK(rig.memory->back(*elsewhere, nullptr));
  CHECK_EQ(rig.calls("cuEventSynchronize"), waits);
  rig.synchronize();
  rig.memory->give_host(host, 0);
}

TEST(the_first_user_of_a_place_runs_after_the_last_one_and_the_host_waits_for_nothing) {
  Rig rig(2, {}, 3000);
  Block* first = rig.backed(2);
  fill(data(first), first->bytes, 1);
  um::HostRange* out = rig.memory->take_host(*first);
  um::HostRange* in = rig.memory->take_host(*first);
  const std::vector<unsigned char> zeros(2 * kChunk);
  rig.memory->write(in, 0, zeros.data(), zeros.size());
  CUstream other = nullptr;
  CHECK_EQ(rig.backend.call().stream_create(&other, um::driver::CU_STREAM_NON_BLOCKING), um::driver::CUDA_SUCCESS);
  const uint64_t waits = rig.calls("cuEventSynchronize");
  for (int i = 0; i < 10; ++i) rig.memory->copy_out(*first, out, rig.stream);
  const test::HeldFence copied_out(*rig.fences, rig.fences->record(&rig.stream, 1));
  rig.free(first, copied_out);
  Block* second = rig.allocate(2 * kChunk);
  CHECK(rig.memory->back(*second, other));
  rig.memory->copy_in(*second, in, other);
  CHECK_EQ(rig.calls("cuEventSynchronize"), waits);
  const test::HeldFence copied_in(*rig.fences, rig.fences->record(&other, 1));
  rig.free(second, copied_in);
  rig.fences->wait(copied_in, um::Wait::unnamed);
  CHECK(rig.fences->passed(copied_out, um::Wait::unnamed));
  std::vector<unsigned char> contents(2 * kChunk);
  rig.memory->read(out, 0, contents.data(), contents.size());
  CHECK(filled(contents.data(), contents.size(), 1));
  rig.memory->give_host(out, 0);
  rig.memory->give_host(in, 0);
  CHECK_EQ(rig.backend.call().stream_destroy(other), um::driver::CUDA_SUCCESS);
}

TEST(a_block_that_was_never_used_still_remembers_who_used_its_chunks_before) {
  for (const bool freed : {true, false}) {
    Rig rig(2, {}, 3000);
    Block* first = rig.backed(2);
    fill(data(first), first->bytes, 1);
    um::HostRange* out = rig.memory->take_host(*first);
    for (int i = 0; i < 10; ++i) rig.memory->copy_out(*first, out, rig.stream);
    const test::HeldFence fence(*rig.fences, rig.fences->record(&rig.stream, 1));
    rig.free(first, fence);
    Block* second = rig.allocate(2 * kChunk);
    CHECK(rig.memory->back(*second, rig.stream));
    Block* elsewhere = rig.allocate(2 * kChunk);
    freed ? rig.free(second) : rig.memory->strip(*second);
    CHECK(rig.memory->back(*elsewhere, nullptr));
    CHECK(rig.fences->passed(fence, um::Wait::unnamed));
    rig.memory->give_host(out, 0);
  }
}

// ---- budgets -------------------------------------------------------------------------------------------------

TEST(a_smaller_budget_takes_chunks_as_they_become_free) {
  Rig rig(6);
  Block* first = rig.backed(3);
  Block* second = rig.backed(2);
  rig.free(rig.backed(1));
  rig.memory->set_budget(2 * kChunk);
  CHECK_EQ(rig.memory->created(), uint64_t{5});  // what was free went at once
  CHECK_EQ(rig.memory->surplus(), uint64_t{3});
  CHECK_EQ(rig.memory->obtainable(), uint64_t{0});
  rig.memory->strip(*first);
  CHECK_EQ(rig.memory->surplus(), uint64_t{0});
  CHECK_EQ(rig.device_bytes(), 2 * kChunk);
  CHECK(!rig.memory->back(*first, nullptr));
  rig.free(second);
  CHECK(!rig.memory->back(*first, nullptr));
  CHECK_EQ(rig.memory->obtainable(), uint64_t{2});
  rig.memory->set_budget(3 * kChunk + 100);
  CHECK_EQ(rig.memory->budget(), uint64_t{3});
  CHECK(rig.memory->back(*first, nullptr));
  CHECK_EQ(rig.device_bytes(), 3 * kChunk);
}

TEST(a_device_without_room_is_like_a_smaller_budget) {
  Rig rig(16);
  um::driver::CUdeviceptr plain = 0;
  CHECK_EQ(rig.backend.call().mem_alloc(&plain, 56 * kMiB), um::driver::CUDA_SUCCESS);
  Block* first = rig.backed(3);
  Block* second = rig.allocate(2 * kChunk);
  CHECK(!rig.memory->back(*second, nullptr));
  CHECK_EQ(rig.memory->obtainable(), uint64_t{1});
  rig.memory->strip(*first);
  CHECK(rig.memory->back(*second, nullptr));
  CHECK_EQ(rig.backend.call().mem_free(plain), um::driver::CUDA_SUCCESS);
  CHECK(rig.memory->back(*first, nullptr));  // it is asked again
  CHECK_EQ(rig.memory->obtainable(), uint64_t{11});
}

TEST(a_tenth_of_the_hosts_memory_stays_free_and_1_gib_at_least) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  CHECK_EQ(um::spare_host_bytes(100 * kGiB), 90 * kGiB);
  CHECK_EQ(um::spare_host_bytes(10 * kGiB), 9 * kGiB);
  CHECK_EQ(um::spare_host_bytes(5 * kGiB), 4 * kGiB);
  CHECK_EQ(um::spare_host_bytes(kGiB), uint64_t{0});
  CHECK_EQ(um::spare_host_bytes(0), uint64_t{0});
}

TEST(host_chunks_are_recycled_and_have_a_budget) {
  Rig rig(4, {0, 3 * kChunk, 0, 0, 0});
  Block* one = rig.allocate(kChunk);
  Block* two = rig.allocate(2 * kChunk);
  um::HostRange* of_two = rig.memory->take_host(*two);
  um::HostRange* of_one = rig.memory->take_host(*one);
  CHECK(of_two != nullptr && of_one != nullptr);
  CHECK(rig.memory->take_host(*one) == nullptr);
  CHECK_EQ(rig.memory->host_in_use().now, uint64_t{3});
  rig.memory->give_host(of_two, 0);
  const uint64_t calls = rig.calls();
  for (int i = 0; i < 5; ++i) rig.memory->give_host(rig.memory->take_host(*two), 0);
  CHECK_EQ(rig.calls(), calls);
  CHECK_EQ(rig.memory->host_pool(), uint64_t{3});
  rig.memory->set_host_budget(kChunk);
  CHECK_EQ(rig.memory->host_pool(), uint64_t{1});
  CHECK(rig.memory->take_host(*one) == nullptr);
  rig.memory->give_host(of_one, 0);
  CHECK_EQ(rig.memory->host_in_use().now, uint64_t{0});
  CHECK_EQ(rig.memory->host_in_use().peak, uint64_t{3});
}

TEST(host_contents_are_read_and_written_across_chunks) {
  Rig rig(4);
  Block* block = rig.allocate(3 * kChunk);
  um::HostRange* host = rig.memory->take_host(*block);
  std::vector<unsigned char> in(2 * kChunk), out(2 * kChunk);
  fill(in.data(), in.size(), 4);
  rig.memory->write(host, kChunk / 2 + 3, in.data(), in.size());
  rig.memory->read(host, kChunk / 2 + 3, out.data(), out.size());
  CHECK(in == out);
  CHECK(rig.memory->back(*block, nullptr));
  rig.memory->copy_in(*block, host, rig.stream);
  rig.synchronize();
  CHECK(std::memcmp(data(block) + kChunk / 2 + 3, in.data(), in.size()) == 0);
  rig.memory->give_host(host, 0);
}

TEST(mapped_host_memory_is_at_the_blocks_address_while_it_is_away) {
  Rig rig(3, {0, 0, 0, 1, 0});
  Block* block = rig.backed(2);
  fill(data(block), block->bytes, 6);
  um::HostRange* host = rig.memory->take_host(*block);
  rig.memory->copy_out(*block, host, rig.stream);
  rig.synchronize();
  rig.memory->strip(*block);
  rig.memory->map_host(*block, host);
  CHECK_EQ(rig.memory->backed(*block), uint64_t{0});
  CHECK(filled(data(block), block->bytes, 6));
  data(block)[kChunk + 5] = 77;
  unsigned char seen = 0;
  rig.memory->read(host, kChunk + 5, &seen, 1);
  CHECK_EQ(seen, 77);
  rig.memory->unmap_host(*block);
  CHECK(rig.memory->back(*block, nullptr));
  rig.memory->copy_in(*block, host, rig.stream);
  rig.synchronize();
  CHECK_EQ(data(block)[kChunk + 5], 77);
  rig.memory->strip(*block);
  rig.memory->map_host(*block, host);
  rig.memory->give_host(host, 0);
  rig.free(block);  // the mapping goes with it
  std::memset(data(rig.backed(3)), 1, 3 * kChunk);
}

// ---- small blocks --------------------------------------------------------------------------------------------

TEST(small_blocks_share_chunks_that_stay) {
  Rig rig(3);
  std::vector<Block*> small;
  for (uint64_t i = 0; i < 8; ++i) {
    small.push_back(rig.allocate(kChunk / 4));
    fill(data(small.back()), small.back()->record.bytes, i);
  }
  CHECK_EQ(rig.memory->pinned().now, uint64_t{2});
  CHECK_EQ(rig.memory->obtainable(), uint64_t{1});
  rig.backed(1);
  CHECK_EQ(status_of([&] { rig.allocate(512); }), UM_OUT_OF_DEVICE_MEMORY);
  CHECK_EQ(rig.memory->pinned().now, uint64_t{2});
  for (uint64_t i = 0; i < 8; ++i) CHECK(filled(data(small[i]), small[i]->record.bytes, i));
  CHECK_EQ(rig.allocations->statistics.by_role[UM_ROLE_INTERMEDIATE].now, 3 * kChunk);
}

TEST(an_empty_arena_of_small_blocks_gives_its_chunk_to_whoever_needs_it) {
  Rig rig(2);
  rig.free(rig.allocate(1000));
  CHECK_EQ(rig.memory->pinned().now, uint64_t{0});
  CHECK_EQ(rig.memory->obtainable(), uint64_t{2});
  const uint64_t calls = rig.calls("cuMemMap");
  rig.free(rig.allocate(1000));  // nobody needed it: the same arena again
  CHECK_EQ(rig.calls("cuMemMap"), calls);
  const uint64_t waits = rig.calls("cuCtxSynchronize");
  Block* large = rig.backed(2);
  CHECK_EQ(rig.calls("cuCtxSynchronize"), waits + 1);
  CHECK_EQ(status_of([&] { rig.allocate(1000); }), UM_OUT_OF_DEVICE_MEMORY);
  rig.memory->strip(*large);
  rig.memory->set_marker([&] { return rig.fences->record(&rig.stream, 1); });
  rig.free(rig.allocate(1000));
  CHECK(rig.memory->back(*large, nullptr));
  CHECK_EQ(rig.calls("cuCtxSynchronize"), waits + 1);
  rig.memory->strip(*large);
  CHECK_EQ(rig.fences->live(), uint64_t{0});
}

TEST(chunks_need_not_be_a_power_of_two) {
  Rig rig(4, {0, 0, 6 * kMiB, 0, 0});
  Block* small = rig.allocate(3 * kMiB);
  CHECK_EQ(small->address % um::kBlockBytes, uint64_t{0});
  CHECK_EQ(rig.memory->pinned().now, uint64_t{1});
  Block* low = rig.allocate(3 * kMiB + 1);
  Block* high = rig.allocate(12 * kMiB);
  CHECK_EQ(rig.memory->chunks_of(*low), uint64_t{1});
  CHECK_EQ(high->address, low->address + 6 * kMiB);
  CHECK(rig.memory->back(*low, nullptr) && rig.memory->back(*high, nullptr));
  for (const Block* block : {small, low, high}) fill(data(block), block->record.bytes, block->address);
  for (const Block* block : {small, low, high}) CHECK(filled(data(block), block->record.bytes, block->address));
}
