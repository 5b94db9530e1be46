// Chunked memory: before an op runs, its operands are swapped in and pinned. They may be evicted once the op has ended.
#pragma once

#include <functional>
#include <memory>

#include "base/thread_safety.h"
#include "engine/block_owners.h"
#include "engine/device_base.h"
#include "engine/memory_kind.h"
#include "engine/mover.h"
#include "engine/participant.h"
#include "engine/sampling.h"
#include "engine/small_arenas.h"
#include "engine/step_undo.h"
#include "memory/allocations.h"

namespace um {

class Swapping final : public Participant, public MemoryKind {
 public:
  // `serve` and `describe` are for accesses that no op announced.
  Swapping(DeviceBase& base, SwapEvents& swaps, BlockOwners& owners, Sampling& sampling, StepUndo& step_undo,
           driver::AccessOwner serve, driver::AccessDescriber describe)
      : Participant(base, kSwapTurns),
        owners_(owners),
        swaps_(swaps),
        sampling_(sampling),
        step_undo_(step_undo),
        serve_(serve),
        describe_(describe) {}

  // Adds chunked memory; later calls only change its budgets. Throws um::Error.
  void set(const um_chunk_options& options) REQUIRES(device_lock);
  void read(um_swap_counters* out) REQUIRES(device_lock);
  // Sets who predicts the next uses of allocations; nullptr: they are unknown. Throws um::Error.
  void look_ahead(const Outlook* outlook) REQUIRES(device_lock);
  // Prepares a step that is recorded for planning, so that its placement does not depend on earlier steps. Throws
  // um::Error.
  void begin_anew() REQUIRES(device_lock);
  // Postpones refusals of this step's ops to its end. Returns false, and ops are refused at once, outside of steps and
  // on devices whose kernels do not run in the calling thread.
  bool put_off() REQUIRES(device_lock);
  bool is_refused() const { return has_chunks() && chunks_->put_off.active(); }
  // Ends the postponement, at the end of the step or so that the script can try it again. Throws um::Error if anything
  // was refused. An update that will not run would use `update_tensors` tensors of `update_bytes` each.
  void end_put_off(uint64_t update_bytes = 0, uint64_t update_tensors = 0) REQUIRES(device_lock);
  // The context is current.
  void close() noexcept REQUIRES(device_lock);
  // The driver does not take the memory back, so it is never freed.
  void abandon() noexcept { static_cast<void>(chunks_.release()); }

  Block* make(const Request& request) override REQUIRES(device_lock);
  void use(RunningOp& op, const Operand& operand) override REQUIRES(device_lock);
  void meet(Block* block, void* storage) override REQUIRES(device_lock);
  void lend(Block* block, driver::CUstream stream) override REQUIRES(device_lock);
  void prefetch(Block* block, uint64_t address, uint64_t bytes, bool to_host, driver::CUstream stream) override
      REQUIRES(device_lock);
  bool can_hold(const Block& /*block*/, bool /*lasting*/) const override { return true; }
  void hold(Block* block, bool for_life) override REQUIRES(device_lock);
  void let_go(Block* block) noexcept override REQUIRES(device_lock);
  uint64_t shown(Block* block) override REQUIRES(device_lock);
  void free(Block* block) noexcept override REQUIRES(device_lock);

  // ---- for allocations that may move ----
  // Returns the allocation with this address for life, if it does not lie there now; nullptr: there is none.
  Movable* reserved_at(uint64_t address) const;
  // Swaps the allocation in at its address for life. Returns false if that is impossible. The context is current;
  // throws um::Error.
  bool return_to_reserved(Movable* block, bool write) REQUIRES(device_lock);
  // Swaps the allocation in, and pins it. The context is current; throws um::Error.
  void pin(Movable* block, bool write) REQUIRES(device_lock);
  uint64_t device_bytes(const Block& block) const;
  // Returns whether an allocation of this size is small, and fits within the limit of small ones, which are never
  // evicted.
  bool fits_small(uint64_t bytes) const;
  Mover& mover() const REQUIRES(device_lock) { return chunks_->mover; }
  bool has_chunks() const { return chunks_ != nullptr; }
  // Returns whether the chunks of the step that ends lay where steps like it will have them (Layout::steady).
  bool is_laid_out() const { return has_chunks() && chunks_->memory.layout.steady(); }

  void begin_op(RunningOp& op) override REQUIRES(device_lock);
  void end_op(RunningOp& op) noexcept override REQUIRES(device_lock);
  void begin_step(uint32_t step) override REQUIRES(device_lock);
  void reset_peaks() noexcept override REQUIRES(device_lock);
  void tell(um_memory_stats* out) const noexcept override REQUIRES(device_lock);

  // Ends the oldest lasting export of chunked memory; false: there is none (engine/exports.h).
  std::function<bool()> end_export = [] { return false; };

 private:
  struct Chunks {
    Chunks(DeviceBase& base, SwapEvents& swaps, const um_chunk_options& options);
    MovableMemory memory;
    Mover mover;
    SmallArenas small;
    PutOff put_off;
    const uint64_t small_option;
    uint64_t session_bytes;
  };

  void change(const um_chunk_options& options) REQUIRES(device_lock);
  Movable* make_movable(const Request& request, driver::CUstream stream) REQUIRES(device_lock);
  Movable* make_anyway(uint64_t bytes, RunningOp* op, driver::CUstream stream) REQUIRES(device_lock);
  Block* make_small(const Request& request) REQUIRES(device_lock);
  void note_need(const Mover::Uses& uses, const std::vector<uint64_t>& made_bytes, const RunningOp* op)
      REQUIRES(device_lock);
  [[noreturn]] void refuse(const Mover::Uses& uses, const std::vector<uint64_t>& made_bytes, const RunningOp* op) const
      REQUIRES(device_lock);
  Need need_in_any_budget(const Mover::Uses& uses, const std::vector<uint64_t>& made_bytes) const;
  uint64_t other_chunks() const;
  PresentBudget present_budget() const;
  bool find_room() noexcept REQUIRES(device_lock);
  void unpin(RunningOp& op) noexcept REQUIRES(device_lock);
  void go_on() noexcept REQUIRES(device_lock);

  BlockOwners& owners_;
  SwapEvents& swaps_;
  Sampling& sampling_;
  StepUndo& step_undo_;
  const driver::AccessOwner serve_;
  const driver::AccessDescriber describe_;
  std::unique_ptr<Chunks> chunks_;
  const Outlook* outlook_ = nullptr;
};

}  // namespace um
