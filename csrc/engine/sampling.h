// Samples steps of a CUDA device: chooses them, and translates CUPTI's records of a step to the counters and events
// that the emulated device would report.
//
// The device is idle at both ends of a sampled step. A record has an address and a time: OpTimeline tells which op ran
// at that time, and BlockHistory which allocation lay at that address.
//
// Example: a record says that 2 MiB were copied to the device at 10 ms for address A. Op 42 ran from 9 to 12 ms, and
// tensor "w" lay at A. So the step has an event of 2 MiB for "w" in op 42.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/thread_safety.h"
#include "cupti/collector.h"
#include "engine/block_history.h"
#include "engine/event_log.h"
#include "engine/op_timeline.h"
#include "engine/participant.h"
#include "engine/stalls.h"
#include "engine/step_times.h"
#include "engine/swap_events.h"
#include "engine/tape.h"
#include "engine/times.h"
#include "memory/backend.h"

namespace um {

class Sampling final : public Participant {
 public:
  // Events go to `log` while `swaps` says that they are recorded.
  Sampling(DeviceBase& base, EventLog& log, const SwapEvents& swaps, Times& times, const Tape& tape);
  // Abandons a step that is being sampled.
  ~Sampling() override { close(); }
  void close() noexcept;

  // Samples every n-th step from now on; 0: none. Throws um::Error.
  void set_every(uint32_t every) REQUIRES(device_lock);
  // Begins the log of the next step's time, which starts when times were last read, unless a step is running.
  void approach() noexcept REQUIRES(device_lock);
  // Called before managed memory is allocated, so that no record of it is missed. Running ops began without faults.
  // Throws um::Error.
  void expect_managed() REQUIRES(device_lock);
  // Reports the counters of all sampled steps, and nothing before the first.
  void tell(um_counters* out) const REQUIRES(device_lock);
  const um_sampling& read() const { return read_; }
  // Returns how long the ops of the last sampled step ran, until the next step begins.
  const std::vector<um_residency>& ran() const { return ran_; }

  Stalls* stalls = nullptr;  // of chunked memory, while there is any (engine/swapping.h)

  // In a sampled step, measures how long the stream and this op stall for the work of `given`, which evicts pages. The
  // context is current.
  template <class Given>
  void stands(const OpIdentity& op, driver::CUstream stream, const Given& given) {
    const driver::CUevent begin = running_ ? timeline_.mark(stream) : nullptr;
    given();
    if (begin != nullptr) note({op, begin, timeline_.mark(stream)});
  }

  void begin_op(RunningOp& op) override REQUIRES(device_lock);
  void end_op(RunningOp& op) noexcept override REQUIRES(device_lock);
  // A failure becomes the reason why the step is not sampled.
  void begin_step(uint32_t step) override REQUIRES(device_lock);
  void end_step() override REQUIRES(device_lock);
  void freed(Block* block) noexcept override REQUIRES(device_lock);
  using Participant::tell;

 private:
  // A record with the op and the allocation to which it is attributed.
  struct Attributed {
    cupti::Sample sample{};
    int64_t service_ns = 0;  // of fault groups, and of pages that a budget evicts
    bool leaves = false;     // the first record of a page that a budget evicts
    OpIdentity op;
    const Record* record = nullptr;
  };
  struct Departure {
    OpIdentity op;
    driver::CUevent begin, end;
    int64_t begin_ns = 0, end_ns = 0;
    std::vector<Attributed*> pages{};  // the first record of each page
  };
  void note(const Departure& departure) noexcept;
  void settle_departures();
  Departure* departure_at(int64_t ns);
  void share_departures(std::vector<Attributed>* all);
  bool is_due(uint32_t step) const REQUIRES(device_lock);
  bool has_managed() const;
  void expect_faults() REQUIRES(device_lock);
  void follow_stalls(bool on) REQUIRES(device_lock);
  void spend(const std::vector<Attributed>& all) REQUIRES(device_lock);
  driver::CUresult finish_device(Wait name) const {
    return left_out(name) ? driver::CUDA_SUCCESS : backend_.call().ctx_synchronize();
  }
  void fail(const std::string& reason);
  cupti::Collected collect();
  std::vector<Attributed> tell(const std::vector<cupti::Sample>& samples, int64_t end_ns) REQUIRES(device_lock);
  bool place(Attributed* attributed, uint32_t reached) const;
  static void share_service(std::vector<Attributed>* all);
  void account(const Attributed& attributed, EventLog* events);
  void transfer(const Attributed& attributed, bool to_device, EventLog* events);
  void account_departures(EventLog* events);
  void add_last();
  static um_event event_of(const Attributed& attributed, um_event_kind kind, um_cause cause);

  const Backend& backend_;
  EventLog& log_;
  const SwapEvents& swaps_;
  Times& times_;
  const Tape& tape_;
  OpTimeline timeline_;
  BlockHistory history_;
  std::vector<Departure> departures_;  // after settle_departures(), in order, those whose times are known
  std::vector<Stretch> stood_;         // for swaps
  std::vector<um_residency> ran_;
  bool running_ = false, collecting_ = false;
  uint32_t step_ = 0, op_index_ = 0;
  int64_t start_ns_ = 0;
  uint64_t evicted_page_ = 0;  // the number of the 2 MiB page whose eviction was reported last
  um_counters totals_{};
  um_sampling read_{};
};

}  // namespace um
