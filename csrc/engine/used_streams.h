// The streams in which ops run, as bits of a word: a block has a bit for each stream that used it. last_use() returns
// the fence after the work of such streams.
//
// Example: the streams s0 and s1 have the bits 1 and 2. A block with the streams 3 was used in both, so its memory can
// be reused after the fence that last_use(3, {}) records in both.
//
// Not thread-safe: callers hold the device's lock. Functions that record events need its context to be current.
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

  // Returns the bit of a stream. Throws um::Error if the stream cannot be followed, or if there are too many.
  uint64_t bit_of(driver::CUstream stream);
  // Does the same for a stream that is given work which no op announces.
  uint64_t lend(driver::CUstream stream);
  // Makes the further work of each known stream run after the fence. Throws um::Error.
  void order_all(Fences::Fence fence, Wait name);
  // Returns a fence after all work that these streams and `others` were given, with one reference; 0: it has ended.
  // Throws um::Error.
  Fences::Fence last_use(uint64_t streams, std::vector<driver::CUstream> others);
  // Waits on the host for all streams, if no event can be recorded.
  void synchronize(Wait name) noexcept;

 private:
  static constexpr size_t kMostStreams = 64;
  using Place = std::vector<driver::CUstream>::iterator;

  uint64_t bit(Place stream) const { return uint64_t{1} << (stream - streams_.begin()); }
  Place idle_stream();

  const Backend& backend_;
  Fences& fences_;
  std::vector<driver::CUstream> streams_;  // kGone: a stream that was destroyed
  uint64_t lent_ = 0;
};

}  // namespace um
