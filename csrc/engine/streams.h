// Orders streams, and owns the side stream in which prefetches and discards run.
#pragma once

#include "engine/device_base.h"

namespace um {

class Streams {
 public:
  explicit Streams(DeviceBase& base) : base_(base) {}

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
  DeviceBase& base_;
  bool others_ = false;  // whether any stream but the legacy one was ever used
  driver::CUstream side_{};
};

}  // namespace um
