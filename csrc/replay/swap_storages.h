// Where the storages of a step are, and what must happen for them to be elsewhere. Whole storages move, as a plan says
// or because an op needs them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/indexed_trace.h"
#include "replay/swap_clock.h"
#include "replay/swap_memory.h"
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

  void write(int32_t op) {
    written = true;
    host_valid = false;
    last_writer = op;
  }
};

class SwapStorages final : CopyListener {
 public:
  // Counts moves in `result`; all but the link's speeds are borrowed.
  SwapStorages(const IndexedTrace& trace, const um_link& link, const um_swap_options& options, um_swap_result& result);

  SwapClock clock;
  SwapMemory memory;
  SwapVictims victims;

  SwapState& state(int32_t storage) { return states_[static_cast<size_t>(storage)]; }
  // What lives on has its index of the next iteration; what does not is gone.
  void next_iteration();
  // Another op: what it pins does not leave before the next one.
  void next_pin() { ++pin_; }
  uint64_t present_pin() const { return pin_; }
  void pin(int32_t storage) { state(storage).pin = pin_; }

  void make(int32_t storage);
  // What is there before the first op has contents. In the first iteration it takes what room there is; where evictions
  // are allowed the rest begins on the host, which is where the first evictions would bring it.
  void place_first(int32_t storage, bool on_host);
  // Memory that a running copy works on is free when the copy ends.
  void end_life(int32_t storage);

  // An op is about to touch it: it is there or on its way when this returns.
  void use(int32_t storage, bool needs_contents);
  // All that ops are about to touch is there, and its mappings are paid for, when this returns.
  void wait_for_arrivals();
  // An event that copies from or to it. Ordered like the work of the compute queue: it waits for the copy, and the host
  // too where it reads.
  void copy_for_host(int32_t storage, bool reads, int64_t bytes);

  void arrive(int32_t storage, bool on_demand);
  void leave(int32_t storage, um_cause cause);
  // A swap-out is not wanted any more. One that runs cannot be stopped, but the memory is not given away.
  void cancel_swap_out(int32_t storage);
  // A swap-in that has not started is not wanted any more.
  void turn_back(int32_t storage);
  // It is whole on the device.
  void be_there(int32_t storage);
  void take_room(int32_t storage);
  void release(int32_t storage);
  void wait_for_arrival(int32_t storage);
  void wait_for_departure(int32_t storage, um_span_kind kind);
  // Swap-ins that found no room, once there is more.
  void retry();

 private:
  void submit(Direction direction, int32_t storage, um_cause cause, bool first);
  void submit_arrival(int32_t storage, bool first);
  bool take_block(int32_t storage);
  void make_room(int32_t storage);
  [[noreturn]] void no_room(int32_t storage);
  Begin begins(Direction direction, const Copy& copy) override;
  void ended(Direction direction, const Copy& copy, int64_t start_ns, uint8_t engine) override;

  const IndexedTrace& trace_;
  const um_swap_options& options_;
  um_swap_result& result_;
  std::vector<SwapState> states_;
  std::vector<int32_t> arrivals_;  // what the present op waits for
  uint64_t pin_ = 0;               // the present op: what it needs does not leave
  uint32_t copies_ = 0;            // serial of the last copy
  uint32_t host_copy_ = 0;         // the copy of a host event that runs; 0: none
  uint64_t freeing_ = 0;           // copies whose end frees memory
  int32_t claimant_ = -1;          // the compute queue waits for room for this one: nobody else takes any
  uint32_t refused_ = 0;           // the last swap-in that found no room
  uint64_t refused_after_;         // so many frees
};

}  // namespace um::simulator
