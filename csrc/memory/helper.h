// A thread beside those that launch kernels, for driver calls that may block: mapping memory, page-locking it, and
// prefetches of managed memory, which the driver carries out in the thread that asks where the stream is idle
// (open-gpu-kernel-modules, uvm_migrate.c). It begins with the first job. A device that computes in the calling thread
// has no such thread: its jobs are done at once.
//
// Thread-safe. Jobs take no lock that somebody may hold who waits for them, and tell by themselves when they fail.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace um {

class Helper {
 public:
  using Job = std::function<void()>;
  using Ticket = uint64_t;  // of a job: in the order in which they were asked for; 0: of none

  // Without a thread.
  Helper() = default;
  // `enter` is what the thread does before its first job.
  explicit Helper(Job enter) : enter_(std::move(enter)) {}
  ~Helper() { end(); }
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;

  bool beside() const { return enter_ != nullptr; }
  // Throws std::bad_alloc, std::system_error for a thread that cannot be had, and what a job throws that is done at
  // once.
  Ticket ask(Job job);
  // The job has ended when this returns: one that has not begun is done by the caller.
  void settle(Ticket ticket) noexcept;
  // All have.
  void finish() noexcept;
  // Likewise, and the thread too; whoever asks from now on does it himself.
  void end() noexcept;

 private:
  struct Asked {
    Ticket ticket;
    Job job;
  };
  void run();

  const Job enter_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Asked> asked_;  // that have not begun
  Ticket last_ = 0, running_ = 0;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace um
