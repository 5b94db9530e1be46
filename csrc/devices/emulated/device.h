// One open emulated device, and the table of all of them by ordinal.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>

#include "devices/emulated/layout.h"
#include "devices/emulated/space.h"
#include "devices/emulated/stream.h"
#include "devices/emulated/virtual_time.h"
#include "driver/table.h"
#include "umadvise_waits.h"

namespace um::emulated {

// Counts calls by function and fails the one that a test asked for.
class CallLog {
 public:
  bool fails(driver::Function function);  // counts the call; true when it must fail
  uint64_t calls(const char* symbol);     // nullptr: of all functions
  bool arm(const char* symbol, uint64_t nth);

 private:
  std::mutex lock_;
  uint64_t counts_[driver::kFunctionCount] = {};
  const char* armed_symbol_ = nullptr;  // nullptr: any
  uint64_t remaining_ = 0;              // 0: disarmed
};

class Device {
 public:
  Device(int index, const um_emulated_options& options) : ordinal(index), space(index, options, Mapper::best()) {}
  ~Device() { streams.clear(); }

  // Runs `work` in `stream` (nullptr: the legacy stream, here and now). False: no such stream.
  bool submit(Stream* stream, std::function<void()> work);
  void wait_for_streams();
  void wait_for_blocking_streams();
  bool owns(Stream* stream);

  const int ordinal;
  // Work in a stream used an address where nothing is mapped: every call fails from then on, as on a GPU.
  std::atomic<bool> lost{false};
  CallLog log;
  Space space;
  std::unique_ptr<VirtualTime> time;  // nullptr: time is real
  std::mutex streams_lock;
  std::set<std::unique_ptr<Stream>, std::less<>> streams;
};

// Live devices; the fault handler reads the pointer without a lock.
Device* device_at(int ordinal);
um_status open_device(const um_emulated_options* options, int32_t* ordinal, char* message, uint64_t message_bytes);
void close_device(int32_t ordinal);

}  // namespace um::emulated
