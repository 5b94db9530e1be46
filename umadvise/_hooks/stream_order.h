// Orders streams where memory changes hands between them.
//
// A free returns at once, while the GPU may still work on the block, and the heap gives it to whoever asks next. Within
// one stream that is in order; another stream must wait first. A block belongs to the stream that it was allocated for
// (torch names it again at the free), and to those that record_stream named.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "umadvise_waits.h"

namespace um::hooks {

class StreamOrder {
 public:
  struct Stream {
    int32_t device;
    void* handle;
    bool operator<(const Stream& other) const {
      return device != other.device ? device < other.device : handle < other.handle;
    }
  };

  // A stream works on a block that belongs to another one of the same device.
  void lend(const void* block, void* stream) {
    if (left_out(Wait::record_stream)) return;
    const std::lock_guard<std::mutex> lock(lock_);
    borrowers_[block].push_back(stream);
  }

  // Before the heap gets the block back.
  void freed(const void* block, Stream owner) {
    const std::lock_guard<std::mutex> lock(lock_);
    ++frees_[owner];
    const auto borrowed = borrowers_.find(block);
    if (borrowed == borrowers_.end()) return;
    for (void* const stream : borrowed->second) ++frees_[{owner.device, stream}];
    borrowers_.erase(borrowed);
  }

  // After the heap has given a block to `stream`: calls `wait(other)` for each stream of the device that has freed
  // memory since `stream` last waited for it. By now that other stream has been given all its work on what it has
  // freed.
  template <class WaitFor>
  void allocated(Stream stream, WaitFor&& wait) {
    const std::lock_guard<std::mutex> lock(lock_);
    for (const auto& [other, frees] : frees_) {
      if (other.device != stream.device || other.handle == stream.handle) continue;
      uint64_t& awaited = awaited_[{stream, other}];
      if (awaited == frees) continue;
      wait(other.handle);
      awaited = frees;
    }
  }

 private:
  std::mutex lock_;
  std::unordered_map<const void*, std::vector<void*>> borrowers_;
  std::map<Stream, uint64_t> frees_;
  std::map<std::pair<Stream, Stream>, uint64_t> awaited_;  // of {who waits, for whom}: frees_ at that time
};

}  // namespace um::hooks
