// The latest moment that the driver's contract allows: work of one kind runs only when the host waits in the driver for
// something that has not happened, and nothing else could go on. What nobody waits for has not been done by then,
// whatever the machine is busy with: a missing wait shows every time.
//
// And streams that are destroyed while they work: their handles are gone at once, their work goes on.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "driver/emulated/device.h"

namespace um::driver {

class Latest {
 public:
  enum Kind : unsigned { kernels = 1, copies = 2 };
  using Stream = emulated::Stream;

  void set(unsigned kinds) { kinds_ = kinds; }

  // Before work of that kind is given to the stream.
  void submit(emulated::Device* device, Stream* stream, Kind kind) {
    if ((kinds_ & kind) == 0 || stream == nullptr) return;
    const uint64_t number = ++submitted_;
    device->submit(stream, [this, stream, number] { hold(stream, number); });
  }

  // The host waits in `call` for what `happened` tells.
  template <class Call>
  auto wait(const std::function<bool()>& happened, const Call& call) {
    const auto mine = [&] {
      const std::lock_guard<std::mutex> guard(lock_);
      return awaited_.emplace(++waits_, happened).first;
    }();
    const auto result = call();
    const std::lock_guard<std::mutex> guard(lock_);
    awaited_.erase(mine);
    return result;
  }

  void created(Stream* stream) {
    const std::lock_guard<std::mutex> guard(lock_);
    streams_.insert(stream);
    gone_.erase(stream);
  }
  // False: it works still, so only its handle is gone.
  bool destroyed(Stream* stream) {
    const std::lock_guard<std::mutex> guard(lock_);
    if (!stream->idle()) {
      gone_.insert(stream);
      return false;
    }
    streams_.erase(stream);
    return true;
  }
  bool is_gone(Stream* stream) {
    const std::lock_guard<std::mutex> guard(lock_);
    return gone_.count(stream) != 0;
  }
  // With the lock held, as `happened` is asked.
  bool all_idle() const {
    return std::all_of(streams_.begin(), streams_.end(), [](Stream* each) { return each->idle(); });
  }

 private:
  void hold(Stream* stream, uint64_t number) {
    {
      const std::lock_guard<std::mutex> guard(lock_);
      held_[number] = stream;
    }
    while (kinds_ != 0 && !is_due(number)) std::this_thread::sleep_for(std::chrono::microseconds(50));
    const std::lock_guard<std::mutex> guard(lock_);
    held_.erase(number);
  }

  bool is_due(uint64_t number) {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto pending = [](const auto& awaited) { return !awaited.second(); };
    if (held_.begin()->first != number || std::none_of(awaited_.begin(), awaited_.end(), pending)) return false;
    return std::all_of(streams_.begin(), streams_.end(), [&](Stream* stream) {
      const auto is_it = [&](const auto& held) { return held.second == stream; };
      return std::any_of(held_.begin(), held_.end(), is_it) || stream->at_rest();
    });
  }

  std::atomic<unsigned> kinds_{0};
  std::atomic<uint64_t> submitted_{0};
  std::mutex lock_;
  std::set<Stream*> streams_, gone_;
  std::map<uint64_t, Stream*> held_;  // by number: what was given first goes first
  std::map<uint64_t, std::function<bool()>> awaited_;
  uint64_t waits_ = 0;
};

}  // namespace um::driver
