// Where the emulated devices live in the address space: one reserved range, one equal span a device. An address tells
// its device and its block by arithmetic alone, which is all that the fault handler can afford.
#pragma once

#include <cstdint>

#include "um/model.h"

namespace um::emulated {

inline constexpr int kMostDevices = 16;
// Address space of one device, managed and plain. ThreadSanitizer leaves programs little of it.
#ifdef __SANITIZE_THREAD__
inline constexpr uint64_t kSpanBytes = uint64_t{4} << 30;
#else
inline constexpr uint64_t kSpanBytes = uint64_t{1} << 40;
#endif
inline constexpr uint32_t kSpanBlocks = static_cast<uint32_t>(kSpanBytes / kBlockBytes);

// Address space from a block's boundary on: page tables then move as whole tables, not entry by entry. PROT_NONE, costs
// no memory. Throws std::bad_alloc when the address space is limited.
char* reserve_blocks(uint64_t bytes);
// Reserves the one range, once.
void reserve_range();

struct Place {
  int device;      // -1: not ours
  uint32_t block;  // within the device's span
};
Place place_of(uint64_t address);
uint64_t block_address(int device, uint32_t block);

// All memory of all emulated devices lies in one reserved range: [range_begin, range_end).
uint64_t range_begin();
uint64_t range_end();
// True in a process forked from one that used an emulated device: nothing of ours is mapped there.
bool forked();

}  // namespace um::emulated
