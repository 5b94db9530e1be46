// Where the blocks of a simulated device are: on the device, on the host, or nowhere.
#pragma once

#include <cstdint>
#include <vector>

#include "devices/resident_blocks.h"
#include "um/block_ranges.h"
#include "um/model.h"

namespace um::simulator {

// Addresses that no process of a 64-bit x86 or Arm Linux has unless it asks for more than 47 bits, and which the
// library's address map holds all the same.
inline constexpr uint64_t kFirstAddress = uint64_t{1} << 47;
inline constexpr int kMostDevices = 64;
inline constexpr uint64_t kSpanBytes = kFirstAddress / kMostDevices;
inline constexpr uint32_t kSpanBlocks = static_cast<uint32_t>(kSpanBytes / kBlockBytes);

enum class Kind : uint8_t { free, managed, plain, reserved };

class BlockTable {
 public:
  struct Block {
    int64_t ready_ns;  // when the last prefetch beside the ops will have brought it
    Kind kind;
    uint8_t tag;
    bool on_device, on_host, mapped_once, preferred_here;
  };

  // `device` is the index of its span.
  explicit BlockTable(int device) : base_(kFirstAddress + static_cast<uint64_t>(device) * kSpanBytes) {}

  Block& operator[](uint32_t index) { return blocks_[index]; }
  const Block& operator[](uint32_t index) const { return blocks_[index]; }
  uint64_t address_of(uint32_t index) const { return base_ + index * kBlockBytes; }
  uint32_t index_of(uint64_t address) const { return static_cast<uint32_t>((address - base_) / kBlockBytes); }
  template <class Each>
  void each_piece(uint64_t address, uint64_t bytes, const Each& each) const {
    each_block_of(base_, address, bytes, each);
  }
  bool managed(uint64_t address, uint64_t bytes) const;  // the whole range is managed memory

  // Blocks that were free.
  void begin(uint32_t first, uint32_t count, Kind kind);
  void place_on_device(uint32_t index);
  void end(uint32_t index);
  // What an outcome changes.
  void follow(const Outcome& outcome);

  void residency(uint64_t address, uint64_t bytes, uint64_t* device_blocks, uint64_t* host_blocks) const;
  void tag(uint64_t address, uint64_t bytes, uint32_t tag);
  void reset_peaks() { resident_.reset_peaks(); }
  void tell(driver::DeviceTotals& totals) const;

 private:
  const uint64_t base_;
  std::vector<Block> blocks_;  // as far up as any was ever allocated
  devices::ResidentBlocks resident_;
  uint64_t host_blocks_ = 0;
};

}  // namespace um::simulator
