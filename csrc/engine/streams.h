// The order between streams, and the stream beside all ops'. The device's lock is held.
#pragma once

#include "memory/arena.h"
#include "memory/backend.h"
#include "umadvise_waits.h"

namespace um {

class Streams {
 public:
  explicit Streams(um_device& device) : device_(device) {}

  void note(driver::CUstream stream) noexcept { others_ |= stream != nullptr && stream != driver::legacy_stream(); }
  // What `waiting` is given from now on runs after all that `awaited` was given. `order` wants the context current.
  // Throw um::Error.
  void wait(driver::CUstream waiting, driver::CUstream awaited);
  void order(driver::CUstream waiting, driver::CUstream awaited, Wait name);
  // Of prefetches and discards. The context is current; throws um::Error.
  driver::CUstream side();
  bool has_side() const { return side_ != nullptr; }
  // Memory that is freed: nobody needs its contents.
  void discard(const Block& block) noexcept;
  // The context is current.
  void close() noexcept;

  // Until it is freed or leaves the device, the allocation is used in this stream too. The lock is taken.
  static void uses(const void* address, void* stream);

 private:
  um_device& device_;
  bool others_ = false;  // than the legacy one were ever named
  driver::CUstream side_{};
};

}  // namespace um
