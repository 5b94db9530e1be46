#include "devices/emulated/stream.h"

#include <time.h>

#include <utility>

namespace um::emulated {

void Completion::finish() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const std::lock_guard<std::mutex> guard(lock_);
  at_ns_ = int64_t{1000000000} * now.tv_sec + now.tv_nsec;
  changed_.notify_all();
}

void Completion::wait() {
  std::unique_lock<std::mutex> guard(lock_);
  changed_.wait(guard, [this] { return at_ns_ != 0; });
}

bool Completion::finished() { return finished_ns() != 0; }

int64_t Completion::finished_ns() {
  const std::lock_guard<std::mutex> guard(lock_);
  return at_ns_;
}

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

void Stream::wait_for(Completion& awaited) {
  const auto note = [this](Completion* now) {
    const std::lock_guard<std::mutex> guard(lock_);
    awaited_ = now;
  };
  note(&awaited);
  awaited.wait();
  note(nullptr);
}

bool Stream::at_rest() {
  const std::lock_guard<std::mutex> guard(lock_);
  return awaited_ != nullptr ? !awaited_->finished() : queue_.empty() && !busy_;
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
