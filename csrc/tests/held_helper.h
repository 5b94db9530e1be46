// A helper that does nothing until it is let go.
#pragma once

#include <condition_variable>
#include <mutex>

#include "memory/helper.h"

namespace test {

class Latch {
 public:
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }
  void open() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      open_ = true;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

struct HeldHelper {
  HeldHelper() = default;
  ~HeldHelper() { let_go(); }
  HeldHelper(const HeldHelper&) = delete;
  HeldHelper& operator=(const HeldHelper&) = delete;
  void let_go() { latch.open(); }

  Latch latch;
  um::Helper helper{[this] { latch.wait(); }};
};

}  // namespace test
