// The libcuda provider against a fake libcuda.so.1: this executable is linked to it, so that dlopen finds it by that
// name on every machine. What the real header says about the same functions is checked by cuda_conformance.cpp.
#include "driver/libcuda.h"

#include <thread>

#include "driver/errors.h"
#include "fake_libcuda/fake_libcuda.h"
#include "tests/check.h"

using namespace um::driver;

namespace {

constexpr char kFake[] = "libcuda.so.1";

std::string refusal(const FakeLibcuda& fake, const char* library = kFake) {
  fake_libcuda = fake;
  std::string reason;
  CHECK(load_libcuda(library, &reason) == nullptr);
  return reason;
}

std::unique_ptr<const Libcuda> loaded(const FakeLibcuda& fake) {
  fake_libcuda = fake;
  std::string reason;
  auto libcuda = load_libcuda(kFake, &reason);
  CHECK_EQ(reason, "");
  CHECK(libcuda != nullptr);
  return libcuda;
}

template <class... Parameters>
CUresult call_with_zeros(CUresult (*slot)(Parameters...)) {
  return slot(Parameters{}...);
}

// Every usable slot calls its own function in its own form; every other has a reason and returns an error.
// Returns how many are usable.
size_t check_slots(const Driver& driver) {
  size_t usable = 0;
#define CHECK_SLOT(name, symbol, version, ...)                                             \
  {                                                                                        \
    fake_libcuda.last_called = FakeLibcuda::kNothing;                                      \
    const bool present = driver.reason[static_cast<size_t>(Function::name)] == nullptr;    \
    const CUresult result = call_with_zeros(driver.call.name);                             \
    const int called = present ? static_cast<int>(Function::name) : FakeLibcuda::kNothing; \
    CHECK_EQ(std::string(#name " ") + std::to_string(fake_libcuda.last_called),            \
             std::string(#name " ") + std::to_string(called));                             \
    if (!present) CHECK_EQ(result, CUDA_ERROR_NOT_SUPPORTED);                              \
    usable += present;                                                                     \
  }
  UM_DRIVER_FUNCTIONS(CHECK_SLOT)
#undef CHECK_SLOT
  return usable;
}

std::string why_missing(const Driver& driver, Function function) {
  const char* const reason = driver.reason[static_cast<size_t>(function)];
  return reason != nullptr ? reason : "";
}

}  // namespace

TEST(cuda_13_has_every_function) {
  const auto libcuda = loaded({});
  CHECK_EQ(std::string(libcuda->driver.provider), "cuda");
  CHECK(libcuda->driver.hooks == nullptr);
  CHECK_EQ(check_slots(libcuda->driver), kFunctionCount);
}

TEST(a_newer_driver_gives_the_forms_we_ask_for) {
  FakeLibcuda fake;
  fake.version = 14010;
  CHECK_EQ(check_slots(loaded(fake)->driver), kFunctionCount);
}

TEST(calls_are_counted) {
  const auto libcuda = loaded({});
  const auto counted = [](const char* symbol) {
    for (const Calls& made : libcuda_calls()) {
      if (made.symbol == std::string(symbol)) return made;
    }
    return Calls{symbol, 0, 0};
  };
  const Calls before = counted("cuEventQuery");
  for (int i = 0; i < 3; ++i) static_cast<void>(libcuda->driver.call.event_query(nullptr));
  const Calls after = counted("cuEventQuery");
  CHECK_EQ(after.calls - before.calls, uint64_t{3});
  CHECK(after.ns > before.ns);
}

TEST(cuda_12_2_lacks_the_batch_calls_and_says_so) {
  FakeLibcuda fake;
  fake.version = 12020;
  const auto libcuda = loaded(fake);
  CHECK_EQ(check_slots(libcuda->driver), kFunctionCount - 2);
  CHECK_EQ(why_missing(libcuda->driver, Function::mem_discard_batch_async),
           "cuMemDiscardBatchAsync needs CUDA 13.0; this driver supports CUDA 12.2");
}

TEST(a_function_that_should_be_there_and_is_not) {
  FakeLibcuda fake;
  fake.version = 12040;
  fake.absent_symbol = "cuStreamQuery";
  const auto libcuda = loaded(fake);
  CHECK_EQ(check_slots(libcuda->driver), kFunctionCount - 3);
  CHECK_EQ(why_missing(libcuda->driver, Function::stream_query),
           "cuStreamQuery is not in this driver, which supports CUDA 12.4");
}

TEST(no_library) {
  const std::string reason = refusal({}, "libcuda-absent.so.1");
  CHECK_EQ(reason, "no NVIDIA driver: libcuda-absent.so.1: cannot open shared object file: No such file or directory");
}

TEST(too_old) {
  FakeLibcuda fake;
  fake.version = 12010;
  CHECK_EQ(refusal(fake), "the NVIDIA driver is too old: it supports CUDA 12.1; CUDA 12.2 or newer is needed");
  CHECK_EQ(fake_libcuda.init_calls, 0);
  CHECK_EQ(refusal({}, OLD_LIBCUDA), "the NVIDIA driver is too old: " OLD_LIBCUDA
                                     " has no cuGetProcAddress_v2 (CUDA 12.0); CUDA 12.2 or newer is needed");
}

TEST(no_version) {
  FakeLibcuda fake;
  fake.absent_symbol = "cuDriverGetVersion";
  CHECK_EQ(refusal(fake), "the NVIDIA driver does not tell its version");
}

TEST(init_fails) {
  FakeLibcuda fake;
  fake.init_result = CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
  CHECK_EQ(refusal(fake),
           "cuInit failed: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): libcuda and the kernel driver differ in version");
  fake.init_result = CUresult{102};  // a code that only the driver can name
  CHECK_EQ(refusal(fake), "cuInit failed: CUDA_ERROR_DEVICE_NOT_LICENSED (102)");
  fake.init_result = CUresult{12345};
  CHECK_EQ(refusal(fake), "cuInit failed: CUDA error (12345)");
  fake = {};
  fake.absent_symbol = "cuInit";
  CHECK_EQ(refusal(fake),
           "cuInit failed: CUDA_ERROR_NOT_SUPPORTED (801): not supported by this device, system or driver");
}

TEST(no_device) {
  FakeLibcuda fake;
  fake.device_count = 0;
  CHECK_EQ(refusal(fake), "the driver sees no device (is CUDA_VISIBLE_DEVICES empty?)");
  fake.absent_symbol = "cuDeviceGetCount";
  CHECK_EQ(refusal(fake),
           "cuDeviceGetCount failed: CUDA_ERROR_NOT_SUPPORTED (801): not supported by this device, system or driver");
}

TEST(the_process_initialises_it_once) {
  fake_libcuda = {};
  const Driver* seen[8] = {};
  std::thread threads[8];
  for (int i = 0; i < 8; ++i)
    threads[i] = std::thread([&seen, i] {
      const char* reason = nullptr;
      seen[i] = libcuda(&reason);
    });
  for (std::thread& thread : threads) thread.join();
  for (const Driver* driver : seen) CHECK(driver != nullptr && driver == seen[0]);
  CHECK_EQ(fake_libcuda.init_calls, 1);
}
