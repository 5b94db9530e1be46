#include "memory/helper.h"

#include <algorithm>

#include "memory/process.h"

namespace um {

Helper::Ticket Helper::ask(Job job) {
  std::unique_lock lock(mutex_);
  if (!beside() || ended_ || process::over()) {
    lock.unlock();
    job();
    return 0;
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  asked_.push_back({last_ + 1, std::move(job)});
  changed_.notify_all();
  return ++last_;
}

void Helper::run() {
  enter_();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ended_ || !asked_.empty(); });
    if (asked_.empty()) return;
    const Asked next = std::move(asked_.front());
    asked_.pop_front();
    running_ = next.ticket;
    lock.unlock();
    next.job();
    lock.lock();
    running_ = 0;
    changed_.notify_all();
  }
}

void Helper::finish(Ticket ticket) noexcept {
  if (ticket == 0 || process::forked()) return;
  std::unique_lock lock(mutex_);
  const auto found =
      std::find_if(asked_.begin(), asked_.end(), [&](const Asked& each) { return each.ticket == ticket; });
  if (found == asked_.end()) return changed_.wait(lock, [&] { return running_ != ticket; });
  const Job job = std::move(found->job);
  asked_.erase(found);
  lock.unlock();
  job();
}

void Helper::finish() noexcept {
  if (process::forked()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return asked_.empty() && running_ == 0; });
}

void Helper::end() noexcept {
  if (process::forked()) return thread_.joinable() ? thread_.detach() : void();  // the child has no such thread
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace um
