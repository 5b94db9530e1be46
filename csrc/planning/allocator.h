// How device memory is given out, as a choice: what a simulated run asks for, and what that takes of the budget.
//
// A model never touches memory. It says whether a block finds room, and how many bytes of the budget are taken, so
// that fragmentation (taken, but not live) is a figure of its own.
#pragma once

#include <cstdint>
#include <memory>

namespace um::simulator {

enum class AllocatorModel : uint32_t { exact, caching, best_fit, va_chunks };  // um_allocator_model

class Allocator {
 public:
  static constexpr int64_t kNoRoom = -1;

  virtual ~Allocator() = default;
  // A block of at least one byte: its handle, or kNoRoom.
  virtual int64_t allocate(uint64_t bytes) = 0;
  virtual void free(int64_t block) = 0;
  // What all blocks together take of the budget now.
  virtual uint64_t reserved_bytes() const = 0;
  // Physical chunks mapped so far; 0 for models that map nothing.
  virtual uint64_t chunks_mapped() const { return 0; }
};

// Room for `budget_bytes`; `chunk_bytes` is the size of a physical chunk of `va_chunks`.
std::unique_ptr<Allocator> make_allocator(AllocatorModel model, uint64_t budget_bytes, uint64_t chunk_bytes);

}  // namespace um::simulator
