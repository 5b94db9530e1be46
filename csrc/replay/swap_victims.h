// Who leaves when nothing is free: what is used furthest ahead, or what was used longest ago.
#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <vector>

#include "engine/indexed_trace.h"

namespace um::simulator {

enum class Eviction : uint32_t { never, furthest, least_recent };  // um_eviction

// Candidates in order. Entries are not taken back: one whose key is not the storage's present one is void.
class SwapVictims {
 public:
  SwapVictims(const IndexedTrace& trace, Eviction eviction);

  bool any() const { return eviction_ != Eviction::never; }
  // An op used a storage (`access` is its row), or it was made or came back without one.
  void used(int32_t storage, int32_t op, uint64_t access);
  void made(int32_t storage, int32_t op);
  // Storages of the iteration that ends are those of the next under their new index.
  void next_iteration();
  // A storage whose candidacy `pick` had ended is on the device again.
  void returned(int32_t storage) {
    if (any()) entries_.push({keys_[static_cast<size_t>(storage)], storage});
  }
  enum class Candidate { yes, not_now, no };
  // The first of the storages that `judge` says yes to, or -1. It and those judged `no` are candidates no more.
  template <class Judge>
  int32_t pick(const Judge& judge) {
    std::vector<Entry> kept;
    int32_t found = -1;
    while (!entries_.empty() && found < 0) {
      const Entry entry = entries_.top();
      entries_.pop();
      if (entry.key != keys_[static_cast<size_t>(entry.storage)]) continue;
      const Candidate candidate = judge(entry.storage);
      if (candidate == Candidate::yes) found = entry.storage;
      if (candidate == Candidate::not_now) kept.push_back(entry);
    }
    for (const Entry& entry : kept) entries_.push(entry);
    return found;
  }

 private:
  struct Entry {
    int64_t key;
    int32_t storage;
    bool operator<(const Entry& other) const { return key != other.key ? key < other.key : storage > other.storage; }
  };
  void set(int32_t storage, int64_t key);

  const IndexedTrace& trace_;
  const Eviction eviction_;
  int64_t base_ = 0;  // ops of the iterations before
  std::vector<int64_t> keys_, next_use_, first_use_;
  std::priority_queue<Entry> entries_;
};

}  // namespace um::simulator
