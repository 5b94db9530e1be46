// The page rules of unified memory, one 2 MiB block at a time: where a fault goes, what advice changes, who is evicted.
//
// No I/O, no allocation after construction, no locks: the emulated device asks it inside a signal handler and does what
// it says; a simulator asks it and adds up what it says. Sources: NVIDIA/open-gpu-kernel-modules 595.45.04,
// kernel-open/nvidia-uvm (named `uvm/<file>` below).
#pragma once

#include <cstdint>

#include "base/lazy_array.h"
#include "um/device_chunks.h"

namespace um {

inline constexpr uint64_t kBlockBytes = uint64_t{2} * 1024 * 1024;  // uvm/uvm_va_block_types.h

enum class Processor : uint8_t { host, device };
enum class Cause : uint8_t { user, coherence, speculative, eviction, access_counter };  // uvm/uvm_types.h
inline constexpr int kCauses = 5;

// What the caller must do to the data, in this order. Mappings are not listed: when the list is done, `mapping(block)`
// of every block named in it (and of the block asked about) says how the device may see it.
enum class Do : uint8_t {
  evict_copy,   // copy device -> host, then release the device chunk
  evict_drop,   // release the device chunk: the host copy is valid, or the contents are discarded
  zero_device,  // take a device chunk, fill with zeros
  zero_host,    // take host memory, fill with zeros
  copy_h2d,     // take a device chunk, copy host -> device (host memory stays until drop_host)
  copy_d2h,     // copy device -> host (the chunk stays until drop_device)
  drop_host,    // the host copy is no longer valid: release it
  drop_device,  // the device copy is no longer valid: release the chunk
};
struct Action {
  Do what;
  Cause cause;
  uint32_t block;
};

// How the device sees a block. `remote_*`: the device works on the host copy over the link.
enum class Mapping : uint8_t { none, device_read, device_write, remote_read, remote_write };

struct Outcome {
  static constexpr int kMostActions = 8;
  Action actions[kMostActions];
  uint8_t count = 0;
  bool fault = false;        // the access was not covered by the present mapping
  bool first_touch = false;  // the block was resident nowhere
  bool collapse = false;     // a write ended a duplicate
  bool remote_map = false;   // the device got a remote mapping of this block that it did not have
};

struct Counters {
  int64_t fault_groups = 0;  // device faults, one per block and service
  int64_t host_fault_groups = 0;
  int64_t first_touches = 0;  // faults and prefetches of blocks that were resident nowhere
  int64_t bytes_h2d[kCauses] = {};
  int64_t bytes_d2h[kCauses] = {};
  int64_t evictions = 0;          // with a copy to the host
  int64_t evictions_dropped = 0;  // without: duplicated or discarded
  int64_t collapses = 0;
  int64_t remote_maps = 0;  // evicted blocks included that AccessedBy maps again
};

enum class Advice : uint8_t {  // the driver's six calls, in pairs
  set_read_mostly,
  unset_read_mostly,
  set_preferred_location,
  unset_preferred_location,
  set_accessed_by,
  unset_accessed_by,
};

class Model {
 public:
  // Room for `blocks` blocks and `device_chunks` chunks of device memory. Throws std::bad_alloc.
  Model(uint32_t blocks, uint32_t device_chunks) : blocks_(blocks), chunks(&blocks_[0], device_chunks) {}
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Life of a range. After `allocate` a block is resident nowhere with no advice. `release` forgets the block, frees
  // its chunk and gives no actions: the caller releases whatever memory it holds for it.
  void allocate(uint32_t first, uint32_t count);
  void release(uint32_t block);

  // A load or store by `processor`. No fault: empty outcome.
  Outcome access(uint32_t block, Processor processor, bool write);
  // Migration asked for by the user (cuMemPrefetchAsync); refreshes the eviction order even when nothing moves.
  Outcome prefetch(uint32_t block, Processor to);
  // Advice on one block; `processor` is the location of preferred_location / accessed_by. Accessed by the host changes
  // nothing: it cannot map device memory.
  Outcome advise(uint32_t block, Advice advice, Processor processor);
  // Contents no longer needed (cuMemDiscardBatchAsync): indeterminate until written, never copied, evicted first.
  // Takes the device's mapping away.
  void discard(uint32_t block);

  // Plain device memory: takes one chunk away from managed memory, evicting when needed. `outcome` gets the eviction.
  // False when every chunk is pinned or taken.
  bool take_chunk(Outcome& outcome);

  Mapping mapping(uint32_t block) const;
  bool resident(uint32_t block, Processor processor) const {
    return processor == Processor::device ? blocks_[block].on_device : blocks_[block].on_host;
  }
  bool allocated(uint32_t block) const { return blocks_[block].allocated; }
  static constexpr uint32_t kNone = rules::kNone;

  const Counters& counters() const { return counters_; }

 private:
  LazyArray<rules::Block> blocks_;

 public:
  DeviceChunks chunks;  // what is free, who is pinned, who leaves next

 private:
  // Only for accesses that the present mapping does not cover.
  Outcome device_fault(uint32_t index, bool write);
  Outcome host_fault(uint32_t index, bool write);
  void set_read_mostly(uint32_t index);
  void unset_read_mostly(uint32_t index, Outcome& outcome);
  void set_preferred_location(uint32_t index, rules::Location location, Outcome& outcome);
  bool map_accessed_by(uint32_t index);
  void add(Outcome& outcome, Do what, Cause cause, uint32_t index);
  void drop_device(uint32_t index, Cause cause, Outcome& outcome);
  void drop_host(uint32_t index, Cause cause, Outcome& outcome);
  void fill_device(uint32_t index, Cause cause, Outcome& outcome);
  void fill_host(uint32_t index, Cause cause, Outcome& outcome);
  void share_or_leave_device(uint32_t index, bool duplicate, Cause cause, Outcome& outcome);
  void evict(uint32_t index, Outcome& outcome);
  bool make_room(Outcome& outcome);
  void note(const rules::Block& block, bool write, Outcome& outcome);

  Counters counters_;
};

}  // namespace um
