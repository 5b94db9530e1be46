// Chunked memory on a CUDA driver: copies, kernels and the legacy stream run when their turn comes, and nothing but
// events orders them. A kernel that ran before its data came, or after its chunk went, finds wrong bytes or none.
#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "cuda_fixture.h"
#include "swap_fixture.h"

using test::Cuda;
using test::Current;
using test::kChunk;
using test::kChunked;
using test::kMiB;
using test::read;
using test::Stream;
using test::write;

namespace {

// 128 MiB, with delays of up to 100 us.
const bool slowed = [] {
  emulated_libcuda_devices(2, 128 * kMiB, 100);
  emulated_libcuda_seed(check::seed(5));
  return true;
}();

struct Swapping : Cuda {
  explicit Swapping(uint64_t chunks) {
    CHECK(slowed);
    emulated_libcuda_legacy_is_asynchronous(1);
    CHECK_OK(set_chunks(chunks));
  }
  test::Moving chunks(uint64_t count) { return allocate(count * kChunk, kChunked); }
};

bool says(const std::string& text) { return std::string(um_last_error()).find(text) != std::string::npos; }

}  // namespace

TEST(contents_survive_more_than_fits) {
  Swapping device(4);
  std::vector<test::Moving> blocks;
  for (int i = 0; i < 12; ++i) {
    blocks.push_back(device.chunks(1));
    device.fill(nullptr, blocks.back(), kChunk, static_cast<unsigned char>(i + 1));
  }
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < 12; ++i) device.expect(nullptr, blocks[i], kChunk, static_cast<unsigned char>(i + 1));
  }
  device.check_kernels();
  const um_swap_counters swaps = device.swaps();
  CHECK_EQ(swaps.swap_outs, 12);
  CHECK_EQ(swaps.swap_ins, 48);  // each was made on the host
  CHECK_EQ(swaps.silent_writes, 0);
  CHECK(swaps.used_peak_bytes <= 4 * kChunk);
}

// Values are known from the order of the launches alone: streams wait for each other as torch makes them.
TEST(any_ops_in_any_streams_see_what_was_written_last) {
  Swapping device(6);
  Stream one, two;
  const um::driver::CUstream streams[] = {nullptr, one, two, um::driver::legacy_stream()};
  std::mt19937 random(3);
  std::vector<std::pair<test::Moving, unsigned char>> blocks;
  um::driver::CUstream last = nullptr;
  for (int i = 0; i < 400; ++i) {
    const um::driver::CUstream stream = streams[random() % 4];
    CHECK_OK(um_stream_wait(device, stream, last));
    last = stream;
    const unsigned choice = random() % 8;
    if (choice == 0 && blocks.size() < 12) {
      test::Moving block = device.chunks(1 + random() % 2);
      blocks.emplace_back(block, static_cast<unsigned char>(i));
      device.fill(stream, block, kChunk, static_cast<unsigned char>(i));
    } else if (choice == 1 && blocks.size() > 2) {
      device.free(blocks.back().first);  // while it is worked on
      blocks.pop_back();
    } else if (!blocks.empty()) {
      auto& [block, value] = blocks[random() % blocks.size()];
      if (choice < 5) {
        device.expect(stream, block, kChunk, value);
      } else {
        device.fill(stream, block, kChunk, value = static_cast<unsigned char>(i));
      }
    }
  }
  device.check_kernels();
  CHECK(device.swaps().swap_ins > 20);
}

TEST(a_program_drives_a_step_of_asynchronous_kernels) {
  Swapping device(3);
  fixture::Trace trace;
  std::vector<uint32_t> names;
  std::vector<uint64_t> serials;
  std::vector<test::Moving> blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(device.chunks(1));
    device.fill(nullptr, blocks.back(), kChunk, static_cast<unsigned char>(i + 1));
    serials.push_back(test::Device::at(blocks.back()).serial);
    trace.allocate(kChunk);
  }
  for (int i = 0; i < 4; ++i) {
    trace.use(1000, {i});
    names.push_back(um_intern("expect"));
  }
  fixture::Plan plan(trace);
  plan.behind(0, UM_PLAN_SWAP_OUT, 0).behind(1, UM_PLAN_SWAP_IN, 3).behind(2, UM_PLAN_SWAP_OUT, 2);
  plan.behind(3, UM_PLAN_SWAP_IN, 0);
  const um_trace trace_columns = trace.columns();
  const um_plan plan_columns = plan.columns();
  CHECK_OK(fixture::follow(device, trace_columns, &plan_columns, names.data(), serials.data()));
  for (uint32_t step = 1; step <= 6; ++step) {
    CHECK_OK(um_step_set(device, step));
    for (size_t i = 0; i < 4; ++i) device.expect(nullptr, blocks[i], kChunk, static_cast<unsigned char>(i + 1));
    CHECK_OK(um_step_set(device, 0));
    if (step == 1) CHECK_EQ(device.swaps().laid_out, 0u);  // nobody knows yet what comes where
  }
  CHECK_EQ(device.swaps().laid_out, 1u);
  device.check_kernels();
  const um_swap_counters swaps = device.swaps();
  CHECK_EQ(swaps.program, uint32_t{UM_PROGRAM_WAITING});
  CHECK_EQ(swaps.programs_followed, uint64_t{6});
  CHECK(swaps.actions + swaps.redundant_actions + swaps.skipped_actions > 0);
}

// ---- who uses memory without an op ---------------------------------------------------------------------------------

TEST(what_torch_asks_for_outside_of_ops_is_there_at_once_and_stays) {
  Swapping device(4);
  test::Moving workspace = device.routed(2 * kChunk);
  device.launch(nullptr, [=] { std::memset(workspace, 9, 2 * kChunk); });  // announced by nobody
  for (int i = 0; i < 6; ++i) device.fill(nullptr, device.chunks(1), kChunk, 1);
  device.launch(nullptr, [=] { Cuda::wrong += !test::holds(workspace, 9, 2 * kChunk); });
  device.check_kernels();
  device.expect(nullptr, workspace, 2 * kChunk, 9);  // a tensor from here on: it may leave
  for (int i = 0; i < 6; ++i) device.fill(nullptr, device.chunks(1), kChunk, 1);
  CHECK(device.swaps().swap_outs > 0);
  device.expect(nullptr, workspace, 2 * kChunk, 9);
  device.check_kernels();
}

TEST(what_an_op_only_creates_is_there_at_once_and_stays_until_an_op_is_given_it) {
  Swapping device(4);
  test::Moving made = nullptr;
  device.op({}, [&] { made = device.chunks(2); }, "aten::empty", true);
  device.launch(nullptr, [=] { std::memset(made, 9, 2 * kChunk); });  // an extension's kernel
  for (int i = 0; i < 6; ++i) device.fill(nullptr, device.chunks(1), kChunk, 1);
  device.launch(nullptr, [=] { Cuda::wrong += !test::holds(made, 9, 2 * kChunk); });
  device.check_kernels();
  device.expect(nullptr, made, 2 * kChunk, 9);
  for (int i = 0; i < 6; ++i) device.fill(nullptr, device.chunks(1), kChunk, 1);
  const int64_t before = device.swaps().swap_ins;
  device.expect(nullptr, made, 2 * kChunk, 9);  // it left, with its bytes, once an op had been given it
  CHECK_EQ(device.swaps().swap_ins, before + 1);
  device.check_kernels();
}

TEST(what_finds_no_room_outside_of_ops_is_out_of_memory) {
  Swapping device(4);
  static_cast<void>(device.routed(3 * kChunk));
  const um_route route{UM_ROUTE_ON, kChunked, device.handle, 0};
  um_route_set_thread(&route);
  void* address = nullptr;
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_allocate_routed(2 * kChunk, nullptr, &address));
  const um_route off{};
  um_route_set_thread(&off);
  CHECK_EQ(device.memory().live_allocations, uint64_t{1});
}

TEST(memory_that_another_stream_still_uses_goes_to_nobody) {
  for (const uint64_t bytes : {2 * kChunk, kChunk / 4}) {  // its own chunks, and a shared one
    Swapping device(2);
    Stream side;
    test::Moving block = device.routed(bytes);
    device.fill(nullptr, block, bytes, 5);
    device.check_kernels();
    device.launch(side, [block, bytes] {  // not an op: a collective of another library's, which takes its time
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      Cuda::wrong += !test::holds(block, 5, bytes);
    });
    CHECK_OK(um_stream_uses(block, side));
    device.free(block);
    for (int i = 0; i < 3; ++i) device.fill(nullptr, device.chunks(2), 2 * kChunk, 7);
    device.check_kernels();
  }
}

TEST(an_exported_address_is_good_in_every_stream_until_it_is_given_back) {
  Swapping device(3);
  Stream side;
  test::Moving block = device.chunks(2);
  device.fill(nullptr, block, 2 * kChunk, 5);
  for (int i = 0; i < 4; ++i) device.fill(nullptr, device.chunks(1), kChunk, 1);  // it leaves
  CHECK_OK(um_export(block, nullptr));
  device.launch(side, [=] { Cuda::wrong += !test::holds(block, 5, 2 * kChunk); });
  for (int i = 0; i < 4; ++i) device.fill(nullptr, device.chunks(1), kChunk, 1);
  device.launch(side, [=] { std::memset(block, 6, 2 * kChunk); });
  device.check_kernels();
  CHECK_OK(um_export_release(block));
  device.fill(nullptr, device.chunks(3), 3 * kChunk, 1);
  device.expect(nullptr, block, 2 * kChunk, 6);
  device.check_kernels();
  CHECK_FAILS(UM_UNSUPPORTED, um_export(device.allocate(kChunk), nullptr));  // managed memory has none
}

TEST(a_lasting_export_gives_way_when_the_kernels_that_have_its_address_have_ended) {
  Swapping device(2);
  Stream side;
  test::Moving block = device.chunks(2);
  device.fill(nullptr, block, 2 * kChunk, 5);
  CHECK_OK(um_export_lasting(block));
  device.check_kernels();    // the side stream waits for no other
  device.launch(side, [=] {  // no op, in a stream that none was ever in
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    std::memset(block, 6, 2 * kChunk);
  });
  device.fill(nullptr, device.chunks(2), 2 * kChunk, 1);
  device.expect(nullptr, block, 2 * kChunk, 6);
  device.check_kernels();
  um_memory_history history{};
  CHECK_OK(um_memory_history_read(device, &history));
  CHECK_EQ(history.exports_ended, uint64_t{1});
}

TEST(an_address_is_unmapped_when_the_kernels_that_have_it_have_ended) {
  Swapping device(2);
  Stream side;
  test::Moving block = device.chunks(2);
  device.fill(nullptr, block, 2 * kChunk, 5);
  const void* shown = nullptr;
  CHECK_OK(um_address_shown(block, &shown));  // it is mapped when it is asked for again
  CHECK_OK(um_export_lasting(block));
  unsigned char* const address = block;
  CHECK(address == shown);
  device.fill(nullptr, device.chunks(2), 2 * kChunk, 1);  // it gives way
  device.expect(nullptr, block, 2 * kChunk, 5);           // and returns
  CHECK(block == address);
  device.check_kernels();
  device.launch(side, [=] {  // no op, in a stream that none was ever in
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    Cuda::wrong += !test::holds(address, 5, 2 * kChunk);
  });
  device.fill(nullptr, device.chunks(2), 2 * kChunk, 1);
  device.expect(nullptr, block, 2 * kChunk, 5);
  device.check_kernels();
}

TEST(host_copies_wait_for_kernels_of_every_stream) {
  Swapping device(3);
  Stream side;
  test::Moving chunked = device.chunks(1);
  test::Moving plain = device.allocate(kChunk, test::kPlain);
  std::vector<unsigned char> out(kChunk);
  for (const test::Moving& block : {chunked, plain}) {
    for (unsigned char value = 1; value < 4; ++value) {
      device.fill(side, block, kChunk, value);
      CHECK_OK(um_copy_to_host(out.data(), block, kChunk));
      CHECK(test::holds(out.data(), value, kChunk));
      device.fill(side, block, kChunk, 100);
      CHECK_OK(um_copy_from_host(block, out.data(), kChunk));
      device.expect(side, block, kChunk, value);
    }
  }
  device.check_kernels();
}

// ---- streams ------------------------------------------------------------------------------------------------------

TEST(a_stream_that_is_gone_is_waited_for_with_everything_else_and_forgotten) {
  Swapping device(2);
  std::vector<test::Moving> blocks;
  for (int i = 0; i < 70; ++i) {  // more than can be followed at once
    Stream gone;
    if (blocks.size() < 4) blocks.push_back(device.chunks(1));
    CHECK_OK(um_stream_wait(device, gone, nullptr));
    device.fill(gone, blocks[static_cast<size_t>(i) % 4], kChunk, static_cast<unsigned char>(i));
    CHECK_OK(um_stream_wait(device, nullptr, gone));
    gone.destroy();
    device.expect(nullptr, blocks[static_cast<size_t>(i) % 4], kChunk, static_cast<unsigned char>(i));
    if (i % 8 == 7) device.fill(nullptr, blocks[0], kChunk, 1);
  }
  device.check_kernels();
}

TEST(the_per_thread_stream_is_refused_in_words) {
  Swapping device(2);
  test::Moving block = device.chunks(1);
  um_op_stream_set(um::driver::per_thread_stream());
  const um_access access = write(block, kChunk);
  CHECK_FAILS(UM_UNSUPPORTED, um_op_begin(device, um_intern("op"), UM_PHASE_NONE, 0, 0, &access, 1));
  CHECK(says("per-thread default stream") && says("torch.cuda.Stream()"));
  um_op_stream_set(nullptr);
  device.fill(nullptr, block, kChunk, 1);
  device.check_kernels();
}

TEST(idle_streams_are_forgotten) {
  Swapping device(3);
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<test::Moving> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(device.chunks(1));
  for (int i = 0; i < 150; ++i) {
    streams.push_back(std::make_unique<Stream>());
    test::Moving block = blocks[static_cast<size_t>(i) % 4];
    device.fill(*streams.back(), block, kChunk, static_cast<unsigned char>(i));
    CHECK_OK(um_stream_wait(device, nullptr, *streams.back()));
    device.expect(nullptr, block, kChunk, static_cast<unsigned char>(i));
    if (i % 50 == 49) device.check_kernels();
  }
  device.check_kernels();
}

TEST(more_streams_than_can_be_followed_are_refused_in_words) {
  Swapping device(2);
  std::vector<std::unique_ptr<Stream>> streams;
  test::Moving block = device.chunks(1);
  for (int i = 0; i < 64; ++i) {
    streams.push_back(std::make_unique<Stream>());
    CHECK_OK(um_stream_uses(block, *streams.back()));  // what they are given is announced by nobody
  }
  Stream another;
  um_op_stream_set(another);
  const um_access access = write(block, kChunk);
  CHECK_FAILS(UM_UNSUPPORTED, um_op_begin(device, um_intern("op"), UM_PHASE_NONE, 0, 0, &access, 1));
  CHECK(says("lent") && says("more than 64 streams"));
  device.check_kernels();
}

// ---- threads and contexts -----------------------------------------------------------------------------------------

TEST(any_thread_may_work_with_any_context_current_and_finds_it_again) {
  Swapping device(3);
  const auto work = [&](const char* context) {
    std::vector<test::Moving> blocks;
    for (unsigned char i = 1; i < 6; ++i) {
      blocks.push_back(device.chunks(1));
      device.fill(nullptr, blocks.back(), kChunk, i);
    }
    for (unsigned char i = 1; i < 6; ++i) device.expect(nullptr, blocks[i - size_t{1}], kChunk, i);
    um_device_info info{};
    CHECK_OK(um_device_query(device, &info));
    for (const test::Moving& block : blocks) device.free(block);
    return context;
  };
  um::driver::CUcontext after{}, foreign{};
  std::thread without([&] {  // as autograd's threads are at first
    work("none");
    CHECK_EQ(test::driver().ctx_get_current(&after), um::driver::CUDA_SUCCESS);
  });
  without.join();
  CHECK(after == nullptr);
  std::thread other([&] {  // of a second device
    CHECK_EQ(test::driver().device_primary_ctx_retain(&foreign, 1), um::driver::CUDA_SUCCESS);
    CHECK_EQ(test::driver().ctx_set_current(foreign), um::driver::CUDA_SUCCESS);
    work("another device's");
    CHECK_EQ(test::driver().ctx_get_current(&after), um::driver::CUDA_SUCCESS);
  });
  other.join();
  CHECK(after == foreign);
  device.check_kernels();
}

// ---- failures -----------------------------------------------------------------------------------------------------

TEST(frees_and_the_end_survive_a_driver_that_has_shut_down) {
  const uint64_t before = Cuda::totals().device_bytes;
  {
    Swapping device(3);
    std::vector<test::Moving> blocks;
    for (unsigned char i = 1; i < 5; ++i) {
      blocks.push_back(device.chunks(1));
      device.fill(nullptr, blocks.back(), kChunk, i);
    }
    test::Moving managed = device.allocate(kChunk);
    device.synchronize();
    emulated_libcuda_fails(nullptr, um::driver::CUDA_ERROR_DEINITIALIZED, 1, ~uint64_t{0});
    device.free(managed);
    for (const test::Moving& block : blocks) device.free(block);
    um_device_info info{};
    CHECK_FAILS(UM_DRIVER_ERROR, um_device_query(device, &info));
    CHECK(says("CUDA_ERROR_DEINITIALIZED (4)"));
    emulated_libcuda_fails(nullptr, 0, 0, 0);
  }
  CHECK_EQ(Cuda::totals().device_bytes, before);
}

// Each call of the scenario fails once; what was there before holds its bytes all the same, and nothing is left.
TEST(every_call_may_fail_once) {
  const uint64_t before = Cuda::totals().device_bytes;
  bool whole = false;
  for (uint64_t nth = 1; !whole; nth += 1 + nth / 8) {
    {
      Swapping device(3);
      std::vector<test::Moving> blocks;
      for (unsigned char i = 1; i < 6; ++i) {
        blocks.push_back(device.chunks(1));
        device.fill(nullptr, blocks.back(), kChunk, i);
      }
      device.check_kernels();
      emulated_libcuda_fails(nullptr, um::driver::CUDA_ERROR_UNKNOWN, nth, nth);
      whole = true;
      for (unsigned char i = 1; i < 6; ++i) {
        const um_access access = read(blocks[i - size_t{1}], kChunk);
        if (um_op_begin(device, um_intern("op"), UM_PHASE_NONE, 0, 0, &access, 1) == UM_OK) {
          um_op_end(device, nullptr, 0);
        } else {
          whole = false;
          CHECK(um_last_error()[0] != '\0');
        }
      }
      if (um_stream_wait(device, nullptr, nullptr) != UM_OK) whole = false;
      emulated_libcuda_fails(nullptr, 0, 0, 0);
      for (unsigned char i = 1; i < 6; ++i) device.expect(nullptr, blocks[i - size_t{1}], kChunk, i);
      device.check_kernels();
    }
    CHECK_EQ(Cuda::totals().device_bytes, before);
    CHECK(nth < 2000);
  }
}
