// Each wait of the engine on a CUDA driver, for the host's memory, for what the host reads and writes, and for discards
// and measures: without it the test that is named for what it protects fails every time (docs/waits.md).
#include "latest_fixture.h"
#include "swap_fixture.h"

using test::kChunk;
using test::kPage;
using test::LatestMoment;
using test::Stream;

namespace {

constexpr uint64_t kAll = 128 * test::kMiB;  // of the device

uint64_t calls(const char* function) { return emulated_libcuda_hooks()->calls(0, function); }

void convert(um_device* device, um_memory memory) {
  const um_conversion wanted{static_cast<uint32_t>(memory), {}, {~0u, ~0u, ~0u}};
  um_converted out{};
  CHECK_OK(um_convert(device, &wanted, &out));
  CHECK_EQ(out.moved, uint64_t{1});
}

}  // namespace

// ---- host memory of copies ----------------------------------------------------------------------------------------

TEST(host_memory_of_a_freed_block_is_the_copys_until_that_has_ended) {
  LatestMoment device(2, 1);
  test::Moving block = device.made(3);
  device.copies_are_late();
  device.to_host(block);
  device.free(block);
  test::Moving next = device.reserved();
  device.write_in(next, 9);  // into the same memory, by the CPU
  device.expect(nullptr, next, kChunk, 9);
  device.check_kernels();
}

TEST(so_is_that_of_a_block_that_was_written_to_since) {
  LatestMoment device(2, 1);
  test::Moving block = device.made(3);
  device.copies_are_late();
  device.to_host(block);
  device.fill(nullptr, block, kChunk, 4);  // it stays, and the copy is of no use
  test::Moving next = device.reserved();
  device.write_in(next, 9);
  device.expect(nullptr, next, kChunk, 9);
  device.check_kernels();
}

TEST(so_is_that_of_a_block_that_arrived_from_there_for_earlier_kernels) {
  LatestMoment device(1, 2);
  test::Moving block = device.away(3);
  device.copies_are_late();
  device.expect(nullptr, block, kChunk, 3);
  test::Moving other = device.routed(kChunk);  // it has left without a copy
  device.free(block);
  for (int i = 0; i < 2; ++i) device.write_in(device.reserved(), 9);  // one of them where it was
  device.check_kernels();
  device.fill(nullptr, other, kChunk, 7);
}

TEST(a_block_leaves_into_host_memory_after_what_arrives_from_there) {
  LatestMoment device(2, 1);
  const Stream late;
  test::Moving coming = device.away(3);
  test::Moving former = device.made(1);
  test::Moving leaving = device.made(5);
  device.kernels_are_late();
  device.fill(late, former, kChunk, 9);
  unsigned char* const at = former;
  device.free(former);
  device.to_device(coming);
  CHECK(coming == at);                       // so it arrives after that kernel
  device.fill(late, coming, kChunk / 2, 4);  // nobody needs the host's memory of it any more
  device.to_host(leaving);
  CHECK(device.read_out(leaving) == device.bytes(5));
  device.expect(late, coming + kChunk / 2, kChunk / 2, 3);
  device.check_kernels();
}

TEST(a_smaller_host_budget_waits_for_copies) {
  LatestMoment device(2, 2);
  test::Moving block = device.made(3);
  device.copies_are_late();
  device.to_host(block);
  device.free(block);
  device.set(2, 1);
  device.check_kernels();
}

TEST(a_block_that_is_freed_beyond_the_host_budget_leaves_the_memory_to_its_copy) {
  LatestMoment device(2, 2);
  test::Moving block = device.made(3);
  device.copies_are_late();
  device.to_host(block);
  device.set(2, 1);  // it is in use
  device.free(block);
  device.check_kernels();
}

TEST(trimming_waits_for_copies) {
  LatestMoment device(2, 2);
  test::Moving block = device.made(3);
  device.copies_are_late();
  device.to_host(block);
  device.fill(nullptr, block, kChunk, 4);  // it stays, and the copy is of no use
  CHECK_OK(um_memory_trim(device));
  device.check_kernels();
}

// ---- the host reads and writes ------------------------------------------------------------------------------------

TEST(an_exported_address_has_its_bytes_for_every_stream) {
  LatestMoment device(1);
  Stream side;
  test::Moving block = device.away(3);
  device.copies_are_late();
  CHECK_OK(um_export(block, nullptr));
  unsigned char* const at = block;
  device.launch(side, [=] { LatestMoment::wrong += !test::holds(at, 3, kChunk); });
  device.check_kernels();
  CHECK_OK(um_export_release(block));
}

TEST(a_step_is_undone_once_its_contents_have_been_kept) {
  LatestMoment device(2, 1);
  test::Moving block = device.made(3);
  CHECK_OK(um_step_watch(block));
  CHECK_OK(um_step_set(device, 1));
  device.copies_are_late();
  device.fill(nullptr, block, kChunk, 4);
  uint64_t refused_at = 0;
  CHECK_OK(um_step_undo(device, &refused_at));
  CHECK_OK(um_step_set(device, 0));
  device.expect(nullptr, block, kChunk, 3);
  device.check_kernels();
}

TEST(to_read_or_write_a_block_that_leaves_keeps_it) {
  LatestMoment device(1);
  test::Moving block = device.made(3);
  device.copies_are_late();
  device.to_host(block);
  CHECK(device.read_out(block) == device.bytes(3));
  CHECK_EQ(device.swaps().cancelled, int64_t{1});
  device.fill(nullptr, block, kChunk, 4);
  device.to_host(block);
  device.write_in(block, 5);
  CHECK_EQ(device.swaps().cancelled, int64_t{2});
  device.expect(nullptr, block, kChunk, 5);
  device.check_kernels();
}

TEST(what_lies_on_the_host_is_read_once_it_is_whole) {
  LatestMoment device(1);
  test::Moving block = device.made(3);
  device.copies_are_late();
  device.to_host(block);
  device.take_chunks();
  CHECK(device.read_out(block) == device.bytes(3));
  device.check_kernels();
}

TEST(what_lies_on_the_host_is_written_once_it_has_come_to_earlier_kernels) {
  LatestMoment device(1);
  test::Moving block = device.away(3);
  device.copies_are_late();
  device.expect(nullptr, block, kChunk, 3);
  device.take_chunks();  // it has left without a copy
  device.write_in(block, 9);
  device.expect(nullptr, block, kChunk, 9);
  device.check_kernels();
}

TEST(what_ops_use_on_the_host_is_read_after_them) {
  LatestMoment device(1);
  Stream side;
  const test::Moving block(static_cast<unsigned char*>(device.reserved()));  // nobody can be told of another address
  device.kernels_are_late();
  device.fill(side, block, kChunk, 5);
  CHECK(device.read_out(block) == device.bytes(5));
  CHECK_EQ(device.swaps().swap_ins, int64_t{0});
}

TEST(the_host_writes_after_kernels_have_read) {
  LatestMoment device(1);
  Stream side;
  test::Moving block = device.made(1);
  device.kernels_are_late();
  device.expect(side, block, kChunk, 1);
  device.write_in(block, 9);
  device.check_kernels();
}

TEST(the_host_reads_after_kernels_have_written) {
  LatestMoment device(1);
  Stream side;
  test::Moving block = device.made(1);
  device.kernels_are_late();
  device.fill(side, block, kChunk, 5);
  CHECK(device.read_out(block) == device.bytes(5));
}

TEST(what_was_written_in_is_the_callers_again) {
  LatestMoment device(1);
  test::Moving block = device.made(1);
  device.copies_are_late();
  std::vector<unsigned char> given = device.bytes(9);
  CHECK_OK(um_copy_from_host(block, given.data(), kChunk));
  std::fill(given.begin(), given.end(), 0);
  device.expect(nullptr, block, kChunk, 9);
  device.check_kernels();
}

TEST(what_was_read_out_is_there) {
  LatestMoment device(1);
  test::Moving block = device.made(5);
  device.copies_are_late();
  CHECK(device.read_out(block) == device.bytes(5));
}

TEST(memory_changes_its_kind_when_kernels_have_written_to_it) {
  LatestMoment device(1);
  CHECK_OK(um_owners_remember(device, UM_OWNERS_CONVERTED_IN_OPS));
  test::Moving block = device.allocate(kChunk, test::kParameter);
  device.allocate(kChunk, test::kParameter);  // what the first one leaves does not go back to the driver
  const Stream side;
  device.fill(side, block, kChunk, 3);
  device.synchronize();
  device.kernels_are_late();
  device.fill(side, block, kChunk, 4);
  convert(device, UM_MEMORY_CHUNKED);
  device.expect(nullptr, block, kChunk, 4);
  device.check_kernels();
}

TEST(memory_that_has_changed_its_kind_is_nobody_elses_before_its_bytes_have_been_copied) {
  LatestMoment device(1);
  CHECK_OK(um_owners_remember(device, UM_OWNERS_CONVERTED_IN_OPS));
  test::Moving block = device.allocate(kChunk, test::kParameter);
  device.allocate(kChunk, test::kParameter);  // what the first one leaves does not go back to the driver
  device.fill(nullptr, block, kChunk, 3);
  device.synchronize();
  device.copies_are_late();
  convert(device, UM_MEMORY_CHUNKED);
  unsigned char* const at = block;
  CHECK(test::holds(at, 3, kChunk));  // on the host
}

// ---- discards -----------------------------------------------------------------------------------------------------

TEST(freed_memory_is_discarded_after_its_last_use_and_before_its_next) {
  for (const unsigned late : {1u, 2u}) {
    LatestMoment device(1);
    Stream side;
    CHECK_OK(um_discard_set(device, 1));
    test::Moving all = device.allocate(kAll);
    test::Moving block = device.allocate(4 * kPage);
    device.fill(nullptr, block, 4 * kPage, 5);
    device.synchronize();
    fixture::Trace trace;
    trace.allocate(4 * kPage);
    trace.use(1000, {0});
    fixture::Plan plan(trace);
    plan.behind(0, UM_PLAN_DISCARD, 0);
    const uint32_t name = um_intern("expect");
    const uint64_t serial = test::Device::at(block).serial;
    const um_trace columns = trace.columns();
    const um_plan rows = plan.columns();
    CHECK_OK(fixture::follow(device, columns, &rows, &name, &serial));
    CHECK_OK(um_step_set(device, 1));
    emulated_libcuda_latest(late);
    device.expect(nullptr, block, 4 * kPage, 5);
    const uint64_t before = calls("cuMemDiscardBatchAsync");
    device.free(block);
    CHECK_EQ(calls("cuMemDiscardBatchAsync"), before + 1);
    if (late == 1) CHECK_OK(um_prefetch(all, kAll, 0, side));  // what is discarded is lost now
    test::Moving next = device.allocate(4 * kPage);
    CHECK_EQ(static_cast<void*>(next), static_cast<void*>(block));
    device.fill(nullptr, next, 4 * kPage, 6);
    CHECK_OK(um_step_set(device, 0));
    device.check_kernels();
    CHECK_OK(um_prefetch(next, 4 * kPage, 1, nullptr));  // likewise
    device.expect(nullptr, next, 4 * kPage, 6);
    device.check_kernels();
  }
}

// ---- measures -----------------------------------------------------------------------------------------------------

TEST(both_directions_are_measured_when_their_first_copies_are_over) {
  LatestMoment device(1);
  int64_t times[2] = {};
  const uint64_t before = calls("cuStreamSynchronize");
  CHECK_OK(um_link_measure(device, kPage, 2, 1, 1, times));
  CHECK_EQ(calls("cuStreamSynchronize"), before + 2);
}

TEST(a_measurement_that_fails_waits_for_its_copies) {
  LatestMoment device(1);
  int64_t times[2] = {};
  device.copies_are_late();
  emulated_libcuda_fails("cuEventRecord", um::driver::CUDA_ERROR_UNKNOWN, 2, 2);  // after the copies
  CHECK_FAILS(UM_DRIVER_ERROR, um_link_measure(device, kPage, 2, 1, 0, times));
  device.check_kernels();
}
