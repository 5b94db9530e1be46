#include "driver/emulated/fault_handler.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "driver/emulated/device.h"
#include "driver/emulated/owner.h"

namespace um::emulated {
namespace {

struct sigaction previous;  // whom foreign signals belong to
std::atomic<bool> in_child{false};
std::atomic<bool> swallowed{false};  // a raised signal was ignored since the last fault that we served
std::atomic<pthread_t> passing{};    // the thread whose signal is with `previous`, which may call us in turn
std::atomic<Describer> describing{nullptr};
std::atomic<bool> raised_again{false};  // a signal went to `previous`, which raised it once more: that one is the end

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

// `previous` may serve the fault, as we serve ours. Some only print, put back whoever was there before them and raise
// the signal again (faulthandler): when that comes here too, the default action ends it.
void pass_on(int signal, siginfo_t* information, void* context, bool raised) {
  if (raised_again || passing == pthread_self()) return die_by_default(raised);
  passing = pthread_self();
  if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != nullptr) {
    previous.sa_sigaction(signal, information, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    return die_by_default(raised);
  }
  passing = pthread_t{};
  sigset_t pending;  // all signals are blocked here, so one that was raised waits for our return
  if (sigpending(&pending) == 0 && sigismember(&pending, SIGSEGV) == 1) raised_again = true;
}

Service serve(uint64_t address, bool write) {
  Device* device = device_at(place_of(address).device);
  if (device == nullptr) return Service::not_ours;
  const Service service = device->space.fault(address, write);
  if (service != Service::asks) return service;
  return ask_owner(address, write) ? Service::served : device->space.carry_out(address, write);
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
  if (const Describer describer = describing; describer != nullptr && service == Service::refused) {
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
      service = serve(address, (error & kWriteBit) != 0);
    }
    if (service == Service::served) {
      swallowed = false;
    } else {
      if (ours) describe(address, service);
      pass_on(signal, information, context, false);
    }
  } else if (raised_again || swallowed.exchange(true)) {
    pass_on(signal, information, context, true);
  }
  // else: somebody above us (faulthandler) re-raised a fault of ours; the instruction faults again, and then it is
  // served.
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
    for (const Tier* tier : {&device->space.device_tier(), &device->space.host_tier()}) {
      seal(tier->base(), tier->bytes());
    }
  }
}

}  // namespace

bool forked() { return in_child; }

void set_describer(Describer describer) { describing = describer; }

void install_fault_handler() {
  static const int at_fork = pthread_atfork(nullptr, nullptr, seal_child);
  static_cast<void>(at_fork);
  struct sigaction current{};
  sigaction(SIGSEGV, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == on_signal) return;
  previous = current;
  struct sigaction ours{};
  ours.sa_sigaction = on_signal;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigfillset(&ours.sa_mask);
  sigaction(SIGSEGV, &ours, nullptr);
}

}  // namespace um::emulated
