// Orders streams where memory changes hands between them.
//
// A free returns at once, while the GPU may still work on the block, and the heap gives it to whoever asks next. Within
// one stream that is in order; another stream must wait first. A block belongs to the stream that it was allocated for
// (torch names it again at the free, as long as the block's address is the first one), and to those that record_stream
// named. Blocks move with the lock of a device held: nothing is asked of the core under the lock here.
#pragma once

#include <algorithm>
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

  // A block is about to move for the first time.
  void own(const void* block, Stream owner) {
    const std::lock_guard<std::mutex> lock(lock_);
    owners_.insert_or_assign(block, owner);
  }
  void moved(const void* from, const void* to) noexcept {
    const std::lock_guard<std::mutex> lock(lock_);
    rename(owners_, from, to);
    rename(borrowers_, from, to);
  }

  // Before the heap gets the block back.
  void freed(const void* block, Stream owner) {
    const std::lock_guard<std::mutex> lock(lock_);
    note_free(block, owner);
  }
  // One that has moved.
  void freed(const void* block) {
    const std::lock_guard<std::mutex> lock(lock_);
    const auto owned = owners_.extract(block);
    if (!owned.empty()) note_free(block, owned.mapped());
  }

  // After the heap has given a block to `stream`: calls `wait(other)` for each stream of the device that has freed
  // memory since `stream` last waited for it. By now that other stream has been given all its work on what it has
  // freed.
  template <class WaitFor>
  void allocated(Stream stream, WaitFor&& wait) {
    std::vector<std::pair<Stream, uint64_t>> awaited;
    {
      const std::lock_guard<std::mutex> lock(lock_);
      for (const auto& [other, frees] : frees_) {
        if (other.device != stream.device || other.handle == stream.handle) continue;
        if (awaited_[{stream, other}] != frees) awaited.emplace_back(other, frees);
      }
    }
    for (const auto& [other, frees] : awaited) wait(other.handle);
    if (awaited.empty()) return;
    const std::lock_guard<std::mutex> lock(lock_);
    for (const auto& [other, frees] : awaited) {
      uint64_t& before = awaited_[{stream, other}];
      before = std::max(before, frees);
    }
  }

 private:
  // Takes no memory.
  template <class Map>
  static void rename(Map& map, const void* from, const void* to) noexcept {
    auto found = map.extract(from);
    if (found.empty()) return;
    found.key() = to;
    map.insert(std::move(found));
  }

  void note_free(const void* block, Stream owner) {
    ++frees_[owner];
    const auto borrowed = borrowers_.find(block);
    if (borrowed == borrowers_.end()) return;
    for (void* const stream : borrowed->second) ++frees_[{owner.device, stream}];
    borrowers_.erase(borrowed);
  }

  std::mutex lock_;
  std::unordered_map<const void*, std::vector<void*>> borrowers_;
  std::unordered_map<const void*, Stream> owners_;  // of blocks that have moved
  std::map<Stream, uint64_t> frees_;
  std::map<std::pair<Stream, Stream>, uint64_t> awaited_;  // of {who waits, for whom}: frees_ at that time
};

}  // namespace um::hooks
