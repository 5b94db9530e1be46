// Contents of allocations as they were before a refused step wrote to them, so that the step can be undone.
//
// Two kinds of contents are kept, each before the first write of the running step. An allocation that is watched (a
// module's buffer) is kept in every step. Once an op was refused and its refusal put off to the end of the step
// (PutOff), every allocation that lived before that moment is kept. A step of 100 ops that is refused at op 60 thus
// keeps the running statistics that ops 1 to 60 write, and whatever ops 61 to 100 write. What else ops 1 to 60 wrote is
// not kept: of that the first parameter or optimizer state is known by name. Managed memory is never kept, as reading
// it may fault. On a GPU contents are copied to page-locked memory in the order of the op's stream. Device's lock as
// for all.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/participant.h"
#include "memory/fence.h"
#include "memory/host_copies.h"

namespace um {

class StepUndo final : public Participant {
 public:
  explicit StepUndo(um_device& device) : Participant(device, kUndoTurns) {}

  // Keeps an allocation's contents in each step from now on.
  void watch(Block* block);
  // Takes part from now on: an op of this step was refused.
  void begin_refused();
  // Notes an op's operand that is written, before anything moves for it.
  void note_write(const Block& block) noexcept {
    if (step_changed_ != step() && !notes(block).watched) note_change(block);
  }
  // What the running step has changed for good until now, for a message, and what the one that was refused last had
  // changed before that; empty: nothing.
  std::string changes() const;
  const std::string& changed() const { return changed_; }
  // The latest allocation at the time of the refusal; 0: nothing was refused.
  uint64_t refused_at() const { return refused_at_; }
  // The next contents to write back, and where they belong now; the host waits until they are whole. False: there are
  // no more, and the step counts as one that was not refused yet. Throws um::Error.
  bool take(std::vector<char>* contents, uint64_t* address);

  void begin_op(RunningOp& op) override;
  void begin_step(uint32_t step) override;
  void freed(Block* block) noexcept override;
  // Gives back all memory. The device's context is current.
  void close() noexcept;

 private:
  struct Kept {
    Block* block;
    std::vector<char> contents;  // where kernels run in the host
    HostCopies* its = nullptr;   // elsewhere: where the copy in the host's memory is from
    Block* copy = nullptr;
    Fences::Fence copied = 0;  // whole after this
  };

  uint32_t step() const;
  void note_change(const Block& block) noexcept;
  bool is_kept(const Block& block) const;
  HostCopies* copies();
  void forget() noexcept;
  bool keep(Block* block, driver::CUstream stream);
  void drop(Kept* kept) noexcept;

  std::unique_ptr<HostCopies> copies_;  // where nothing is swapped
  std::vector<Kept> kept_;
  uint64_t refused_at_ = 0;
  uint32_t step_changed_ = 0;  // the last one that changed anything for good: `changed_*` is of that
  uint64_t changed_bytes_ = 0;
  uint32_t changed_name_ = 0, changed_role_ = 0;
  std::string changed_;  // its words, from the refusal on
};

}  // namespace um
