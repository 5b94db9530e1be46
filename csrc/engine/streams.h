// Orders streams, and owns the side stream in which prefetches and discards run.
#pragma once

#include <memory>

#include "memory/arena.h"
#include "memory/backend.h"
#include "memory/fence.h"
#include "umadvise_waits.h"

namespace um {

class Streams {
 public:
  Streams(const Backend& backend, std::unique_ptr<Fences>& fences) : backend_(backend), fences_(fences) {}

  void note(driver::CUstream stream) noexcept { others_ |= stream != nullptr && stream != driver::legacy_stream(); }
  // Make the further work of `waiting` run after all work that `awaited` was given. order() needs the context to be
  // current. Throw um::Error.
  void wait(driver::CUstream waiting, driver::CUstream awaited);
  void order(driver::CUstream waiting, driver::CUstream awaited, Wait name);
  // Returns the side stream. The context is current; throws um::Error.
  driver::CUstream side();
  bool has_side() const { return side_ != nullptr; }
  // Discards the contents of memory that is freed.
  void discard(const Block& block) noexcept;
  // The context is current.
  void close() noexcept;

 private:
  const Backend& backend_;
  const std::unique_ptr<Fences>& fences_;
  bool others_ = false;  // whether any stream but the legacy one was ever used
  driver::CUstream side_{};
};

}  // namespace um
