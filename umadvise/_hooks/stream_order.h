// Orders streams when memory passes from one to another.
//
// A free returns at once, although the GPU may still use the block, and the heap gives the block to the next request.
// Within one stream this is in order; another stream must wait first. A block belongs to the stream for which it was
// allocated (torch names that stream again at the free, while the block has its first address), and to those that
// record_stream named. Blocks move with a device's lock held, so the core is not called under the lock of this class.
//
// Example: stream A allocates and frees a block. allocated(B) then calls wait(A) once. The next allocation for B calls
// it only if A has freed memory since.
//
// Thread-safe.
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

  // Notes that a stream works on a block that belongs to another stream of the same device.
  void lend(const void* block, void* stream) {
    if (left_out(Wait::record_stream)) return;
    const std::lock_guard<std::mutex> lock(lock_);
    borrowers_[block].push_back(stream);
  }

  // Called before a block moves for the first time.
  void own(const void* block, Stream owner) {
    const std::lock_guard<std::mutex> lock(lock_);
    owners_.insert_or_assign(block, owner);
  }
  void moved(const void* from, const void* to) noexcept {
    const std::lock_guard<std::mutex> lock(lock_);
    rename(owners_, from, to);
    rename(borrowers_, from, to);
  }

  // Called before the heap gets the block back.
  void freed(const void* block, Stream owner) {
    const std::lock_guard<std::mutex> lock(lock_);
    note_free(block, owner);
  }
  // The same for a block that has moved.
  void freed(const void* block) {
    const std::lock_guard<std::mutex> lock(lock_);
    const auto owned = owners_.extract(block);
    if (!owned.empty()) note_free(block, owned.mapped());
  }

  // Called after the heap has given a block to `stream`. Calls `wait(other)` for each stream of the device that has
  // freed memory since `stream` last waited for it. The other stream has been given all its work on the freed memory by
  // now.
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
  // Renames an entry without allocating memory.
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
  std::map<std::pair<Stream, Stream>, uint64_t> awaited_;  // by {waiting stream, awaited stream}: frees_ at that time
};

}  // namespace um::hooks
