// The events of a device, and which allocations are resident on it.
#pragma once

#include "base/thread_safety.h"
#include "engine/event_log.h"
#include "engine/participant.h"
#include "engine/residency.h"
#include "engine/sampling.h"
#include "engine/swap_events.h"
#include "engine/tape.h"
#include "engine/times.h"
#include "memory/backend.h"

namespace um {

// Takes part in the guard's calls while events are recorded on a device that reports them.
class Observation final : public Participant {
 public:
  Observation(DeviceBase& base, EventLog& log, SwapEvents& events, Times& times, Tape& tape, const Sampling& sampling)
      : Participant(base, kEventTurns), log_(log), swaps_(events), times_(times), tape_(tape), sampling_(sampling) {}

  // Throws um::Error.
  void set(bool on) REQUIRES(device_lock);
  void push(const um_event& event) noexcept;
  void tell_label(const Block& block) noexcept REQUIRES(device_lock);
  uint64_t drain(um_event* out, uint64_t capacity) REQUIRES(device_lock);
  // Events that wait to be drained.
  uint64_t waiting() REQUIRES(device_lock);
  uint64_t dropped() const;
  // Returns which allocations were resident; none if that is not known exactly.
  uint64_t residency(um_residency* out, uint64_t capacity) REQUIRES(device_lock);
  // Processes the events that the device has reported until now.
  void collect() noexcept REQUIRES(device_lock);
  // Sets the context to which the device's events are attributed from now on.
  void set_context(uint64_t context) const noexcept;

  void begin_op(RunningOp& op) override REQUIRES(device_lock);
  void end_op(RunningOp& op) noexcept override REQUIRES(device_lock);
  void allocated(Block* block, const RunningOp* op) noexcept override REQUIRES(device_lock);
  void freed(Block* block) noexcept override REQUIRES(device_lock);
  void labelled(const Block& block) noexcept override REQUIRES(device_lock) { residency_.relabelled(block); }
  void reset_peaks() noexcept override REQUIRES(device_lock);

 private:
  // Records a fault service, inside of an op or not.
  void record(const driver::DeviceEvent& event, bool inside) noexcept;
  um_event attribute(const driver::DeviceEvent& event, const OpIdentity& op) const;
  void follow(const driver::DeviceEvent& event, const OpIdentity& op) noexcept;
  bool is_exact() const;
  void recount() noexcept;

  EventLog& log_;
  SwapEvents& swaps_;
  Times& times_;
  Tape& tape_;
  const Sampling& sampling_;
  OpContexts contexts_;
  Residency residency_ = Residency::unknown();  // until events are recorded
  uint64_t dropped_before_ = 0;                 // how many events the device had lost at the last recount
};

}  // namespace um
