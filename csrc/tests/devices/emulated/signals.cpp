// The SIGSEGV handler among other people's handlers, forks and real crashes. Each case runs in a child that is expected
// to end in one particular way.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "child_process.h"
#include "emulated_device.h"

using namespace um::driver;  // NOLINT
using test::default_handler;
using test::died_of_segv;
using test::EmulatedDevice;
using test::in_child;
using test::kMiB;

namespace {

[[gnu::noinline]] void crash() {
  volatile uintptr_t nowhere = 16;
  *reinterpret_cast<volatile int*>(nowhere) = 1;
}

// As faulthandler: prints, puts back who was there before, raises again.
struct sigaction before_printing;
void print_and_raise(int) {
  const ssize_t written = write(STDERR_FILENO, "printed\n", 8);
  static_cast<void>(written);
  sigaction(SIGSEGV, &before_printing, nullptr);
  raise(SIGSEGV);
}
void install_printer() {
  struct sigaction action{};
  action.sa_handler = print_and_raise;
  action.sa_flags = SA_NODEFER | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &before_printing);
}

void use_memory() {
  EmulatedDevice device(16 * kMiB);
  unsigned char* data = device.managed(32 * kMiB);
  for (uint64_t i = 0; i < 32 * kMiB; i += kMiB) data[i] = 1;
  device.free(data);
}

}  // namespace

TEST(a_real_crash_still_crashes) {
  CHECK(died_of_segv(in_child([] {
    default_handler();
    use_memory();
    crash();
  })));
}

TEST(an_earlier_handler_prints_once_and_the_crash_goes_on) {
  std::string said;
  CHECK(died_of_segv(in_child(
      [] {
        default_handler();
        install_printer();
        use_memory();
        crash();
      },
      &said)));
  CHECK_EQ(said, "printed\n");
}

TEST(a_later_handler_that_raises_again_does_not_stop_a_managed_fault) {
  std::string said;
  const int status = in_child(
      [] {
        default_handler();
        EmulatedDevice device(16 * kMiB);
        unsigned char* data = device.managed(4 * kMiB);
        install_printer();  // now on top; it steps aside at the first fault
        data[0] = 1;
        data[2 * kMiB] = 2;
        if (data[0] != 1 || data[2 * kMiB] != 2) _exit(3);
        device.hooks.claim_signals(false);
        device.free(data);
      },
      &said);
  CHECK_EQ(status, 0);
  CHECK_EQ(said, "printed\n");
}

TEST(claiming_puts_us_on_top_again_and_the_later_handler_gets_the_crash) {
  std::string said;
  CHECK(died_of_segv(in_child(
      [] {
        default_handler();
        EmulatedDevice device(16 * kMiB);
        unsigned char* data = device.managed(4 * kMiB);
        install_printer();
        device.hooks.claim_signals(false);
        data[0] = 1;  // no print
        crash();
      },
      &said)));
  CHECK_EQ(said, "printed\n");
}

TEST(an_earlier_handler_that_serves_its_own_faults_goes_on_doing_so) {
  const int status = in_child([] {
    struct sigaction action{};
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    action.sa_sigaction = [](int, siginfo_t* information, void*) {
      const uintptr_t page = reinterpret_cast<uintptr_t>(information->si_addr) / 4096 * 4096;
      mprotect(reinterpret_cast<void*>(page), 4096, PROT_READ | PROT_WRITE);
    };
    sigaction(SIGSEGV, &action, nullptr);
    use_memory();
    void* memory = mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    auto* theirs = static_cast<volatile unsigned char*>(memory);
    theirs[0] = 1;
    use_memory();
    theirs[4096] = 1;
  });
  CHECK_EQ(status, 0);
}

TEST(a_later_handler_that_calls_ours_ends_with_the_default_after_claiming) {
  std::string said;
  CHECK(died_of_segv(in_child(
      [] {
        default_handler();
        EmulatedDevice device(16 * kMiB);
        struct sigaction action{};
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        action.sa_sigaction = [](int signal, siginfo_t* information, void* context) {
          const ssize_t written = write(STDERR_FILENO, "printed\n", 8);
          static_cast<void>(written);
          before_printing.sa_sigaction(signal, information, context);
        };
        sigaction(SIGSEGV, &action, &before_printing);
        device.hooks.claim_signals(false);
        crash();
      },
      &said)));
  CHECK_EQ(said, "printed\n");
}

TEST(later_handlers_that_pass_on_reach_all_below_them) {
  std::string said;
  CHECK(died_of_segv(in_child(
      [] {
        default_handler();
        struct sigaction first{};
        first.sa_handler = [](int) {
          const ssize_t written = write(STDERR_FILENO, "first\n", 6);
          static_cast<void>(written);
          default_handler();
        };
        sigaction(SIGSEGV, &first, nullptr);
        EmulatedDevice device(16 * kMiB);
        install_printer();  // finds ours, and puts it back when it has printed
        if (!device.hooks.claim_signals(false) || device.hooks.claim_signals(false)) _exit(3);
        crash();
      },
      &said)));
  CHECK_EQ(said, "printed\nfirst\n");
}

TEST(a_handler_that_was_switched_off_is_passed_by) {
  std::string said;
  CHECK(died_of_segv(in_child(
      [] {
        default_handler();
        install_printer();
        EmulatedDevice device(16 * kMiB);
        signal(SIGSEGV, [](int) {});  // as faulthandler's after faulthandler.disable
        device.hooks.claim_signals(false);
        crash();
      },
      &said)));
  CHECK_EQ(said, "printed\n");
}

TEST(the_default_set_later_ends_it_and_those_before_hear_nothing) {
  std::string said;
  CHECK(died_of_segv(in_child(
      [] {
        install_printer();
        EmulatedDevice device(16 * kMiB);
        unsigned char* data = device.managed(4 * kMiB);
        default_handler();
        device.hooks.claim_signals(true);
        data[0] = 1;  // served
        crash();
      },
      &said)));
  CHECK_EQ(said, "");
}

TEST(raised_signals_go_at_once_to_a_handler_that_was_chosen) {
  std::string said;
  const int status = in_child(
      [] {
        default_handler();
        EmulatedDevice device(16 * kMiB);
        signal(SIGSEGV, [](int) {
          const ssize_t written = write(STDERR_FILENO, "got\n", 4);
          static_cast<void>(written);
        });
        device.hooks.claim_signals(false);
        kill(getpid(), SIGSEGV);  // nobody passes a fault on by kill(2)
        raise(SIGSEGV);           // taken for a fault that was passed on
        device.hooks.claim_signals(true);
        raise(SIGSEGV);
        signal(SIGSEGV, SIG_IGN);
        device.hooks.claim_signals(true);
        raise(SIGSEGV);
      },
      &said);
  CHECK_EQ(status, 0);
  CHECK_EQ(said, "got\ngot\n");
}

TEST(a_raised_signal_kills_at_the_second_time) {
  CHECK(died_of_segv(in_child([] {
    default_handler();
    use_memory();
    for (;;) raise(SIGSEGV);
  })));
}

TEST(touching_what_was_freed_crashes_and_says_so) {
  std::string said;
  CHECK(died_of_segv(in_child(
      [] {
        default_handler();
        EmulatedDevice device(16 * kMiB);
        volatile unsigned char* data = device.managed(4 * kMiB);
        device.free(const_cast<unsigned char*>(data));
        data[0] = 1;
      },
      &said)));
  CHECK(said.find("not allocated") != std::string::npos);
}

TEST(a_forked_child_cannot_touch_the_parents_pages) {
  EmulatedDevice device(16 * kMiB);
  volatile unsigned char* data = device.managed(4 * kMiB);
  data[0] = 1;
  std::string said;
  CHECK(died_of_segv(in_child(
      [&] {
        default_handler();
        device.hooks.claim_signals(false);
        data[0] = 2;
      },
      &said)));
  CHECK(said.find("forked child") != std::string::npos);
  CHECK_EQ(+data[0], 1);
  // A child that leaves our memory alone lives, and cannot open a device of its own.
  CHECK_EQ(in_child([&] {
             const um_emulated_options options{16 * kMiB, 64 * kMiB, UM_COUNTING_ORDERED, 0, 0};
             int32_t ordinal = 0;
             char message[200];
             if (device.hooks.open(&options, &ordinal, message, sizeof(message)) != UM_BAD_STATE) _exit(4);
           }),
           0);
  device.free(const_cast<unsigned char*>(data));
}
