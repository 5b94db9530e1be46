// One training step, executed on paper: a compute queue, the copy engines, a host thread that runs ahead, and for
// every storage where it is. Whole storages move, as a plan says or because an op needs them.
//
// Time is that of the compute queue, `compute_ns_`; the link is never ahead of it except while the queue stands still.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/indexed_trace.h"
#include "planning/allocator.h"
#include "replay/swap_link.h"
#include "replay/swap_victims.h"
#include "umadvise.h"

namespace um::simulator {

// device -> leaving -> host -> arriving -> device; dropped: no contents anywhere; dead: not allocated.
enum class Place : uint8_t { dead, device, leaving, host, arriving, dropped };

struct SwapState {
  int64_t block = Allocator::kNoRoom;  // of the device memory it holds
  uint64_t pin = 0;                    // the op that it was last pinned for
  uint64_t made_again = 0;             // likewise the last that ran again and wrote all of it
  uint32_t copy = 0;                   // serial of its copy that is queued or runs; 0: none
  int32_t birth = -1;                  // op of this iteration; -1: it was there when that began
  int32_t last_writer = -1;            // likewise
  Place place = Place::dead;
  bool copy_runs = false;
  bool on_demand = false;    // its swap-in: no plan asked for it in time
  bool copying_out = false;  // on the device: its swap-out was cancelled while it ran
  bool written = false;      // has contents
  bool host_valid = false;   // and the host has the same
};

class SwapExecutor final : CopyListener {
 public:
  // Throws Error when trace or plan is not one.
  SwapExecutor(const um_trace& trace, const um_plan* plan, const um_link& link, const um_swap_options& options);

  // Throws Error: UM_OUT_OF_DEVICE_MEMORY when something finds no room, UM_INVALID_ARGUMENT when the plan is wrong.
  void run();
  const um_swap_result& result() const { return result_; }
  std::vector<um_span> take_spans() { return std::move(spans_); }

 private:
  // swap_executor.cpp: the passing of time
  void begin_iteration();
  void carry_over();
  void step(int32_t op);
  void wait_for_host();
  void use_all(int32_t op);
  void events_inside(int32_t op);
  void events_after(int32_t op);
  void event(uint64_t row);
  void execute(int64_t duration_ns, um_span_kind kind);
  void settle_writes(int32_t op);
  void stand_still(int64_t until_ns, um_span_kind kind, int32_t storage, int64_t* account);
  void pay_for_mappings();
  void copy_for_host(uint64_t row);
  void span(int64_t start_ns, int64_t end_ns, um_span_kind kind, int32_t storage);
  void copy_span(Direction direction, const Copy& copy, int64_t start_ns, uint8_t engine);

  // swap_plan.cpp: what the plan says
  void check_plan() const;
  void run_actions(int32_t op, bool after);
  void act(uint64_t row);
  void swap_in(int32_t storage);
  void swap_out(int32_t storage);
  void wait(int32_t storage);
  void drop(int32_t storage);
  void find_first_actions();
  [[noreturn]] void wrong_plan(uint64_t row, const std::string& why) const;

  // swap_residency.cpp: where storages are
  SwapState& state(int32_t storage) { return states_[static_cast<size_t>(storage)]; }
  void make(int32_t storage);
  void place_first(int32_t storage);
  void end_life(int32_t storage);
  void use(int32_t storage, bool needs_contents);
  void arrive(int32_t storage, bool on_demand);
  void submit_arrival(int32_t storage, bool first);
  void leave(int32_t storage, um_cause cause);
  void stay(int32_t storage);
  void turn_back(int32_t storage);
  void release(int32_t storage);
  void free_block(int64_t block, int64_t bytes);
  bool is_orphan(uint32_t copy) const;
  void free_orphan(uint32_t copy);
  bool take_block(int32_t storage);
  void take_block_waiting(int32_t storage);
  void make_room(int32_t storage);
  void wait_for_arrival(int32_t storage);
  void wait_for_departure(int32_t storage, um_span_kind kind);
  int64_t taken_alone(const std::set<int32_t>& storages) const;
  [[noreturn]] void no_room(int32_t storage);
  void note_op(int32_t op);
  void note_peak();
  Begin begins(Direction direction, const Copy& copy) override;
  void ended(Direction direction, const Copy& copy, int64_t start_ns, uint8_t engine) override;

  // swap_recompute.cpp
  void recompute(uint64_t row);
  void find_last_touches(uint64_t row, int32_t first, int32_t last);
  void rerun(uint64_t row, int32_t target, int32_t last_op);
  void use_again(uint64_t row, uint64_t access, int32_t target, int32_t last_op);
  [[noreturn]] void cannot_run_again(uint64_t row, int32_t storage, const std::string& why) const;
  void borrow(int32_t storage);
  bool is_borrowed(int32_t storage) const;
  void give_back_borrowed();

  const IndexedTrace trace_;
  const um_plan* const plan_;
  const um_swap_options options_;
  std::unique_ptr<Allocator> allocator_;
  SwapLink link_;
  SwapVictims victims_;

  std::vector<SwapState> states_;
  std::vector<uint8_t> starts_on_host_;  // the plan's first action for it is to swap it in
  struct Orphan {
    uint32_t copy;
    int64_t block, bytes;
  };
  std::vector<Orphan> orphans_;          // memory of storages that are gone, held by a copy that still runs
  std::vector<int32_t> borrowed_;        // memory of storages that are not there, for ops that run again
  std::vector<int32_t> last_touch_;      // likewise: the last of these ops that touches a storage
  std::vector<int32_t> arrivals_;        // what the present op waits for
  std::vector<int32_t> frees_after_op_;  // inside the present op, not given to anything before its end

  int64_t compute_ns_ = 0, host_ns_ = 0;
  uint64_t pin_ = 0;          // the present op: what it needs does not leave
  uint64_t rerun_begin_ = 0;  // that when the present recomputation began
  int32_t rerun_first_ = -1;  // its first op
  uint32_t copies_ = 0;       // serial of the last copy
  uint32_t host_copy_ = 0;    // the copy of a host event that runs; 0: none
  uint64_t freeing_ = 0;      // copies whose end frees memory
  int32_t claimant_ = -1;     // the compute queue waits for room for this one: nobody else takes any
  bool freed_ = true;         // memory became free since a swap-in found none
  uint32_t refused_ = 0;      // that swap-in
  uint64_t chunks_paid_ = 0;
  int64_t live_bytes_ = 0, live_at_peak_bytes_ = 0;
  int32_t op_ = -1;          // which of them runs, again or for the first time
  int32_t running_op_ = -1;  // which of them comes in the trace now
  uint32_t iteration_ = 0;
  uint64_t next_action_ = 0;

  um_swap_result result_{};
  std::vector<um_span> spans_;
  size_t last_span_ = 0;  // of the compute queue; none where there are no spans
};

}  // namespace um::simulator
