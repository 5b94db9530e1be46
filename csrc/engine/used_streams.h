// The streams that ops run in, as bits of a word: who used a block, and the moment at which the last of them has done
// with it. Not thread-safe: the device's lock is held; the device's context is current where moments are asked for.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/backend.h"
#include "memory/fence.h"

namespace um {

class UsedStreams {
 public:
  UsedStreams(const Backend& backend, Fences& fences) : backend_(backend), fences_(fences) {}
  UsedStreams(const UsedStreams&) = delete;
  UsedStreams& operator=(const UsedStreams&) = delete;

  // Throws um::Error for a stream that cannot be followed, or one too many.
  uint64_t bit_of(driver::CUstream stream);
  // Likewise, of a stream that is given work which no op announces.
  uint64_t lend(driver::CUstream stream);
  // What each of them is given from now on runs after it. Throws um::Error.
  void order_all(Fences::Fence fence, Wait name);
  // After all that these streams, and `others`, have been given, with one reference; 0: it has ended. Throws um::Error.
  Fences::Fence last_use(uint64_t streams, std::vector<driver::CUstream> others);
  // The host waits for all of them. For whoever cannot make an event.
  void synchronize(Wait name) noexcept;

 private:
  static constexpr size_t kMostStreams = 64;
  using Place = std::vector<driver::CUstream>::iterator;

  uint64_t bit(Place stream) const { return uint64_t{1} << (stream - streams_.begin()); }
  Place idle_stream();

  const Backend& backend_;
  Fences& fences_;
  std::vector<driver::CUstream> streams_;  // kGone: one that was destroyed
  uint64_t lent_ = 0;
};

}  // namespace um
