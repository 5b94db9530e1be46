#include "devices/emulated/stream.h"

#include <utility>

namespace um::emulated {

Stream::Stream(bool blocking, Delays& delays) : blocking_(blocking), delays_(delays), worker_([this] { run(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    ending_ = true;
    changed_.notify_all();
  }
  worker_.join();
}

void Stream::give(std::function<void()> work) {
  const std::lock_guard<std::mutex> guard(lock_);
  queue_.push_back(std::move(work));
  changed_.notify_all();
}

void Stream::synchronize() {
  std::unique_lock<std::mutex> guard(lock_);
  changed_.wait(guard, [this] { return queue_.empty() && !busy_; });
}

bool Stream::idle() {
  const std::lock_guard<std::mutex> guard(lock_);
  return queue_.empty() && !busy_;
}

void Stream::run() {
  std::unique_lock<std::mutex> guard(lock_);
  for (;;) {
    changed_.wait(guard, [this] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    guard.unlock();
    delays_.wait();
    work();
    guard.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace um::emulated
