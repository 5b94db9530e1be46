// Copies and fills of memory that is mapped by hand: in streams, in both directions, over the charged link, and in the
// order of events alone.
#include <atomic>
#include <future>
#include <thread>

#include "devices/emulated/device.h"
#include "emulated_vmm.h"

using namespace um::driver;  // NOLINT
using test::EmulatedDevice;
using test::kBlock;
using test::kMiB;
using test::VirtualMemory;

namespace {

struct Stream {
  explicit Stream(const VirtualMemory& its_device) : device(its_device) {
    CHECK_EQ(device.driver.call.stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  ~Stream() { device.driver.call.stream_destroy(stream); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  void synchronize() const { CHECK_EQ(device.driver.call.stream_synchronize(stream), CUDA_SUCCESS); }
  // What the stream is given from now on waits until `opened`.
  void hold_until(std::shared_future<void> opened) const {
    um::emulated::Device* emulated = um::emulated::device_at(device.ordinal);
    CHECK(emulated->submit(reinterpret_cast<um::emulated::Stream*>(stream), [opened] { opened.wait(); }));
  }

  const VirtualMemory& device;
  CUstream stream{};
};

void* host_pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// Address space for `blocks` mappings of one block.
struct Range {
  Range(const VirtualMemory& its_device, uint64_t blocks)
      : device(its_device), bytes(blocks * kBlock), address(device.reserve(bytes)) {}
  ~Range() { device.free_reserved(address, bytes); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  CUdeviceptr at(uint64_t block) const { return address + block * kBlock; }
  void put(uint64_t block, VirtualMemory::Handle handle,
           CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) const {
    device.map(at(block), kBlock, handle);
    device.allow(at(block), kBlock, flags);
  }

  const VirtualMemory& device;
  const uint64_t bytes;
  const CUdeviceptr address;
};

}  // namespace

TEST(bytes_go_in_and_out_at_any_offset_and_over_mappings_edges) {
  VirtualMemory device(32 * kMiB);
  const auto& call = device.driver.call;
  const Range range(device, 4);
  std::vector<VirtualMemory::Handle> handles;
  for (uint64_t block = 0; block < 4; ++block) {
    handles.push_back(device.create(kBlock, block != 2));  // one on the host among them
    range.put(block, handles.back());
  }
  const Stream stream(device);
  const uint64_t offset = kBlock / 2 + 3, bytes = 3 * kBlock - 11;
  const auto in = test::pattern_of(bytes, 1);
  std::vector<unsigned char> out(bytes);
  CHECK_EQ(call.memset_d8_async(range.address, 0xAB, 4 * kBlock, stream.stream), CUDA_SUCCESS);
  CHECK_EQ(call.memcpy_htod_async(range.address + offset, in.data(), bytes, stream.stream), CUDA_SUCCESS);
  CHECK_EQ(call.memcpy_dtoh_async(out.data(), range.address + offset, bytes, stream.stream), CUDA_SUCCESS);
  stream.synchronize();
  CHECK(out == in);
  CHECK(test::reads(range.address + offset, bytes, 1));
  CHECK_EQ(+test::bytes_at(range.address)[offset - 1], 0xAB);
  CHECK_EQ(+test::bytes_at(range.address)[offset + bytes], 0xAB);
  for (uint64_t block = 0; block < 4; ++block) device.unmap(range.at(block), kBlock);
  for (const auto handle : handles) device.release(handle);
}

TEST(device_and_host_located_memory_exchange_bytes_by_their_addresses) {
  VirtualMemory device(32 * kMiB);
  const auto& call = device.driver.call;
  const Range range(device, 4);
  const auto chunk = device.create(kBlock), other = device.create(kBlock), host = device.create(kBlock, false);
  range.put(0, chunk);
  range.put(1, other);
  range.put(2, host);
  const Stream stream(device);
  test::write(range.at(0), kBlock, 1);
  CHECK_EQ(call.memcpy_dtoh_async(host_pointer(range.at(2)), range.at(0), kBlock, stream.stream), CUDA_SUCCESS);
  CHECK_EQ(call.memcpy_htod_async(range.at(1), host_pointer(range.at(2)), kBlock, stream.stream), CUDA_SUCCESS);
  stream.synchronize();
  CHECK(test::reads(range.at(2), kBlock, 1) && test::reads(range.at(1), kBlock, 1));
  // And with managed and plain memory.
  unsigned char* managed = device.managed(kBlock);
  CUdeviceptr plain = 0;
  CHECK_EQ(call.mem_alloc(&plain, kBlock), CUDA_SUCCESS);
  for (const CUdeviceptr theirs : {EmulatedDevice::as_pointer(managed), plain}) {
    test::write(theirs, kBlock, 5);
    CHECK_EQ(call.memcpy_htod_async(range.at(1), host_pointer(theirs), kBlock, stream.stream), CUDA_SUCCESS);
    CHECK_EQ(call.memcpy_htod_async(range.at(2), host_pointer(range.at(1)), kBlock, stream.stream), CUDA_SUCCESS);
    CHECK_EQ(call.memset_d8_async(theirs, 0, kBlock, stream.stream), CUDA_SUCCESS);
    CHECK_EQ(call.memcpy_dtoh_async(host_pointer(theirs), range.at(2), kBlock, stream.stream), CUDA_SUCCESS);
    stream.synchronize();
    CHECK(test::reads(theirs, kBlock, 5));
  }
  device.free(managed);
  device.free(host_pointer(plain));
  for (uint64_t block = 0; block < 3; ++block) device.unmap(range.at(block), kBlock);
  for (const auto handle : {chunk, other, host}) device.release(handle);
}

TEST(a_copy_writes_to_what_is_read_only_for_the_device) {
  VirtualMemory device(16 * kMiB);
  const auto& call = device.driver.call;
  const Range range(device, 1);
  const auto chunk = device.create(kBlock);
  range.put(0, chunk, CU_MEM_ACCESS_FLAGS_PROT_READ);
  const Stream stream(device);
  const auto in = test::pattern_of(kBlock, 1);
  CHECK_EQ(call.memcpy_htod_async(range.at(0), in.data(), kBlock, stream.stream), CUDA_SUCCESS);
  CHECK_EQ(call.memset_d8_async(range.at(0), 9, 1, stream.stream), CUDA_SUCCESS);
  stream.synchronize();
  CHECK_EQ(+*test::bytes_at(range.at(0)), 9);
  CHECK(std::equal(in.begin() + 1, in.end(), test::bytes_at(range.at(0)) + 1));
  CHECK_EQ(device.totals().silent_writes, 0);
  device.unmap(range.at(0), kBlock);
  // The same bytes are there where it is mapped next.
  range.put(0, chunk);
  CHECK(std::equal(in.begin() + 1, in.end(), test::bytes_at(range.at(0)) + 1));
  device.unmap(range.at(0), kBlock);
  device.release(chunk);
}

TEST(copies_of_what_is_not_there_are_refused) {
  VirtualMemory device(16 * kMiB);
  const auto& call = device.driver.call;
  const Range range(device, 3);
  const auto chunk = device.create(kBlock);
  std::vector<unsigned char> bytes(2 * kBlock);
  const auto in = [&](CUdeviceptr to, size_t size) { return call.memcpy_htod_async(to, bytes.data(), size, nullptr); };
  const auto out = [&](CUdeviceptr from, size_t size) {
    return call.memcpy_dtoh_async(bytes.data(), from, size, nullptr);
  };
  CHECK_EQ(in(range.at(0), 1), CUDA_ERROR_INVALID_VALUE);
  device.map(range.at(0), kBlock, chunk);
  CHECK_EQ(in(range.at(0), 1), CUDA_ERROR_INVALID_VALUE);  // no access
  device.allow(range.at(0), kBlock, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CHECK_EQ(in(range.at(0), kBlock), CUDA_SUCCESS);
  CHECK_EQ(in(range.at(0) + 1, kBlock), CUDA_ERROR_INVALID_VALUE);  // one byte too far
  CHECK_EQ(out(range.at(0), kBlock), CUDA_SUCCESS);
  CHECK_EQ(out(range.at(1), 1), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(out(range.address + range.bytes, 1), CUDA_ERROR_INVALID_VALUE);  // beyond the reservation
  CHECK_EQ(call.memset_d8_async(range.at(0), 1, kBlock + 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(call.memcpy_htod_async(range.at(0), host_pointer(range.at(1)), 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  device.unmap(range.at(0), kBlock);
  device.release(chunk);
}

// A swap as the engine does it, for many rounds under delays: the chunk that leaves one address arrives at another.
TEST(an_event_is_all_that_orders_a_swap) {
  VirtualMemory device(16 * kMiB, 400);
  const auto& call = device.driver.call;
  const Range range(device, 2);
  const Stream out(device), in(device);
  const auto chunk = device.create(kBlock);
  CUevent left{}, arrived{};
  for (CUevent* event : {&left, &arrived}) CHECK_EQ(call.event_create(event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  std::vector<unsigned char> host[2] = {test::pattern_of(kBlock, 0), test::pattern_of(kBlock, 1)};
  std::vector<unsigned char> reference[2] = {host[0], host[1]};
  range.put(0, chunk);
  CHECK_EQ(call.memcpy_htod_async(range.at(0), host[0].data(), kBlock, in.stream), CUDA_SUCCESS);
  in.synchronize();
  for (unsigned round = 0; round < 30; ++round) {
    const unsigned here = round % 2, there = 1 - here;
    for (uint64_t i = round; i < kBlock; i += 4099) reference[here][i] = test::bytes_at(range.at(here))[i] += 7;
    CHECK_EQ(call.memcpy_dtoh_async(host[here].data(), range.at(here), kBlock, out.stream), CUDA_SUCCESS);
    CHECK_EQ(call.event_record(left, out.stream), CUDA_SUCCESS);
    CHECK_EQ(call.event_synchronize(left), CUDA_SUCCESS);
    device.unmap(range.at(here), kBlock);
    range.put(there, chunk);
    CHECK_EQ(call.memcpy_htod_async(range.at(there), host[there].data(), kBlock, in.stream), CUDA_SUCCESS);
    CHECK_EQ(call.event_record(arrived, in.stream), CUDA_SUCCESS);
    CHECK_EQ(call.stream_wait_event(nullptr, arrived, 0), CUDA_SUCCESS);  // the compute stream is this thread
    CHECK(std::equal(reference[there].begin(), reference[there].end(), test::bytes_at(range.at(there))));
    CHECK(host[here] == reference[here]);
  }
  device.unmap(range.at(0), kBlock);
  device.release(chunk);
  for (const CUevent event : {left, arrived}) CHECK_EQ(call.event_destroy(event), CUDA_SUCCESS);
}

// Each thread moves a chunk of its own between two addresses and the host while others do the same, make and release
// handles, and fault managed memory in.
TEST(threads_swap_and_fault_beside_each_other) {
  VirtualMemory device(16 * kMiB, 100, UM_COUNTING_RAW);
  const auto& call = device.driver.call;
  CUcontext context{};
  CHECK_EQ(call.ctx_get_current(&context), CUDA_SUCCESS);
  const uint64_t managed_bytes = 16 * kMiB;
  unsigned char* managed = device.managed(managed_bytes);
  for (uint64_t i = 0; i < managed_bytes; i += 4096) managed[i] = 0;  // fills the device, so each chunk evicts
  std::atomic<int> wrong{0};
  const auto swap = [&](unsigned seed) {
    call.ctx_set_current(context);
    const Range range(device, 2);
    const Stream stream(device);
    std::vector<unsigned char> host = test::pattern_of(kBlock, seed);
    for (unsigned round = 0; round < 15; ++round) {
      const auto chunk = device.create(kBlock);
      range.put(round % 2, chunk);
      const CUdeviceptr at = range.at(round % 2);
      call.memcpy_htod_async(at, host.data(), kBlock, stream.stream);
      stream.synchronize();
      for (uint64_t i = round; i < kBlock; i += 4096) ++test::bytes_at(at)[i];
      call.memcpy_dtoh_async(host.data(), at, kBlock, stream.stream);
      stream.synchronize();
      device.unmap(at, kBlock);
      device.release(chunk);
    }
    for (uint64_t i = 0; i < kBlock; ++i)
      wrong += host[i] != static_cast<unsigned char>(test::pattern(i, seed) + (i % 4096 < 15));
  };
  const auto fault = [&] {
    for (unsigned round = 1; round <= 15; ++round) {
      for (uint64_t i = 0; i < managed_bytes; i += 4096) {
        wrong += managed[i] != round - 1;
        managed[i] = static_cast<unsigned char>(round);
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 3; ++seed) threads.emplace_back(swap, seed);
  threads.emplace_back(fault);
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
  CHECK(device.totals().model.evictions > 0);
  device.free(managed);
  CHECK_EQ(device.free_bytes(), 16 * kMiB);
}

TEST(unmapping_before_a_copy_ran_loses_the_device) {
  VirtualMemory device(16 * kMiB);
  const auto& call = device.driver.call;
  const auto address = device.reserve(kBlock);
  const auto chunk = device.create(kBlock);
  device.map(address, kBlock, chunk);
  device.allow(address, kBlock, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  std::vector<unsigned char> bytes(kBlock);
  std::promise<void> gate;
  const Stream stream(device);
  stream.hold_until(gate.get_future());
  CHECK_EQ(call.memcpy_dtoh_async(bytes.data(), address, kBlock, stream.stream), CUDA_SUCCESS);
  device.unmap(address, kBlock);
  gate.set_value();
  CHECK_EQ(call.stream_synchronize(stream.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  size_t free_bytes = 0, total = 0;
  CHECK_EQ(call.mem_get_info(&free_bytes, &total), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK_EQ(call.mem_map(address, kBlock, 0, chunk, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
}

// A copy that is at work finishes before what it uses goes; whatever it is about is never half of one mapping and half
// of the next.
TEST(a_copy_that_runs_is_waited_for) {
  VirtualMemory device(32 * kMiB);
  const auto& call = device.driver.call;
  const Range range(device, 1);
  const VirtualMemory::Handle chunks[2] = {device.create(kBlock), device.create(kBlock)};
  for (unsigned i = 0; i < 2; ++i) {
    range.put(0, chunks[i]);
    std::fill_n(test::bytes_at(range.at(0)), kBlock, static_cast<unsigned char>(i + 1));
    device.unmap(range.at(0), kBlock);
  }
  const Stream stream(device);
  std::vector<unsigned char> bytes(kBlock);
  for (unsigned round = 0; round < 200; ++round) {
    range.put(0, chunks[round % 2]);
    std::promise<void> running;
    const auto runs = running.get_future();
    um::emulated::Device* emulated = um::emulated::device_at(device.ordinal);
    CHECK(emulated->submit(reinterpret_cast<um::emulated::Stream*>(stream.stream), [&] {
      um::emulated::Loan loan;
      if (emulated->space.copies.lend(range.at(0), false, &loan) != um::emulated::Lending::lent) return;
      running.set_value();
      std::copy_n(loan.bytes, kBlock, bytes.begin());
      emulated->space.copies.end_loan(range.at(0));
    }));
    runs.wait();
    device.unmap(range.at(0), kBlock);
    const auto first = static_cast<unsigned char>(round % 2 + 1);
    CHECK(std::all_of(bytes.begin(), bytes.end(), [first](unsigned char byte) { return byte == first; }));
  }
  CHECK_EQ(call.stream_synchronize(stream.stream), CUDA_SUCCESS);
  for (const auto chunk : chunks) device.release(chunk);
}

TEST(the_charged_link_is_crossed_by_what_lies_on_one_side_only) {
  VirtualMemory device(32 * kMiB);
  const auto& call = device.driver.call;
  const Range range(device, 3);
  const auto chunk = device.create(kBlock), other = device.create(kBlock), host = device.create(kBlock, false);
  range.put(0, chunk);
  range.put(1, other);
  range.put(2, host);
  um_link link{};
  for (int direction = 0; direction < 2; ++direction) {
    link.fixed_ns[direction] = 1000;
    link.bytes_per_s[direction] = link.both_bytes_per_s[direction] = direction == 0 ? 2e9 : 1e9;
    link.engines[direction] = 1;
  }
  const um_driver_costs costs{};
  device.hooks.set_link(device.ordinal, &link, &costs);
  const int64_t in_ns = 1000 + kBlock / 2, out_ns = 1000 + kBlock;  // 2 and 1 bytes a nanosecond
  um_charged before{}, after{};
  const auto charges = [&](auto copies, int64_t in, int64_t out) {
    device.hooks.charged(device.ordinal, &before);
    const int64_t start = um::now_ns();
    CHECK_EQ(copies(), CUDA_SUCCESS);
    const int64_t took = um::now_ns() - start;
    device.hooks.charged(device.ordinal, &after);
    CHECK_EQ(after.copy_ns[0] - before.copy_ns[0], in);
    CHECK_EQ(after.copy_ns[1] - before.copy_ns[1], out);
    CHECK(took >= in + out);
  };
  std::vector<unsigned char> bytes(kBlock);
  charges([&] { return call.memcpy_htod_async(range.at(0), bytes.data(), kBlock, nullptr); }, in_ns, 0);
  charges([&] { return call.memcpy_dtoh_async(bytes.data(), range.at(0), kBlock, nullptr); }, 0, out_ns);
  charges([&] { return call.memcpy_htod_async(range.at(0), host_pointer(range.at(2)), kBlock, nullptr); }, in_ns, 0);
  charges([&] { return call.memcpy_dtoh_async(host_pointer(range.at(2)), range.at(0), kBlock, nullptr); }, 0, out_ns);
  charges([&] { return call.memcpy_htod_async(range.at(1), host_pointer(range.at(0)), kBlock, nullptr); }, 0, 0);
  charges([&] { return call.memcpy_htod_async(range.at(2), bytes.data(), kBlock, nullptr); }, 0, 0);
  // Over an edge it is one copy with one beginning.
  charges([&] { return call.memcpy_dtoh_async(bytes.data(), range.at(0) + kBlock / 2, kBlock, nullptr); }, 0, out_ns);
  charges([&] { return call.memset_d8_async(range.at(0), 1, kBlock, nullptr); }, 0, 0);
  for (uint64_t block = 0; block < 3; ++block) device.unmap(range.at(block), kBlock);
  for (const auto handle : {chunk, other, host}) device.release(handle);
}
