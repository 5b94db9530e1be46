#include "devices/emulated/owner.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <mutex>
#include <new>

#include "umadvise_waits.h"

namespace um::emulated {
namespace {

// A number that a thread waits for to change. Futexes, unlike condition variables, may be used in a signal handler.
class Bell {
 public:
  uint32_t now() const { return rung_.load(std::memory_order_acquire); }
  // Whoever waits may have seen the number and be gone with its stack: the kernel only looks up who sleeps there.
  void ring() {
    rung_.fetch_add(1, std::memory_order_release);
    syscall(SYS_futex, &rung_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
  // Returns at once when it was rung since `seen` was read, and now and then for nothing.
  void wait(uint32_t seen) const { syscall(SYS_futex, &rung_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0); }

 private:
  std::atomic<uint32_t> rung_{0};
};

// On the stack of the thread that waits for it.
struct Request {
  uint64_t address;
  bool write;
  bool allowed;
  Request* next;
  Bell answered;
};

std::atomic<driver::AccessOwner> owner{nullptr};
std::atomic<Request*> requests{nullptr};  // a stack: whoever is asked takes all of it
Bell asked;
std::atomic<pthread_t> answering{};

void* answer(void*) {
  answering = pthread_self();
  for (;;) {
    const uint32_t seen = asked.now();
    Request* request = requests.exchange(nullptr, std::memory_order_acquire);
    if (request == nullptr) asked.wait(seen);
    while (request != nullptr) {
      Request* const next = request->next;  // the request is gone once it is answered
      const driver::AccessOwner whose = owner.load(std::memory_order_acquire);
      request->allowed = whose != nullptr && whose(request->address, request->write);
      request->answered.ring();
      request = next;
    }
  }
}

void start_thread() {
  sigset_t all, before;  // signals are for the program's own threads
  sigfillset(&all);
  sigdelset(&all, SIGSEGV);  // a crash of the owner's is one
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread{};
  const int failed = pthread_create(&thread, nullptr, answer, nullptr);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed != 0) throw std::bad_alloc();
  pthread_detach(thread);
}

}  // namespace

void set_owner(driver::AccessOwner whose) {
  static std::once_flag started;
  std::call_once(started, start_thread);
  owner.store(whose, std::memory_order_release);
}

bool ask_owner(uint64_t address, bool write) {
  if (owner.load(std::memory_order_acquire) == nullptr || answering == pthread_self()) return false;
  if (left_out(Wait::emulated_answer)) return false;
  Request request{address, write, false, nullptr, {}};
  const uint32_t unanswered = request.answered.now();
  request.next = requests.load(std::memory_order_relaxed);
  while (!requests.compare_exchange_weak(request.next, &request, std::memory_order_release)) {
  }
  asked.ring();
  while (request.answered.now() == unanswered) request.answered.wait(unanswered);
  return request.allowed;
}

}  // namespace um::emulated
