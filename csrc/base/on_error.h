// What is undone where a scope is left by an exception.
#pragma once

#include <exception>
#include <utility>

namespace um {

// `undo` runs after whatever the scope has made since, and before what it had made by then, is gone. It must not throw,
// nor look at a variable that was to hold what a call returns that threw: g++ 12 has written to it.
template <class Undo>
class [[nodiscard]] OnError {
 public:
  explicit OnError(Undo undo) : undo_(std::move(undo)) {}
  ~OnError() {
    if (std::uncaught_exceptions() > exceptions_before_) undo_();
  }
  OnError(const OnError&) = delete;
  OnError& operator=(const OnError&) = delete;

 private:
  const Undo undo_;
  const int exceptions_before_ = std::uncaught_exceptions();
};

}  // namespace um
