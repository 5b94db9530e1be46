// What a device that computes while the host runs ahead stood still for: pairs of events around what its streams wait
// for. Not thread-safe: the device's lock is held, and its context is current.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "memory/backend.h"

namespace um {

class Stalls {
 public:
  explicit Stalls(const Backend& backend) : backend_(backend), tells_(!backend.hooks->in_host) {}
  ~Stalls();
  Stalls(const Stalls&) = delete;
  Stalls& operator=(const Stalls&) = delete;

  // Around what one stream is made to wait for.
  template <class Waits>
  void around(driver::CUstream stream, int64_t* account, const Waits& waits) {
    const driver::CUevent begin = tells_ ? record(stream) : nullptr;
    waits();
    if (begin != nullptr) note(begin, record(stream), account);
  }
  // Adds to their accounts those that have ended, from the first on.
  void settle() noexcept;

 private:
  struct Open {
    driver::CUevent begin, end;
    int64_t* account;
  };
  driver::CUevent record(driver::CUstream stream) noexcept;
  void note(driver::CUevent begin, driver::CUevent end, int64_t* account) noexcept;

  const Backend& backend_;
  const bool tells_;
  std::deque<Open> open_;
  std::vector<driver::CUevent> all_, idle_;
};

}  // namespace um
