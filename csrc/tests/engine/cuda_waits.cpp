// Each wait of the engine on a CUDA driver, for kernels and copies: without it the test that is named for what it
// protects fails every time (docs/waits.md).
#include <atomic>

#include "latest_fixture.h"

using test::kChunk;
using test::kChunked;
using test::LatestMoment;
using test::Moving;
using test::read;
using test::Stream;
using test::write;

namespace {

uint64_t calls(const char* function) { return emulated_libcuda_hooks()->calls(0, function); }

}  // namespace

// ---- whoever had a chunk before -----------------------------------------------------------------------------------

TEST(kernels_keep_the_chunks_of_a_freed_block) {
  LatestMoment device(1);
  Stream side;
  Moving block = device.made(1);
  device.kernels_are_late();
  device.fill(side, block, kChunk, 5);
  device.free(block);
  device.give_back();
  CHECK_EQ(device.memory().reserved_bytes, uint64_t{0});
  device.check_kernels();
}

TEST(kernels_keep_chunks_that_are_beyond_the_budget) {
  LatestMoment device(2);
  Stream side;
  Moving block = device.routed(kChunk);  // both stay
  Moving other = device.routed(kChunk);
  device.kernels_are_late();
  unsigned char* const at = block;
  device.launch(side, [=] { std::memset(at, 5, kChunk); });
  CHECK_OK(um_stream_uses(block, side));
  device.set(1, 0);
  device.free(block);
  device.check_kernels();
  device.fill(nullptr, other, kChunk, 1);
  device.check_kernels();
}

TEST(kernels_keep_the_chunks_of_a_freed_block_without_any_event) {
  LatestMoment device(1);
  Stream side;
  Moving block = device.made(1);
  device.kernels_are_late();
  device.fill(side, block, kChunk, 5);
  emulated_libcuda_fails("cuEventRecord", um::driver::CUDA_ERROR_UNKNOWN, 1, 1);
  device.free(block);
  device.give_back();
  device.check_kernels();
}

TEST(a_copy_keeps_the_chunks_of_a_freed_block_without_any_event) {
  LatestMoment device(1);
  Moving block = device.away(3);
  device.copies_are_late();
  device.to_device(block);
  emulated_libcuda_fails("cuEventRecord", um::driver::CUDA_ERROR_UNKNOWN, 1, 1);
  device.free(block);
  device.give_back();
  device.check_kernels();
}

TEST(a_block_that_is_freed_while_it_arrives_keeps_its_chunks) {
  LatestMoment device(1);
  Moving block = device.away(3);
  device.copies_are_late();
  device.to_device(block);
  device.free(block);
  device.give_back();
  device.check_kernels();
}

TEST(a_block_that_is_freed_while_it_leaves_keeps_its_chunks) {
  LatestMoment device(1);
  Moving block = device.made(3);
  device.copies_are_late();
  device.to_host(block);
  device.free(block);
  device.give_back();
  device.check_kernels();
}

TEST(so_does_one_that_leaves_before_it_has_come) {
  LatestMoment device(1);
  Moving block = device.away(3);
  device.copies_are_late();
  device.to_device(block);
  device.to_host(block);
  device.free(block);
  device.give_back();
  device.check_kernels();
}

TEST(what_arrives_in_a_freed_place_comes_after_its_last_user) {
  LatestMoment device(1);
  Stream side;
  Moving next = device.away(3);
  Moving block = device.made(1);
  device.kernels_are_late();
  device.fill(side, block, kChunk, 5);
  unsigned char* const at = block;
  device.free(block);
  device.to_device(next);
  CHECK(next == at);
  device.expect(nullptr, next, kChunk, 3);
  device.check_kernels();
}

TEST(kernels_keep_the_chunk_of_small_blocks_that_were_freed) {
  for (const bool marked : {true, false}) {
    LatestMoment device(1);
    Stream side;
    Moving small = device.allocate(1000, kChunked);
    device.kernels_are_late();
    device.fill(side, small, 1000, 5);
    if (!marked) emulated_libcuda_fails("cuEventRecord", um::driver::CUDA_ERROR_UNKNOWN, 1, 1);
    device.free(small);
    device.give_back();
    CHECK_EQ(device.memory().reserved_bytes, uint64_t{0});
    device.check_kernels();
  }
}

// ---- arrivals and departures --------------------------------------------------------------------------------------

TEST(an_op_runs_after_its_data_have_come) {
  LatestMoment device(1);
  Moving block = device.away(3);
  device.copies_are_late();
  device.expect(nullptr, block, kChunk, 3);
  device.check_kernels();
}

TEST(so_does_one_in_a_second_stream) {
  LatestMoment device(1);
  Stream side;
  Moving block = device.away(3);
  device.copies_are_late();
  device.expect(nullptr, block, kChunk, 3);
  device.expect(side, block, kChunk, 3);
  device.check_kernels();
}

TEST(a_block_comes_back_after_the_host_has_got_it) {
  LatestMoment device(2);
  Stream side;
  Moving block = device.made(1);
  Moving spare = device.made(2);
  device.kernels_are_late();
  device.fill(side, block, kChunk, 5);
  device.to_host(block);
  Moving other = device.routed(kChunk, kChunked, side);  // where it was
  device.free(spare);
  device.expect(nullptr, block, kChunk, 5);  // there
  device.check_kernels();
}

TEST(what_leaves_is_copied_after_kernels_have_written_it) {
  LatestMoment device(1);
  Stream side;
  Moving block = device.made(1);
  device.kernels_are_late();
  device.fill(side, block, kChunk, 5);
  device.to_host(block);
  device.synchronize();
  device.take_chunks();
  device.expect(nullptr, block, kChunk, 5);
  device.check_kernels();
}

TEST(chunks_are_free_when_the_copy_to_the_host_has_ended) {
  LatestMoment device(1);
  Moving block = device.made(3);
  device.copies_are_late();
  device.to_host(block);
  device.take_chunks();
  device.expect(nullptr, block, kChunk, 3);
  device.check_kernels();
}

TEST(a_block_leaves_after_it_has_come) {
  LatestMoment device(1);
  Moving block = device.away(3);
  device.copies_are_late();
  device.to_device(block);
  device.to_host(block);
  device.expect_taken(device.take_chunks());
  device.expect(nullptr, block, kChunk, 3);
  device.check_kernels();
}

TEST(room_is_made_of_what_has_come) {
  LatestMoment device(1);
  Moving block = device.away(3);
  device.copies_are_late();
  device.to_device(block);
  device.expect_taken(device.take_chunks());
  device.expect(nullptr, block, kChunk, 3);
  device.check_kernels();
}

TEST(who_needs_room_makes_the_host_wait_for_nothing) {
  LatestMoment device(1);
  Moving block = device.made(3);
  Moving other = device.reserved();
  device.copies_are_late();
  const auto waits = [] {
    return calls("cuEventSynchronize") + calls("cuStreamSynchronize") + calls("cuCtxSynchronize");
  };
  const uint64_t before = waits();
  for (int i = 0; i < 3; ++i) {
    device.fill(nullptr, other, kChunk, 7);
    device.expect(nullptr, block, kChunk, 3);
  }
  CHECK_EQ(waits(), before);
  device.expect(nullptr, other, kChunk, 7);
  device.check_kernels();
}

TEST(a_block_leaves_after_the_copy_of_its_cancelled_departure) {
  LatestMoment device(1);
  Moving block = device.made(3);
  device.copies_are_late();
  device.to_host(block);
  device.expect(nullptr, block, kChunk, 3);  // it stays
  CHECK_EQ(device.swaps().cancelled, int64_t{1});
  device.to_host(block);
  device.take_chunks();
  device.expect(nullptr, block, kChunk, 3);
  device.check_kernels();
}

TEST(a_block_that_was_written_to_is_freed_after_the_copy_of_its_cancelled_departure) {
  LatestMoment device(1);
  Moving block = device.made(3);
  device.copies_are_late();
  device.to_host(block);
  device.fill(nullptr, block, kChunk, 4);  // it stays
  device.free(block);
  device.give_back();
  device.check_kernels();
}

TEST(nothing_of_a_copy_that_failed_runs_later) {
  LatestMoment device(1);
  Moving block = device.away(3);
  device.copies_are_late();
  emulated_libcuda_fails("cuEventRecord", um::driver::CUDA_ERROR_UNKNOWN, 1, 1);  // when the copy has begun
  const um_access access = read(block, kChunk);
  CHECK_FAILS(UM_DRIVER_ERROR, um_op_begin(device, um_intern("op"), UM_PHASE_NONE, 0, 0, &access, 1));
  device.expect_taken(device.take_chunks());
  device.expect(nullptr, block, kChunk, 3);
  device.check_kernels();
}

// ---- what stays on the host ---------------------------------------------------------------------------------------

TEST(what_nobody_can_be_told_of_is_used_where_it_is_once_it_is_there) {
  LatestMoment device(1);
  Stream side;  // it knows nothing of whoever takes the chunk
  Moving block = device.made(3);
  device.expect(side, block, kChunk, 3);
  device.synchronize();
  device.copies_are_late();
  device.to_host(block);
  device.take_chunks();
  unsigned char* const at = block;
  block.storage()->address = nullptr;  // it shows something else
  device.expect(side, Moving(at), kChunk, 3);
  device.check_kernels();
  CHECK_EQ(device.swaps().swap_ins, int64_t{1});  // when it was made
  block.storage()->address = at;
}

// ---- streams ------------------------------------------------------------------------------------------------------

TEST(streams_that_memory_was_lent_to_keep_its_chunks) {
  for (const uint64_t bytes : {kChunk, kChunk / 4}) {  // its own chunk, and a shared one
    LatestMoment device(1);
    Stream side;
    Moving block = device.routed(bytes);
    device.fill(nullptr, block, bytes, 5);
    device.check_kernels();
    device.kernels_are_late();
    unsigned char* const at = block;
    device.launch(side, [=] { LatestMoment::wrong += !test::holds(at, 5, bytes); });  // no op
    CHECK_OK(um_stream_uses(block, side));
    device.free(block);
    device.give_back();
    device.check_kernels();
  }
}

TEST(a_stream_that_is_gone_keeps_the_chunks_it_works_on) {
  LatestMoment device(1);
  Stream gone;
  Moving block = device.made(1);
  device.kernels_are_late();
  device.fill(gone, block, kChunk, 5);
  gone.destroy();
  device.free(block);
  device.give_back();
  device.check_kernels();
}

TEST(a_stream_waits_for_one_that_is_gone) {
  LatestMoment device(1);
  Stream gone, side;
  std::atomic<bool> ran{false};
  device.kernels_are_late();
  const um::driver::CUstream awaited = gone;
  device.launch(awaited, [&ran] { ran = true; });
  gone.destroy();
  CHECK_OK(um_stream_wait(device, side, awaited));
  CHECK(ran);
}

TEST(a_busy_stream_that_is_forgotten_keeps_its_chunks) {
  LatestMoment device(2);
  Moving next = device.away(3);
  Moving block = device.made(1);
  Moving other = device.made(2);
  std::vector<std::unique_ptr<Stream>> streams;
  device.kernels_are_late();
  device.fill(nullptr, block, kChunk, 5);
  for (int i = 0; i < 63; ++i) {  // as many as can be followed
    streams.push_back(std::make_unique<Stream>());
    device.expect(*streams.back(), other, kChunk, 2);
  }
  Stream another;
  um_op_stream_set(another);
  device.op({read(other, kChunk)});
  device.free(block);
  device.to_device(next);  // where it was
  device.expect(another, next, kChunk, 3);
  device.check_kernels();
}

TEST(a_stream_that_comes_later_finds_small_memory_that_others_are_done_with) {
  LatestMoment device(1);
  Stream first, second;
  Moving block = device.made(1);
  device.kernels_are_late();
  device.fill(first, block, kChunk, 5);
  device.free(block);
  Moving small = device.allocate(1000, kChunked);  // in the same chunk
  const std::vector<unsigned char> bytes(1000, 3);
  um_op_stream_set(second);
  device.op({write(small, 1000)}, [&] {
    const test::Current current;
    unsigned char* const to = small;
    CHECK_EQ(test::driver().memcpy_htod_async(reinterpret_cast<uint64_t>(to), bytes.data(), 1000, second),
             um::driver::CUDA_SUCCESS);
  });
  device.expect(second, small, 1000, 3);
  device.check_kernels();
}
