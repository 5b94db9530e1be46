// What CUDA's virtual memory management has on an emulated device: physical memory that has a handle, and where it is
// mapped.
#pragma once

#include <cstdint>
#include <vector>

namespace um::emulated {

struct Handle {
  std::vector<uint32_t> slots;  // on its tier
  bool on_device;
  bool released = false;  // stays as long as it is mapped
  uint32_t mappings = 0;
};

// A mapping begins at a block, is as long as it was made, and goes as a whole.
struct MappedRange {
  uint32_t count;
  uint64_t handle;
};

// Bits of CUmemAccess_flags.
inline constexpr uint8_t kReadAccess = 1, kWriteAccess = 2;

// What cuMemSetAccess changes; kUnchanged for a processor that it does not name.
struct AccessGrant {
  static constexpr uint8_t kUnchanged = 0xFF;
  uint8_t device = kUnchanged, host = kUnchanged;
};

// Bytes of one block, up to its end, for a copy. Nobody takes them away before they are given back.
struct Loan {
  char* bytes = nullptr;
  bool on_device = false;
};
enum class Lending : uint8_t { lent, other_memory, refused };

}  // namespace um::emulated
