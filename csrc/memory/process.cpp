#include "memory/process.h"

#include <pthread.h>

#include <cstdlib>

namespace um::process {

void watch() {
  static const int at_fork = pthread_atfork(nullptr, nullptr, [] { state = State::forked_child; });
  static const int at_exit = std::atexit([] {
    if (!forked()) state = State::ending;
  });
  static_cast<void>(at_fork);
  static_cast<void>(at_exit);
}

}  // namespace um::process
