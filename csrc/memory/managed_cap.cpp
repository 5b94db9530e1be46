#include "memory/managed_cap.h"

#include <algorithm>
#include <atomic>

namespace um::managed_cap {
namespace {

std::atomic<uint64_t> most{0};
std::atomic<uint64_t> held{0};

}  // namespace

void set(uint64_t most_bytes) { most = most_bytes; }

uint64_t left(uint64_t free_at_opening_bytes) {
  const uint64_t set_bytes = most, held_bytes = held;
  const uint64_t most_bytes = set_bytes != 0 ? std::min(set_bytes, free_at_opening_bytes) : free_at_opening_bytes;
  return most_bytes - std::min(most_bytes, held_bytes);
}

void add(uint64_t bytes) { held += bytes; }
void subtract(uint64_t bytes) noexcept { held -= bytes; }

}  // namespace um::managed_cap
