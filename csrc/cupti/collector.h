// Collecting the records of unified memory for a while. CUPTI knows one client in a process, and so there is one
// collector: from start() to stop() it is that client, and in between it leaves no trace, so that torch.profiler works
// at other times. What other clients' buffers hold is never looked at.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cupti/records.h"

namespace um::cupti {

struct Collected {
  std::vector<Sample> samples;  // by time
  int64_t ignored = 0;          // see Batch
  std::string reason;           // why `samples` may lack some of what happened; empty: it is everything
};

class Collector {
 public:
  // The one. Never destroyed: CUPTI's threads may call back while the process ends.
  static Collector& of_process();

  // Empty when records are collected from now on, else why not, in words. The driver has been initialised.
  std::string start(int driver_version);
  // Ends it. Everything whose records are wanted has happened: the caller has waited for the device.
  Collected stop();

 private:
  // A moment by both clocks.
  struct Moment {
    bool known = false;
    int64_t cupti_ns = 0, monotonic_ns = 0;
  };
  static constexpr size_t kBufferBytes = size_t{1} << 20;
  static constexpr size_t kMostBuffers = 64;               // then CUPTI drops records, and says so
  static constexpr size_t kMostSamples = size_t{1} << 20;  // of one start: 48 MiB
  using Buffer = std::unique_ptr<uint64_t[]>;              // on 8 bytes, as CUPTI wants it

  Collector() = default;
  static void requested(uint8_t** buffer, size_t* bytes, size_t* most_records);
  static void completed(driver::CUcontext context, uint32_t stream, uint8_t* buffer, size_t bytes, size_t valid_bytes);
  uint8_t* lend() noexcept;
  Buffer take_back(const uint8_t* buffer) noexcept;
  void keep(const Batch& batch) noexcept;
  std::string begin();
  bool succeeded(CUptiResult result, const char* doing, std::string* reason) const;
  CUptiResult configure(bool on) const;
  Moment now() const;
  static void align(std::vector<Sample>* samples, const Moment& begin, const Moment& end);

  std::mutex mutex_;  // of start and stop; CUPTI is called under it
  bool running_ = false;
  CUpti_SubscriberHandle subscriber_ = nullptr;
  Moment begin_;

  std::mutex buffers_mutex_;          // of what the callbacks use; nothing is called under it
  const Library* library_ = nullptr;  // changes under both
  std::vector<Buffer> lent_;
  Collected collected_;
};

}  // namespace um::cupti
