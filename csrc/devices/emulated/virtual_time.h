// Virtual time on the emulated device: its copies take the time of a link by a clock that only the device moves, and
// its ops what they are told, and what the driver does for unified memory what a charged link does (link.h). A copy's
// bytes move when it is given, as all work that was given before has run by then; when it will have ended is known at
// once. So what the engine decides, and what it counts, repeats exactly.
#pragma once

#include <mutex>

#include "devices/simulated/queues.h"

namespace um::emulated {

class VirtualTime {
 public:
  explicit VirtualTime(const um_link& link) : clock_(link, um_pages_costs{}, 0) {}

  int64_t now_ns() const {
    const std::lock_guard<std::mutex> guard(lock_);
    return clock_.host_ns();
  }
  void wait_until(int64_t moment_ns) {
    const std::lock_guard<std::mutex> guard(lock_);
    clock_.host_waits(moment_ns);
  }
  void run_op(int64_t duration_ns);
  // What one of its driver's functions does; of any thread.
  template <class Work>
  driver::CUresult with_queues(const Work& work) {
    const std::lock_guard<std::mutex> guard(lock_);
    return work(queues_);
  }

 private:
  mutable std::mutex lock_;
  simulator::Clock clock_;
  simulator::Queues queues_{clock_, true};
};

}  // namespace um::emulated
