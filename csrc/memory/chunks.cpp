#include "memory/chunks.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace um {

Chunk* Chunks::create() {
  made_.reserve(made_.size() + 1);
  auto chunk = std::make_unique<Chunk>();
  if (!pool.create()) return nullptr;
  chunk->handle = pool.take();
  chunk->number = made_.size();
  link(chunk.get());
  made_.push_back(std::move(chunk));
  return made_.back().get();
}

Chunks::List Chunks::find_free(uint64_t count, const List& wanted) {
  const auto by_number = [](const Chunk* a, const Chunk* b) { return a->number < b->number; };
  List found;
  found.reserve(count);
  for (Chunk* chunk : wanted) {
    if (chunk->free && found.size() < count) found.push_back(chunk);
  }
  std::sort(found.begin(), found.end(), by_number);
  const List own = found;
  const Chunk* first_made = nullptr;  // new chunks were appended to the list just now, and are in `found` already
  while (found.size() < count) {
    Chunk* const chunk = create();
    if (chunk == nullptr) break;
    if (first_made == nullptr) first_made = chunk;
    found.push_back(chunk);
  }
  for (Chunk* chunk = oldest_; chunk != first_made && found.size() < count; chunk = chunk->newer) {
    if (!std::binary_search(own.begin(), own.end(), chunk, by_number)) found.push_back(chunk);
  }
  std::sort(found.begin(), found.end(), by_number);  // there is one range for each set of chunks
  return found;
}

uint64_t Chunks::put_back(const List& chunks) noexcept {
  ++given_back_;
  for (Chunk* chunk : chunks) link(chunk);
  return given_back_;
}

void Chunks::link(Chunk* chunk) noexcept {
  chunk->free = true;
  chunk->freed = given_back_;
  chunk->newer = nullptr;
  chunk->older = newest_;
  (newest_ != nullptr ? newest_->newer : oldest_) = chunk;
  newest_ = chunk;
}

void Chunks::unlink(Chunk* chunk) noexcept {
  chunk->free = false;
  (chunk->older != nullptr ? chunk->older->newer : oldest_) = chunk->newer;
  (chunk->newer != nullptr ? chunk->newer->older : newest_) = chunk->older;
}

void Chunks::end(Chunk* chunk) noexcept {
  unlink(chunk);
  pool.give(chunk->handle);
  const auto next = made_.erase(made_.begin() + static_cast<std::ptrdiff_t>(chunk->number));
  for (auto each = next; each != made_.end(); ++each) --(*each)->number;
}

// The free chunks are one list, in the order in which they were given back.
bool Chunks::check() const {
  UM_ASSERT(made_.size() + pool.unused() == pool.created());
  if (made_.size() > kMostChecked) return true;
  uint64_t held = 0, listed = 0;
  for (size_t i = 0; i < made_.size(); ++i) {
    UM_ASSERT(made_[i]->number == i);
    held += made_[i]->free ? 0 : 1;
  }
  for (const Chunk* chunk = oldest_; chunk != nullptr; chunk = chunk->newer) {
    UM_ASSERT(chunk->free);
    UM_ASSERT((chunk->older != nullptr ? chunk->older->newer : oldest_) == chunk);
    UM_ASSERT((chunk->newer != nullptr ? chunk->newer->older : newest_) == chunk);
    UM_ASSERT(chunk->older == nullptr || chunk->older->freed <= chunk->freed);
    ++listed;
  }
  UM_ASSERT(held + listed == made_.size());
  return true;
}

}  // namespace um
