// Measures how long copies take, with pinned host memory and a stream for each direction, on the device's clock.
#include "base/error.h"
#include "engine/device.h"

namespace {

using namespace um::driver;  // NOLINT(google-build-using-namespace): the driver's types

// The resources of one direction, which are always given back.
class Lane {
 public:
  Lane(const um::Backend& backend, bool to_device, uint64_t bytes)
      : backend_(backend), call_(backend.call()), to_device_(to_device), bytes_(bytes) {}
  ~Lane() {
    if (!um::left_out(um::Wait::link_ended)) static_cast<void>(call_.ctx_synchronize());
    for (CUevent event : {end_, start_}) {
      if (event != nullptr) give_back([&] { return call_.event_destroy(event); });
    }
    if (stream_ != nullptr) give_back([&] { return call_.stream_destroy(stream_); });
    if (host_ != nullptr) give_back([&] { return call_.mem_free_host(host_); });
    if (device_ != 0) give_back([&] { return call_.mem_free(device_); });
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void open() {
    backend_.check(call_.mem_alloc(&device_, bytes_), "allocating device memory to copy");
    backend_.check(call_.mem_host_alloc(&host_, bytes_, 0), "allocating page-locked memory to copy");
    backend_.check(call_.stream_create(&stream_, CU_STREAM_NON_BLOCKING), "making a stream");
    backend_.check(call_.event_create(&start_, CU_EVENT_DEFAULT), "making an event");
    backend_.check(call_.event_create(&end_, CU_EVENT_DEFAULT), "making an event");
    copy();  // the first copy also maps page tables
    if (!um::left_out(um::Wait::link_warm)) backend_.check(call_.stream_synchronize(stream_), "copying");
  }
  void copy() const {
    backend_.check(to_device_ ? call_.memcpy_htod_async(device_, host_, bytes_, stream_)
                              : call_.memcpy_dtoh_async(host_, device_, bytes_, stream_),
                   "copying");
  }
  void begin() const { backend_.check(call_.event_record(start_, stream_), "recording an event"); }
  void end() const { backend_.check(call_.event_record(end_, stream_), "recording an event"); }
  int64_t elapsed_ns() const {
    float milliseconds = 0;
    if (!um::left_out(um::Wait::link_measured)) backend_.check(call_.event_synchronize(end_), "copying");
    backend_.check(call_.event_elapsed_time(&milliseconds, start_, end_), "measuring");
    return static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
  }

 private:
  // A failure may be transient, so this tries twice. A second failure could not be reported.
  template <class Call>
  static void give_back(const Call& call) {
    if (call() != CUDA_SUCCESS) static_cast<void>(call());
  }

  const um::Backend& backend_;
  const Table& call_;
  const bool to_device_;
  const uint64_t bytes_;
  CUdeviceptr device_ = 0;
  void* host_ = nullptr;
  CUstream stream_ = nullptr;
  CUevent start_ = nullptr, end_ = nullptr;
};

}  // namespace

void um_device::measure_link(uint64_t bytes, uint32_t copies, bool h2d, bool d2h, int64_t out_ns[2]) {
  if (bytes == 0 || copies == 0) throw um::Error(UM_INVALID_ARGUMENT, "nothing to copy");
  const um::RequiredContext current(backend);
  Lane to_device(backend, true, bytes), to_host(backend, false, bytes);
  const Lane* lanes[] = {h2d ? &to_device : nullptr, d2h ? &to_host : nullptr};
  if (h2d) to_device.open();
  if (d2h) to_host.open();
  const auto each = [&](const auto& what) {
    for (const Lane* lane : lanes) {
      if (lane != nullptr) what(*lane);
    }
  };
  each([](const Lane& lane) { lane.begin(); });
  for (uint32_t i = 0; i < copies; ++i) each([](const Lane& lane) { lane.copy(); });
  each([](const Lane& lane) { lane.end(); });
  for (int way : {0, 1}) out_ns[way] = lanes[way] == nullptr ? UM_UNKNOWN : lanes[way]->elapsed_ns() / copies;
}
