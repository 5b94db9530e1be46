// Streams and events: a stream is a worker thread with a queue, an event the completion that was last recorded in it.
//
// The legacy default stream is the calling thread, because the device's kernels (torch's CPU ops) run there: work given
// to it is done before the call returns, after everything that the blocking streams had been given.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "devices/emulated/delays.h"

namespace um::emulated {

// When a stream came to where an event was recorded (CLOCK_MONOTONIC). Not valid: it never was, which counts as
// finished. Waiting needs no stream to be alive.
using Completion = std::shared_future<int64_t>;

inline bool finished(const Completion& completion) {
  return !completion.valid() || completion.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

class Stream {
 public:
  Stream(bool blocking, Delays& delays);
  ~Stream();  // finishes what was given
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void give(std::function<void()> work);
  void synchronize();
  bool idle();
  bool blocking() const { return blocking_; }

 private:
  void run();
  const bool blocking_;
  Delays& delays_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool busy_ = false, ending_ = false;
  std::thread worker_;
};

struct EventObject {
  bool timing;
  std::mutex lock;
  Completion latest;
  Completion last() {
    const std::lock_guard<std::mutex> guard(lock);
    return latest;
  }
};

}  // namespace um::emulated
