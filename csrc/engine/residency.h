// Who lies on the emulated device, and the most of it at once: for each role, for each tensor, and in all while each op
// ran. Told of every block that comes or goes and of every allocation that begins, ends or changes its label, in the
// order in which that happens. What tensors are called, and what they are for, is often known only after they were
// made: so changes are kept, and summed up by the labels that allocations have when somebody asks. Not thread-safe: the
// device's lock is held.
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
  // More tensors or ops than this are not told apart: then nothing is known until `clear`.
  static constexpr size_t kMostSubjects = size_t{1} << 16;
  // After so many changes they are summed up by the labels of that time.
  static constexpr size_t kMostChanges = size_t{1} << 20;

  // Of which nothing is known until `clear`; and no longer.
  static Residency unknown() noexcept;
  void give_up() noexcept;

  // The block at `address`, a multiple of 2 MiB, has a device copy from now on, or none; `arena` is what lies there,
  // nullptr when it is gone. What is so already may be said again. Where the block shows chunks, which others may show
  // too, it does not count in what ops find on the device.
  void arrived(uint64_t address, const Arena* arena, bool shows_chunks = false) noexcept;
  void left(uint64_t address, const Arena* arena, bool shows_chunks = false) noexcept;
  // An allocation counts from now on, or no longer, or has another label. Where several blocks' news wait, they come
  // before an allocation's.
  void add(Block* block) noexcept;
  void remove(Block* block) noexcept;
  void relabelled(const Block& block) noexcept;
  // The op runs now, and so many bytes of chunks are taken; all 0 stands for what happens outside of ops.
  void note(const OpIdentity& op, uint64_t chunk_bytes) noexcept;
  // It has run for so long.
  void ran(const OpIdentity& op, int64_t compute_ns) noexcept;

  // The peaks start again from what is there now; ops and tensors that are gone are forgotten.
  void reset_peaks() noexcept;
  // As new: nothing is on the device and nothing counts.
  void clear() noexcept;

  // False after memory ran short or there were too many subjects.
  bool known() const { return known_; }
  // Returns how many there are, `out` gets at most `capacity`; none unless known.
  uint64_t read(um_residency* out, uint64_t capacity) noexcept;

 private:
  // One row of a table: the allocations of one name, or of one birthplace and size where they have none.
  struct Tensor {
    uint64_t bytes;
    uint32_t role, name, birth_op, birth_module;
    bool operator<(const Tensor& other) const;
  };
  using Op = std::tuple<uint32_t, uint32_t, uint32_t>;  // its name, module and phase
  // An allocation that lives, or lived when the changes were summed up last; its index is `Notes::tracked` less one.
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
  // Notes something for which there may be no memory.
  template <class Note>
  void keep(const Note& note) noexcept;
  void sum_up() noexcept;
  void add_up();

  std::unordered_set<uint64_t> on_device_;  // blocks, by their numbers in the address space
  uint64_t counted_bytes_ = 0;              // of those that show no chunks
  Level roles_[UM_ROLE_COUNT];
  std::vector<Tracked> tracked_;
  std::vector<uint32_t> unused_;  // of tracked_
  std::vector<Change> changes_;   // in order
  std::map<Tensor, Level> tensors_;
  struct OpSums {
    uint64_t peak_bytes;  // of counted_bytes_ and of chunks
    int64_t compute_ns;
  };
  std::map<Op, OpSums> ops_;
  bool known_ = true;
};

}  // namespace um
