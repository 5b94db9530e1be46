#include "devices/emulated/fault_handler.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <vector>

#include "devices/emulated/device.h"
#include "devices/emulated/owner.h"

namespace um::emulated {
namespace {

// Whom foreign signals belong to: who had them when we came, and above it whoever took them since. The signal goes to
// the top one; where that passes it on, by a call of us, whom it found there, or by raising it again, to the one below.
constexpr size_t kMostHandlers = 8;
using Handlers = std::vector<struct sigaction>;
std::atomic<const Handlers*> handlers{nullptr};  // replaced whole, and never freed: a signal may be reading it
std::atomic<bool> raised_is_meant{false};        // a raised signal is for the top one, whoever it was that set it
std::atomic<bool> in_child{false};
std::atomic<bool> swallowed{false};  // a raised signal was ignored since the last fault that we served
std::atomic<pthread_t> passing{};    // the thread whose signal is with one of `handlers`, which may call us in turn
std::atomic<size_t> passed_down{0};  // how many of them have passed the present signal on
std::atomic<driver::AccessDescriber> describing{nullptr};
std::atomic<bool> raised_again{false};  // one of `handlers` raised the signal that it was given once more

// One line, written at once: other threads may be talking too.
class Line {
 public:
  void add(const char* text) {
    while (*text != '\0' && used_ + 1 < sizeof(text_)) text_[used_++] = *text++;
  }
  void add_address(uint64_t address) {
    char text[] = "0x0000000000000000";
    for (int digit = 17; digit >= 2; --digit, address >>= 4) text[digit] = "0123456789abcdef"[address & 15];
    add(text);
  }
  void say() {
    text_[used_++] = '\n';
    const ssize_t written = write(STDERR_FILENO, text_, used_);
    static_cast<void>(written);
  }

 private:
  char text_[512];
  size_t used_ = 0;
};

void die_by_default(bool raised) {
  struct sigaction standard{};
  standard.sa_handler = SIG_DFL;
  sigaction(SIGSEGV, &standard, nullptr);
  if (raised) raise(SIGSEGV);  // blocked until this handler returns; a faulting instruction simply faults again
}

bool calls(const struct sigaction& action) { return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN; }

// Whoever serves a fault says that the instruction can go on. Where it cannot, it would fault for ever, with the same
// registers each time.
class Rounds {
 public:
  bool too_many(const void* context, int most = 1000) {
    uint64_t now = 0xCBF29CE484222325;  // FNV-1a
    for (const greg_t each : static_cast<const ucontext_t*>(context)->uc_mcontext.gregs) {
      now = (now ^ static_cast<uint64_t>(each)) * 0x100000001B3;
    }
    if (last_.exchange(now) != now) count_ = 0;
    return ++count_ > most;
  }

 private:  // no thread_local: its first use may allocate
  std::atomic<uint64_t> last_{0};
  std::atomic<int> count_{0};
};
Rounds of_handlers;  // one that was switched off (faulthandler.disable) returns too
Rounds of_owner;
Rounds of_announced;

// A handler may serve the fault, as we serve ours. Some only print, put back whoever was there before them and raise
// the signal again (faulthandler): when that comes here too, it is the turn of the one below, or else of the default.
void pass_on(int signal, siginfo_t* information, void* context, bool raised) {
  const Handlers& theirs = *handlers.load();
  const bool passed =
      passing == pthread_self() || raised_again.exchange(false) || (!raised && of_handlers.too_many(context));
  const size_t depth = passed ? ++passed_down : (passed_down = 0);
  if (depth >= theirs.size()) return die_by_default(raised);
  const struct sigaction& action = theirs[theirs.size() - 1 - depth];
  if (raised && action.sa_handler == SIG_IGN) return;
  if (!calls(action)) return die_by_default(raised);
  const pthread_t outer = passing.exchange(pthread_self());
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    action.sa_sigaction(signal, information, context);
  } else {
    action.sa_handler(signal);
  }
  passing = outer;
  sigset_t pending;  // all signals are blocked here, so one that was raised waits for our return
  if (sigpending(&pending) == 0 && sigismember(&pending, SIGSEGV) == 1) raised_again = true;
}

Service serve(uint64_t address, bool write, const void* context) {
  Device* device = device_at(place_of(address).device);
  if (device == nullptr) return Service::not_ours;
  const Service service = device->space.fault(address, write, false);
  if (service == Service::announces) {
    // An instruction that uses more pages than a full budget keeps goes on with all of them, uncounted.
    constexpr int kMostPages = 64;
    if (!of_announced.too_many(context, kMostPages)) static_cast<void>(ask_owner(address, write));
    return device->space.fault(address, write, true);
  }
  if (service != Service::asks) return service;
  if (!ask_owner(address, write)) return device->space.mappings.carry_out(address, write);
  const Service now = device->space.fault(address, write, false);  // as he has left it
  if (now == Service::asks && of_owner.too_many(context)) return Service::refused;
  return Service::served;
}

void describe(uint64_t address, Service service) {
  Line line;
  if (in_child) {
    line.add(
        "umadvise: a forked child touched memory of the emulated device, which stays with its parent (use spawn): ");
  } else if (service == Service::failed) {
    line.add("umadvise: the kernel refused to map a block of the emulated device (vm.max_map_count?): ");
  } else if (service == Service::refused) {
    line.add("umadvise: access to emulated device memory that is not on the device: ");
  } else {
    line.add("umadvise: access to emulated device memory that is not allocated: ");
  }
  line.add_address(address);
  if (const driver::AccessDescriber describer = describing; describer != nullptr && service == Service::refused) {
    char text[256] = "";
    describer(address, text, sizeof(text));
    line.add(text[0] != '\0' ? ", " : "");
    line.add(text);
  }
  line.say();
}

void on_signal(int signal, siginfo_t* information, void* context) {
  const int saved_errno = errno;
  if (information->si_code > 0) {
    const uint64_t address = reinterpret_cast<uint64_t>(information->si_addr);
    const bool ours = place_of(address).device >= 0;
    Service service = Service::not_ours;
    if (ours && !in_child) {
      constexpr int kWriteBit = 2;  // of the x86 page-fault error code
      const auto error = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR];
      service = serve(address, (error & kWriteBit) != 0, context);
    }
    if (service == Service::served) {
      swallowed = false;
    } else {
      if (ours) describe(address, service);
      pass_on(signal, information, context, false);
    }
  } else if (information->si_code == SI_USER || raised_is_meant || raised_again || swallowed.exchange(true)) {
    pass_on(signal, information, context, true);
  }
  // else: somebody above us (faulthandler) re-raised a fault of ours; the instruction faults again, and then it is
  // served. Nobody does that by kill(2), which is SI_USER.
  errno = saved_errno;
}

void seal(void* address, uint64_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  static_cast<void>(mmap(address, bytes, PROT_NONE, kFlags, -1, 0));  // a child has nobody to tell of a failure
}

void seal_child() {
  in_child = true;
  if (range_begin() != 0) seal(reinterpret_cast<void*>(range_begin()), range_end() - range_begin());
  for (int i = 0; i < kMostDevices; ++i) {
    const Device* device = device_at(i);
    if (device == nullptr) continue;
    for (const Tier* tier : {&device->space.blocks.device_tier, &device->space.blocks.host_tier}) {
      seal(tier->base(), tier->bytes());
    }
  }
}

bool same(const struct sigaction& one, const struct sigaction& other) {
  return one.sa_sigaction == other.sa_sigaction && ((one.sa_flags ^ other.sa_flags) & SA_SIGINFO) == 0;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_signal;
}

// Whoever set the default has no use for those before it: so it is alone.
void put_on_top(const struct sigaction& action) {
  auto* const now = new Handlers;
  const Handlers* const before = handlers;
  if (before != nullptr && calls(action)) {
    for (const struct sigaction& each : *before)
      if (!same(each, action)) now->push_back(each);
  }
  if (now->size() == kMostHandlers) now->erase(now->begin());
  now->push_back(action);
  handlers = now;
}

}  // namespace

bool forked() { return in_child; }

void set_describer(driver::AccessDescriber describer) { describing = describer; }

bool install_fault_handler(bool chosen) {
  static std::mutex installing;
  const std::lock_guard<std::mutex> guard(installing);
  static const int at_fork = pthread_atfork(nullptr, nullptr, seal_child);
  static_cast<void>(at_fork);
  struct sigaction current{};
  sigaction(SIGSEGV, nullptr, &current);
  const bool replaced = !is_ours(current);
  if (replaced) put_on_top(current);
  if (replaced || chosen) raised_is_meant = chosen;
  if (!replaced) return false;
  struct sigaction ours{};
  ours.sa_sigaction = on_signal;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigfillset(&ours.sa_mask);
  sigaction(SIGSEGV, &ours, nullptr);
  return true;
}

}  // namespace um::emulated
