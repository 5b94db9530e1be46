// A thread for driver calls that may block: mapping memory, pinning host memory, and prefetches of managed memory. The
// driver performs a prefetch in the calling thread if the stream is idle (open-gpu-kernel-modules, uvm_migrate.c). The
// thread starts with the first job. On a device that computes in the calling thread, ask() runs the job itself.
//
// Thread-safe. A job takes no lock that a thread may hold while it waits for the job, and reports its failures itself.
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
  using Ticket = uint64_t;  // numbers the jobs in the order of ask(); 0: no job

  // A helper without a thread.
  Helper() = default;
  // The thread calls `enter` before its first job.
  explicit Helper(Job enter) : enter_(std::move(enter)) {}
  ~Helper() { end(); }
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;

  bool beside() const { return enter_ != nullptr; }
  // Queues a job, or runs it now if there is no thread. Throws std::bad_alloc, std::system_error if no thread can be
  // started, and, if the job runs now, whatever it throws.
  Ticket ask(Job job);
  // Returns when the job has ended. Runs it in the calling thread if it has not begun.
  void finish(Ticket ticket) noexcept;
  // Returns when all jobs have ended.
  void finish() noexcept;
  // Ends all jobs and the thread. From then on ask() runs each job itself.
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
  std::deque<Asked> asked_;  // jobs that have not begun
  Ticket last_ = 0, running_ = 0;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace um
