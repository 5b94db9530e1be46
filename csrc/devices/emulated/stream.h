// Streams and events: a stream is a worker thread with a queue, an event the completion that was last recorded in it.
//
// The legacy default stream is the calling thread, because the device's kernels (torch's CPU ops) run there: work given
// to it is done before the call returns, after everything that the blocking streams had been given.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "devices/emulated/delays.h"

namespace um::emulated {

// Something that will be finished once. Waiting needs no stream to be alive.
class Completion {
 public:
  void finish();
  void wait();
  bool finished();
  int64_t finished_ns();  // CLOCK_MONOTONIC; 0 before

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  int64_t at_ns_ = 0;
};

class Stream {
 public:
  Stream(bool blocking, Delays& delays);
  ~Stream();  // finishes what was given
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void give(std::function<void()> work);
  void synchronize();
  bool idle();
  // Work of the stream itself: until then it stands still.
  void wait_for(Completion& awaited);
  // Idle, or it stands still for what has not happened yet.
  bool at_rest();
  bool blocking() const { return blocking_; }

 private:
  void run();
  const bool blocking_;
  Delays& delays_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool busy_ = false, ending_ = false;
  Completion* awaited_ = nullptr;
  std::thread worker_;
};

struct EventObject {
  bool timing;
  std::mutex lock;
  std::shared_ptr<Completion> latest;  // null: never recorded, which counts as finished
  std::shared_ptr<Completion> last() {
    const std::lock_guard<std::mutex> guard(lock);
    return latest;
  }
};

}  // namespace um::emulated
