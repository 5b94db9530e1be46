// The allocations resident on the emulated device, and the peaks of their bytes: for each role, for each tensor, and in
// total while each op ran.
//
// This class is notified of every block that gets or loses its device copy, and of every allocation that is made, freed
// or labelled, in that order. Names and roles of tensors are often known only later. So the changes are kept, and
// summed up under the present labels when they are read.
//
// Example: an unnamed tensor of 4 MiB arrives during op 3 and is named "w" after op 5. read() then attributes the peak
// of 4 MiB to "w".
//
// Not thread-safe: callers hold the device's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "engine/notes.h"
#include "engine/op_identity.h"
#include "memory/arena.h"
#include "memory/statistics.h"

namespace um {

class Residency {
 public:
  // With more tensors or ops than this, nothing is known until clear().
  static constexpr size_t kMostSubjects = size_t{1} << 16;
  // After this many changes they are summed up under the labels of that time.
  static constexpr size_t kMostChanges = size_t{1} << 20;

  // unknown() returns an object that knows nothing until clear(); give_up() turns this one into that.
  static Residency unknown() noexcept;
  void give_up() noexcept;

  // The block at `address`, a multiple of 2 MiB, has a device copy from now on, or has none. Repeating a call changes
  // nothing. `arena` lies there; nullptr: it was closed. If the block shows chunks, which other blocks may show too, it
  // does not count in the bytes that ops find on the device.
  void arrived(uint64_t address, const Arena* arena, bool shows_chunks = false) noexcept;
  void left(uint64_t address, const Arena* arena, bool shows_chunks = false) noexcept;
  // An allocation counts from now on, or not any more, or has another label. Changes of blocks that happened before are
  // reported before this.
  void add(Block* block) noexcept;
  void remove(Block* block) noexcept;
  void relabelled(const Block& block) noexcept;
  // The op runs now, and this many bytes of chunks are held. Outside of ops all fields are 0.
  void note(const OpIdentity& op, uint64_t chunk_bytes) noexcept;
  // The op has run for this long.
  void ran(const OpIdentity& op, int64_t compute_ns) noexcept;

  // Starts the peaks again from the present state, and forgets ops and tensors that ended.
  void reset_peaks() noexcept;
  // Forgets everything: nothing is resident, and no allocation counts.
  void clear() noexcept;

  // Returns false after memory ran short, or if there were too many tensors or ops.
  bool known() const { return known_; }
  // Returns how many rows there are, of which `out` gets at most `capacity`; 0 unless known().
  uint64_t read(um_residency* out, uint64_t capacity) noexcept;

 private:
  // One row of a table: the allocations with one name, or unnamed ones with one birthplace and size.
  struct Tensor {
    uint64_t bytes;
    uint32_t role, name, birth_op, birth_module;
    bool operator<(const Tensor& other) const;
  };
  using Op = std::tuple<uint32_t, uint32_t, uint32_t>;  // its name, module and phase
  // An allocation that lives, or lived when changes were last summed up. Its index is `Notes::tracked` - 1.
  struct Tracked {
    Tensor label;
    uint64_t bytes;  // on the device, before the changes
    bool live;
  };
  struct Change {
    uint32_t tracked;
    int64_t bytes;
  };

  static Tensor tensor_of(const Record& record);
  uint64_t resident_bytes(const Block& block) const;
  void change(uint64_t address, const Arena* arena, int64_t sign) noexcept;
  void change(uint32_t tracked, int64_t bytes) noexcept;
  // Stores something for which memory may be short.
  template <class Note>
  void keep(const Note& note) noexcept;
  void sum_up() noexcept;
  void add_up();

  std::unordered_set<uint64_t> on_device_;  // blocks, as address / 2 MiB
  uint64_t counted_bytes_ = 0;              // of blocks that show no chunks
  Level roles_[UM_ROLE_COUNT];
  std::vector<Tracked> tracked_;
  std::vector<uint32_t> unused_;  // indices of tracked_
  std::vector<Change> changes_;   // in order
  std::map<Tensor, Level> tensors_;
  struct OpSums {
    uint64_t peak_bytes;  // the maximum of counted_bytes_ plus the bytes of chunks
    int64_t compute_ns;
  };
  std::map<Op, OpSums> ops_;
  bool known_ = true;
};

}  // namespace um
