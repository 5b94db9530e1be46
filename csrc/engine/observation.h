// The events of a device, and which allocations are resident on it.
#pragma once

#include "engine/event_log.h"
#include "engine/participant.h"
#include "engine/residency.h"
#include "engine/swap_events.h"
#include "memory/backend.h"

namespace um {

// Takes part in the guard's calls while events are recorded on a device that reports them.
class Observation final : public Participant {
 public:
  explicit Observation(um_device& device) : Participant(device, kEventTurns) {}

  // Throws um::Error.
  void set(bool on);
  void push(const um_event& event) noexcept;
  void tell_label(const Block& block) noexcept;
  // Returns nullptr if events are not recorded.
  EventLog* wanted() { return swaps.on ? &log_ : nullptr; }
  uint64_t drain(um_event* out, uint64_t capacity);
  // Events that wait to be drained.
  uint64_t waiting();
  uint64_t dropped() const;
  // Returns which allocations were resident; none if that is not known exactly.
  uint64_t residency(um_residency* out, uint64_t capacity);
  // Processes the events that the device has reported until now.
  void collect() noexcept;
  // Sets the context to which the device's events are attributed from now on.
  void set_context(uint64_t context) const noexcept;

  void begin_op(RunningOp& op) override;
  void end_op(RunningOp& op) noexcept override;
  void allocated(Block* block, const RunningOp* op) noexcept override;
  void freed(Block* block) noexcept override;
  void labelled(const Block& block) noexcept override { residency_.relabelled(block); }
  void reset_peaks() noexcept override;

 private:
  um_event attribute(const emulated::Event& event, const OpIdentity& op) const;
  void follow(const emulated::Event& event, const OpIdentity& op) noexcept;
  bool is_exact() const;
  void recount() noexcept;

  EventLog log_;
  OpContexts contexts_;
  Residency residency_ = Residency::unknown();  // until events are recorded
  uint64_t dropped_before_ = 0;                 // how many events the device had lost at the last recount

 public:
  SwapEvents swaps{log_};
};

}  // namespace um
