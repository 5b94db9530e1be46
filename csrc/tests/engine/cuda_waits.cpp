// Each wait of the engine on a CUDA driver, for kernels and copies: without it the test that is named for what it
// protects fails every time (docs/waits.md).
#include <atomic>
#include <thread>

#include "latest_fixture.h"
#include "swap_fixture.h"

using test::kChunk;
using test::kChunked;
using test::LatestMoment;
using test::read;
using test::Stream;

// ---- whoever had a chunk before -----------------------------------------------------------------------------------

TEST(kernels_keep_the_chunks_of_a_freed_block) {
  LatestMoment device(1);
  Stream side;
  unsigned char* elsewhere = device.reserved();
  unsigned char* block = device.made(1);
  device.kernels_are_late();
  device.fill(side, block, kChunk, 5);
  device.free(block);
  device.take_chunks(elsewhere);
  device.check_kernels();
}

TEST(kernels_keep_the_chunks_of_a_freed_block_without_any_event) {
  LatestMoment device(1);
  Stream side;
  unsigned char* elsewhere = device.reserved();
  unsigned char* block = device.made(1);
  device.kernels_are_late();
  device.fill(side, block, kChunk, 5);
  emulated_libcuda_fails("cuEventRecord", um::driver::CUDA_ERROR_UNKNOWN, 1, 1);
  device.free(block);
  device.take_chunks(elsewhere);
  device.check_kernels();
}

TEST(a_copy_keeps_the_chunks_of_a_freed_block_without_any_event) {
  LatestMoment device(1);
  unsigned char* elsewhere = device.reserved();
  unsigned char* block = device.made(1);
  device.copies_are_late();
  device.to_host(block);
  emulated_libcuda_fails("cuEventRecord", um::driver::CUDA_ERROR_UNKNOWN, 1, 1);
  device.free(block);
  device.take_chunks(elsewhere);
  device.check_kernels();
}

TEST(a_block_that_is_freed_while_it_arrives_keeps_its_chunks) {
  LatestMoment device(1);
  unsigned char* elsewhere = device.reserved();
  unsigned char* block = device.away(3);
  device.copies_are_late();
  device.to_device(block);
  device.free(block);
  device.take_chunks(elsewhere);
  device.check_kernels();
}

TEST(a_block_that_is_freed_while_it_leaves_keeps_its_chunks) {
  LatestMoment device(1);
  unsigned char* elsewhere = device.reserved();
  unsigned char* block = device.made(3);
  device.copies_are_late();
  device.to_host(block);
  device.free(block);
  device.take_chunks(elsewhere);
  device.check_kernels();
}

TEST(what_arrives_in_a_freed_place_comes_after_its_last_user) {
  LatestMoment device(1);
  Stream side;
  unsigned char* block = device.made(1);
  device.kernels_are_late();
  device.fill(side, block, kChunk, 5);
  device.free(block);
  unsigned char* next = device.reserved();
  CHECK_EQ(static_cast<void*>(next), static_cast<void*>(block));
  device.write_in(next, 3);
  device.to_device(next);
  device.expect(nullptr, next, kChunk, 3);
  device.check_kernels();
}

TEST(kernels_keep_the_chunk_of_small_blocks_that_were_freed) {
  for (const bool marked : {true, false}) {
    LatestMoment device(1);
    Stream side;
    unsigned char* elsewhere = device.reserved();
    unsigned char* small = device.allocate(kChunk / 4, kChunked);
    device.kernels_are_late();
    device.fill(side, small, kChunk / 4, 5);
    if (!marked) emulated_libcuda_fails("cuEventRecord", um::driver::CUDA_ERROR_UNKNOWN, 1, 1);
    device.free(small);
    device.take_chunks(elsewhere);
    device.check_kernels();
  }
}

// ---- arrivals and departures --------------------------------------------------------------------------------------

TEST(an_op_runs_after_its_data_have_come) {
  LatestMoment device(1);
  unsigned char* block = device.away(3);
  device.copies_are_late();
  device.expect(nullptr, block, kChunk, 3);
  device.check_kernels();
}

TEST(so_does_one_in_a_second_stream) {
  LatestMoment device(1);
  Stream side;
  unsigned char* block = device.away(3);
  device.copies_are_late();
  device.expect(nullptr, block, kChunk, 3);
  device.expect(side, block, kChunk, 3);
  device.check_kernels();
}

TEST(what_leaves_is_copied_after_kernels_have_written_it) {
  LatestMoment device(1);
  Stream side;
  unsigned char* elsewhere = device.reserved();
  unsigned char* block = device.made(1);
  device.kernels_are_late();
  device.fill(side, block, kChunk, 5);
  device.to_host(block);
  device.synchronize();
  device.take_chunks(elsewhere);
  device.expect(nullptr, block, kChunk, 5);
  device.check_kernels();
}

TEST(chunks_are_free_when_the_copy_to_the_host_has_ended) {
  LatestMoment device(1);
  unsigned char* elsewhere = device.reserved();
  unsigned char* block = device.made(3);
  device.copies_are_late();
  device.to_host(block);
  device.take_chunks(elsewhere);
  device.expect(nullptr, block, kChunk, 3);
  device.check_kernels();
}

TEST(a_block_leaves_after_it_has_come) {
  LatestMoment device(1);
  unsigned char* elsewhere = device.reserved();
  unsigned char* block = device.away(3);
  device.copies_are_late();
  device.to_device(block);
  device.to_host(block);
  device.take_chunks(elsewhere);
  device.expect(nullptr, block, kChunk, 3);
  device.check_kernels();
}

TEST(room_is_made_of_what_has_come) {
  LatestMoment device(1);
  unsigned char* elsewhere = device.reserved();
  unsigned char* block = device.away(3);
  device.copies_are_late();
  device.to_device(block);
  device.take_chunks(elsewhere);
  device.expect(nullptr, block, kChunk, 3);
  device.check_kernels();
}

TEST(a_thread_that_needs_room_sleeps_until_a_departure_has_ended) {
  LatestMoment device(1);
  unsigned char* elsewhere = device.reserved();
  unsigned char* block = device.made(3);
  device.copies_are_late();
  device.to_host(block);
  constexpr uint64_t kOften = 1000;
  const auto asked = [] { return emulated_libcuda_hooks()->calls(0, "cuEventQuery"); };
  const uint64_t before = asked();
  std::atomic<bool> found{false};
  std::thread rescuer([&] {  // whoever does not sleep would ask for ever
    while (!found && asked() < before + kOften) std::this_thread::yield();
    emulated_libcuda_latest(0);
  });
  device.fill(nullptr, elsewhere, kChunk, 7);
  found = true;
  rescuer.join();
  CHECK(asked() < before + kOften);
}

TEST(what_a_plan_waits_for_has_left_before_the_next_op) {
  LatestMoment device(2);
  unsigned char* blocks[] = {device.made(1), device.made(2)};
  fixture::Trace trace;
  std::vector<uint32_t> names(2, um_intern("expect"));
  std::vector<uint64_t> serials;
  for (int i = 0; i < 2; ++i) {
    trace.allocate(kChunk);
    serials.push_back(test::Device::at(blocks[i]).serial);
  }
  for (int i = 0; i < 2; ++i) trace.use(1000, {i});
  fixture::Plan plan(trace);
  plan.behind(0, UM_PLAN_SWAP_OUT, 0).before(1, UM_PLAN_WAIT, 0);
  const um_trace columns = trace.columns();
  const um_plan rows = plan.columns();
  const um_program program{&columns, &rows, names.data(), serials.data()};
  CHECK_OK(um_program_set(device, &program));
  device.copies_are_late();
  CHECK_OK(um_step_set(device, 1));
  for (unsigned char i = 0; i < 2; ++i) device.expect(nullptr, blocks[i], kChunk, static_cast<unsigned char>(i + 1));
  CHECK_EQ(device.swaps().used_bytes, kChunk);
  CHECK_OK(um_step_set(device, 0));
  device.check_kernels();
}

TEST(a_block_leaves_after_the_copy_of_its_cancelled_departure) {
  LatestMoment device(1);
  unsigned char* elsewhere = device.reserved();
  unsigned char* block = device.made(3);
  device.copies_are_late();
  device.to_host(block);
  device.expect(nullptr, block, kChunk, 3);  // it stays
  CHECK_EQ(device.swaps().cancelled, int64_t{1});
  device.to_host(block);
  device.take_chunks(elsewhere);
  device.expect(nullptr, block, kChunk, 3);
  device.check_kernels();
}

TEST(a_block_that_was_written_to_is_freed_after_the_copy_of_its_cancelled_departure) {
  LatestMoment device(1);
  unsigned char* elsewhere = device.reserved();
  unsigned char* block = device.made(3);
  device.copies_are_late();
  device.to_host(block);
  device.fill(nullptr, block, kChunk, 4);  // it stays
  device.free(block);
  device.take_chunks(elsewhere);
  device.check_kernels();
}

TEST(nothing_of_a_copy_that_failed_runs_later) {
  LatestMoment device(2);
  unsigned char* elsewhere = device.reserved(2);
  unsigned char* block = device.away(3, 2);
  device.copies_are_late();
  emulated_libcuda_fails("cuMemcpyHtoDAsync", um::driver::CUDA_ERROR_UNKNOWN, 2, 2);
  const um_access access = read(block, 2 * kChunk);
  CHECK_FAILS(UM_DRIVER_ERROR, um_op_begin(device, um_intern("op"), UM_PHASE_NONE, 0, 0, &access, 1));
  device.take_chunks(elsewhere, 2);
  device.expect(nullptr, block, 2 * kChunk, 3);
  device.check_kernels();
}

// ---- streams ------------------------------------------------------------------------------------------------------

TEST(streams_that_memory_was_lent_to_keep_its_chunks) {
  for (const uint64_t bytes : {kChunk, kChunk / 4}) {  // its own chunk, and a shared one
    LatestMoment device(1);
    Stream side;
    unsigned char* elsewhere = device.reserved();
    unsigned char* block = device.routed(bytes);
    device.fill(nullptr, block, bytes, 5);
    device.check_kernels();
    device.kernels_are_late();
    device.launch(side, [=] { LatestMoment::wrong += !test::holds(block, 5, bytes); });  // no op
    CHECK_OK(um_stream_uses(block, side));
    device.free(block);
    device.take_chunks(elsewhere);
    device.check_kernels();
  }
}

TEST(a_stream_that_is_gone_keeps_the_chunks_it_works_on) {
  LatestMoment device(1);
  Stream gone;
  unsigned char* elsewhere = device.reserved();
  unsigned char* block = device.made(1);
  device.kernels_are_late();
  device.fill(gone, block, kChunk, 5);
  gone.destroy();
  device.free(block);
  device.take_chunks(elsewhere);
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

TEST(a_busy_stream_is_waited_for_before_it_is_forgotten) {
  LatestMoment device(2);
  unsigned char* elsewhere = device.reserved(2);
  unsigned char* block = device.made(1);
  unsigned char* other = device.made(2);
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
  device.free(other);
  device.take_chunks(elsewhere, 2);
  device.check_kernels();
}
