// Two events of the whole process: a fork, after which the core does not work in the child, and the process's end, when
// memory is still freed but need not be given back.
#pragma once

#include <atomic>

namespace um::process {

enum class State { normal, forked_child, ending };
inline std::atomic<State> state{State::normal};

// Called for the first open device. A child of a process without devices is like any other process.
void watch();
inline bool forked() { return state.load(std::memory_order_relaxed) == State::forked_child; }
// Free paths then do nothing: threads that the child does not have may hold locks, and drivers may be gone.
inline bool over() { return state.load(std::memory_order_relaxed) != State::normal; }

}  // namespace um::process
