// Recycles objects whose memory is freed only with the pool. A pointer to a recycled object is stale but never
// dangling, so a reader may check the object that it finds there.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace um {

// `Object` has a member `Object* next_free`, which belongs to the pool while the object is not in use.
template <class Object>
class StablePool {
 public:
  // Ensures that the next `count` calls of take() cannot fail. Throws std::bad_alloc, and then has changed nothing.
  void prepare(size_t count) {
    while (unused_count_ < count) grow();
  }
  // Returns an object in the state in which it was given back. Requires prepare().
  Object* take() noexcept {
    Object* object = unused_;
    unused_ = object->next_free;
    --unused_count_;
    return object;
  }
  void give(Object* object) noexcept {
    object->next_free = unused_;
    unused_ = object;
    ++unused_count_;
  }

 private:
  static constexpr size_t kSlabObjects = 256;

  void grow() {
    slabs_.reserve(slabs_.size() + 1);
    slabs_.push_back(std::make_unique<Object[]>(kSlabObjects));
    for (size_t i = kSlabObjects; i-- > 0;) give(&slabs_.back()[i]);
  }

  std::vector<std::unique_ptr<Object[]>> slabs_;
  Object* unused_ = nullptr;
  size_t unused_count_ = 0;
};

}  // namespace um
