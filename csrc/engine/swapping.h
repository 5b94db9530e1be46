// Chunked memory: what an op is given comes onto the device before the op runs, and may leave once it has ended.
#pragma once

#include <memory>

#include "engine/mover.h"
#include "engine/participant.h"
#include "engine/small_arenas.h"
#include "memory/allocations.h"

namespace um {

class Swapping final : public Participant {
 public:
  explicit Swapping(um_device& device) : Participant(device, kSwapTurns) {}

  // From the first time on there is chunked memory; later only its budgets change. Throws um::Error.
  void set(const um_chunk_options& options);
  void read(um_swap_counters* out);
  // How far ahead it is used, until somebody says otherwise; nullptr: nobody knows. Throws um::Error.
  void look_ahead(const Outlook* outlook);
  // A step that is to be planned for begins as it would after any past. Throws um::Error.
  void begin_anew();
  // Ops of this step that find no room are not refused at once, but when it ends. False: they are, as outside of
  // steps, and where kernels run elsewhere.
  bool put_off();
  bool is_refused() const { return has_chunks() && chunks_->put_off.active(); }
  // The step has ended, or ends here so that the script can try it again. Throws um::Error where it was refused
  // anything. `update_bytes`: of which an update that will not run would use `update_tensors` at once.
  void end_put_off(uint64_t update_bytes = 0, uint64_t update_tensors = 0);
  // The context is current.
  void close() noexcept;
  // The driver does not take it back: it stays for good.
  void abandon() noexcept { static_cast<void>(chunks_.release()); }

  // `reachable`: kernels that no op announces may use it. Throws um::Error.
  Block* allocate(uint64_t bytes, const um_placement& placement, const Birth& birth, RunningOp* op,
                  driver::CUstream stream, bool reachable);
  // Of one that may move, as all that follows.
  void end(Block* block) noexcept;
  // The allocation that has an address for life and does not lie there now; nullptr: there is none.
  Movable* reserved_at(uint64_t address) const;
  // It lies at that address from now on, on the device. False: it cannot. The context is current; throws um::Error.
  bool return_to_reserved(Movable* block, bool write);
  // On the device, and pinned. The context is current; throws um::Error.
  void hold(Movable* block, bool write);
  uint64_t device_bytes(const Block& block) const;
  // Whether so many bytes find room on the device for good, as they are few.
  bool stays(uint64_t bytes) const;
  Mover& mover() const { return chunks_->mover; }
  HostCopies& copies() const { return chunks_->memory.copies; }
  bool has_chunks() const { return chunks_ != nullptr; }
  // Whether the chunks of the step that ends lay where they will lie in steps like it (Layout::settled).
  bool is_laid_out() const { return has_chunks() && chunks_->memory.layout.settled(); }

  void begin_op(RunningOp& op) override;
  void end_op(RunningOp& op) noexcept override;
  void begin_step(uint32_t step) override;
  void reset_peaks() noexcept override;
  void tell(um_memory_stats* out) const noexcept override;

 private:
  struct Chunks {
    Chunks(um_device& device, const um_chunk_options& options);
    MovableMemory memory;
    Mover mover;
    SmallArenas small;
    PutOff put_off;
    const uint64_t small_option;
    uint64_t session_bytes;
  };

  void change(const um_chunk_options& options);
  Movable* make(uint64_t bytes, RunningOp* op, driver::CUstream stream, bool reachable);
  Movable* make_anyway(uint64_t bytes, RunningOp* op, driver::CUstream stream);
  Block* make_small(uint64_t bytes, const um_placement& placement, const Birth& birth, RunningOp* op,
                    driver::CUstream stream);
  void note_need(const Mover::Uses& uses, const std::vector<uint64_t>& made_bytes, const RunningOp* op);
  [[noreturn]] void refuse(const Mover::Uses& uses, const std::vector<uint64_t>& made_bytes, const RunningOp* op) const;
  Need need_in_any_budget(const Mover::Uses& uses, const std::vector<uint64_t>& made_bytes) const;
  uint64_t other_chunks() const;
  PresentBudget present_budget() const;
  bool find_room() noexcept;
  void unpin(RunningOp& op) noexcept;
  void go_on() noexcept;

  std::unique_ptr<Chunks> chunks_;
  const Outlook* outlook_ = nullptr;
};

}  // namespace um
