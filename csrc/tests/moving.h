// An allocation that may move, as its storage sees it: whoever moves it changes the address.
#pragma once

#include <cstdint>
#include <memory>

#include "umadvise.h"

namespace test {

struct Storage {
  unsigned char* address;
};

// Used as a pointer, it points to where the bytes are now. One made of a pointer has no storage: nobody can be told.
class Moving {
 public:
  Moving() = default;
  Moving(unsigned char* address) : fixed_(address) {}  // NOLINT(google-explicit-constructor)
  explicit Moving(std::shared_ptr<Storage> storage) : storage_(std::move(storage)) {}
  operator unsigned char*() const {  // NOLINT(google-explicit-constructor)
    return (storage_ != nullptr ? storage_->address : fixed_) + offset_;
  }
  Moving operator+(uint64_t bytes) const {
    Moving there = *this;
    there.offset_ += bytes;
    return there;
  }
  Storage* storage() const { return storage_.get(); }

  static const um_owner_functions& owners() {
    static const um_owner_functions functions{remember, repoint, [](void*) {}, [] {}};
    return functions;
  }

 private:
  static void* remember(void* storage, const void* address) {
    return static_cast<Storage*>(storage)->address == address ? storage : nullptr;
  }
  static int32_t repoint(void* owner, const void* from, void* to) {
    auto* const storage = static_cast<Storage*>(owner);
    if (storage->address != from) return 0;
    storage->address = static_cast<unsigned char*>(to);
    return 1;
  }

  std::shared_ptr<Storage> storage_;
  unsigned char* fixed_ = nullptr;
  uint64_t offset_ = 0;
};

inline Moving moving(void* address) {
  return Moving(std::make_shared<Storage>(Storage{static_cast<unsigned char*>(address)}));
}

// What an op made.
inline um_shown shown(const Moving& block) { return {block, block.storage()}; }

}  // namespace test
