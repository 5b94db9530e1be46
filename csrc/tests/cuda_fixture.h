// A CUDA device of the core, behind whose driver library an emulated device works; and kernels that run when their
// stream comes to them, long after the call that launched them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "driver/device_hooks.h"
#include "driver/driver.h"
#include "engine/device.h"
#include "engine_fixture.h"
#include "fake_libcuda/emulated_libcuda.h"

namespace test {

inline constexpr uint64_t kChunk = 2 * kMiB;
inline constexpr um_placement kChunked{UM_MEMORY_CHUNKED, UM_ROLE_INTERMEDIATE, UM_ADVICE_NONE};

inline const um::driver::Table& driver() {
  const char* reason = nullptr;
  const um::driver::Driver* found = um::driver::libcuda(&reason);
  CHECK(found != nullptr);
  return found->call;
}

inline uint64_t pages_on_device(const void* address, uint64_t bytes) {
  uint64_t device = 0, host = 0;
  emulated_libcuda_hooks()->residency(0, reinterpret_cast<uint64_t>(address), bytes, &device, &host);
  return device;
}

// The device's context is current in this thread, as it is wherever torch launches something.
class Current {
 public:
  explicit Current(int ordinal = 0) {
    um::driver::CUcontext context = nullptr;
    CHECK_EQ(driver().ctx_get_current(&former_), um::driver::CUDA_SUCCESS);
    CHECK_EQ(driver().device_primary_ctx_retain(&context, ordinal), um::driver::CUDA_SUCCESS);
    CHECK_EQ(driver().ctx_set_current(context), um::driver::CUDA_SUCCESS);
  }
  ~Current() { driver().ctx_set_current(former_); }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  um::driver::CUcontext former_ = nullptr;
};

// A stream such as torch.cuda.Stream() makes.
class Stream {
 public:
  Stream() {
    const Current current;
    CHECK_EQ(driver().stream_create(&handle_, um::driver::CU_STREAM_NON_BLOCKING), um::driver::CUDA_SUCCESS);
  }
  ~Stream() { destroy(); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator um::driver::CUstream() const { return handle_; }
  void destroy() {
    const Current current;
    if (handle_ != nullptr) CHECK_EQ(driver().stream_destroy(handle_), um::driver::CUDA_SUCCESS);
    handle_ = nullptr;
  }

 private:
  um::driver::CUstream handle_ = nullptr;
};

inline um_device* opened_cuda(int ordinal = 0) {
  um_device* device = nullptr;
  CHECK_OK(um_device_open_cuda(ordinal, &device));
  return device;
}

struct Cuda : Device {
  explicit Cuda(um_device* opened = opened_cuda()) : Device(opened) { wrong = 0; }
  ~Cuda() {
    um_op_stream_set(nullptr);
    synchronize();
    emulated_libcuda_reset();
  }
  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;

  static um::driver::DeviceTotals totals() {
    um::driver::DeviceTotals out{};
    emulated_libcuda_hooks()->totals(0, &out);
    return out;
  }
  static void synchronize() {
    const Current current;
    CHECK_EQ(driver().ctx_synchronize(), um::driver::CUDA_SUCCESS);
  }
  um::Helper& helper() const { return *handle->backend.helper; }
  // What the device lacks of a feature, in words; empty: nothing.
  std::string why_not(const std::string& feature) const {
    const char* reason = nullptr;
    for (uint32_t i = 0; const char* name = um_device_feature(handle, i, &reason); ++i) {
      if (name == feature) return reason != nullptr ? reason : "";
    }
    CHECK(false);
    return {};
  }

  um_status set_chunks(uint64_t chunks, uint64_t host_bytes = 0) {
    const um_chunk_options options{chunks * kChunk, host_bytes, kChunk, 0, 0};
    return um_chunks_set(handle, &options);
  }
  um_swap_counters swaps() const {
    um_swap_counters out{};
    CHECK_OK(um_swap_read(handle, &out));
    return out;
  }
  // As torch asks, wherever it does.
  Moving routed(uint64_t bytes, const um_placement& placement = kChunked, void* stream = nullptr) {
    const um_route route{UM_ROUTE_ON, placement, handle, 0};
    um_route_set_thread(&route);
    void* address = nullptr;
    CHECK_OK(um_allocate_routed(bytes, stream, &address));
    const um_route off{};
    um_route_set_thread(&off);
    return keep(address);
  }

  // ---- kernels -------------------------------------------------------------------------------------------------

  static void launch(um::driver::CUstream stream, std::function<void()> kernel) {
    const Current current;
    auto* given = new std::function<void()>(std::move(kernel));
    const auto run = [](void* argument) {
      const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(argument));
      (*owned)();
    };
    CHECK_EQ(emulated_libcuda_launch(stream, run, given), unsigned{um::driver::CUDA_SUCCESS});
  }
  // An op whose kernel is launched in a stream, as the interposer brackets it.
  void op_in(um::driver::CUstream stream, const std::vector<um_access>& accesses, std::function<void()> kernel,
             const char* name = "op") {
    um_op_stream_set(stream);
    op(accesses, [&] { launch(stream, std::move(kernel)); }, name);
  }
  void fill(um::driver::CUstream stream, const Moving& block, uint64_t bytes, unsigned char value) {
    um_op_stream_set(stream);
    const auto kernel = [=](unsigned char* at) { launch(stream, [=] { std::memset(at, value, bytes); }); };
    op({write(block, bytes)}, [&] { kernel(block); }, "fill");
  }
  void expect(um::driver::CUstream stream, const Moving& block, uint64_t bytes, unsigned char value) {
    um_op_stream_set(stream);
    const auto kernel = [=](unsigned char* at) { launch(stream, [=] { wrong += !holds(at, value, bytes); }); };
    op({read(block, bytes)}, [&] { kernel(block); }, "expect");
  }
  // All kernels have run, and none found what it should not.
  void check_kernels() {
    helper().finish();
    synchronize();
    CHECK_EQ(wrong.load(), 0);
  }

  static inline std::atomic<int> wrong{0};
};

}  // namespace test
