// What happens to the process as a whole: a fork, after which nothing of ours works in the child, and its end, when
// frees still come but nothing needs to be given back.
#pragma once

#include <atomic>

namespace um::process {

enum class State { normal, forked_child, ending };
inline std::atomic<State> state{State::normal};

// From the first open device on. A child of a process that had none is like any other process.
void watch();
inline bool forked() { return state.load(std::memory_order_relaxed) == State::forked_child; }
// Locks may be held by threads that the child does not have, and drivers are gone: free paths do nothing.
inline bool over() { return state.load(std::memory_order_relaxed) != State::normal; }

}  // namespace um::process
