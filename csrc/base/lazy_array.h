// An array of zeros that costs memory only as it is used, so that nothing has to grow where nothing may be allocated.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace um {

template <class Item>
class LazyArray {
 public:
  // Throws std::bad_alloc.
  explicit LazyArray(size_t count) : bytes_((count + 1) * sizeof(Item)) {  // mmap refuses zero
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    items_ = static_cast<Item*>(memory);
  }
  ~LazyArray() { munmap(items_, bytes_); }
  LazyArray(const LazyArray&) = delete;
  LazyArray& operator=(const LazyArray&) = delete;

  Item& operator[](size_t index) { return items_[index]; }
  const Item& operator[](size_t index) const { return items_[index]; }

 private:
  const size_t bytes_;
  Item* items_;
};

}  // namespace um
