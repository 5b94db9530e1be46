// The contents of allocations before a refused step wrote to them, so that the step can be undone.
//
// Two kinds of contents are kept, each before the first write of the running step. A watched allocation (a module's
// buffer) is kept in every step. Once an op is refused and its refusal is postponed to the end of the step (PutOff),
// every allocation that was live at that moment is kept.
//
// Example: a step of 100 ops is refused at op 60. It keeps the running statistics that ops 1 to 60 write, and
// everything that ops 61 to 100 write. Other writes of ops 1 to 60 are not kept; the first parameter or optimizer state
// among them is named in the message.
//
// Managed memory is never kept, because reading it may fault. On a GPU, contents are copied to pinned memory in the
// op's stream.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_safety.h"
#include "engine/participant.h"
#include "memory/fence.h"
#include "memory/host_copies.h"

namespace um {

class StepUndo final : public Participant {
 public:
  explicit StepUndo(DeviceBase& base) : Participant(base, kUndoTurns) {}

  // Keeps the contents of an allocation in each step from now on.
  void watch(Block* block) REQUIRES(device_lock);
  // Begins to keep contents, because an op of this step was refused.
  void begin_refused() REQUIRES(device_lock);
  // Notes an operand that an op writes, before anything is moved for the op.
  void note_write(const Block& block) noexcept REQUIRES(device_lock) {
    if (step_changed_ != step() && !notes(block).watched) note_change(block);
  }
  // Returns a message on what the running step has changed irrevocably. changed() returns it for the last refused step,
  // up to the refusal. Empty: nothing.
  std::string changes() const REQUIRES(device_lock);
  const std::string& changed() const { return changed_; }
  // Returns the serial number of the newest allocation at the refusal; 0: no op was refused.
  uint64_t refused_at() const { return refused_at_; }
  // Stores the next contents to write back, and their present address, after waiting until they are complete. Returns
  // false if there are no more; the step then counts as not refused. Throws um::Error.
  bool take(std::vector<char>* contents, uint64_t* address);

  void begin_op(RunningOp& op) override REQUIRES(device_lock);
  void begin_step(uint32_t step) override REQUIRES(device_lock);
  void freed(Block* block) noexcept override REQUIRES(device_lock);
  // Frees all memory. The device's context is current.
  void close() noexcept;

  HostCopies* swaps_copies = nullptr;  // of chunked memory, while there is any (engine/swapping.h)

 private:
  struct Kept {
    Block* block;
    std::vector<char> contents;  // if kernels run in the host
    HostCopies* its = nullptr;   // otherwise: the pool that owns `copy`
    Block* copy = nullptr;
    Fences::Fence copied = 0;  // the contents are complete after this
  };

  uint32_t step() const REQUIRES(device_lock);
  void note_change(const Block& block) noexcept REQUIRES(device_lock);
  bool is_kept(const Block& block) const;
  HostCopies* copies() REQUIRES(device_lock);
  void forget() noexcept;
  bool keep(Block* block, driver::CUstream stream) REQUIRES(device_lock);
  void drop(Kept* kept) noexcept;

  std::unique_ptr<HostCopies> copies_;  // used if there is no swapping
  std::vector<Kept> kept_;
  uint64_t refused_at_ = 0;
  uint32_t step_changed_ = 0;  // the last step that changed something irrevocably, which `changed_*` describe
  uint64_t changed_bytes_ = 0;
  uint32_t changed_name_ = 0, changed_role_ = 0;
  std::string changed_;  // the message at the refusal
};

}  // namespace um
