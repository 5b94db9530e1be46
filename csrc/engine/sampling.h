// The sampled steps of a CUDA device: which they are, and what CUPTI's records of one say in this project's words, as
// the emulated device's counters and events.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cupti/collector.h"
#include "engine/block_history.h"
#include "engine/event_log.h"
#include "engine/op_timeline.h"
#include "engine/participant.h"
#include "engine/step_times.h"
#include "memory/backend.h"

namespace um {

class Sampling final : public Participant {
 public:
  explicit Sampling(um_device& device);
  // A step that is being sampled is given up.
  ~Sampling() override { close(); }
  void close() noexcept;

  // Throws um::Error.
  void set_every(uint32_t every);
  // The time of the next step has begun, when times were read last, if none has.
  void approach() noexcept;
  // Managed memory is about to be made, so that no record of the first is missed. An op that runs has begun without
  // faults. Throws um::Error.
  void expect_managed();
  // Of all sampled steps; untouched before the first.
  void tell(um_counters* out) const;
  const um_sampling& read() const { return read_; }
  // For how long the ops of the step that has just been sampled ran; none from the next step on.
  const std::vector<um_residency>& ran() const { return ran_; }

  // In a sampled step a stream, and this op in it, stand still for what it is given in `given`: pages leave. The
  // context is current.
  template <class Given>
  void stands(const OpIdentity& op, driver::CUstream stream, const Given& given) {
    const driver::CUevent begin = running_ ? timeline_.mark(stream) : nullptr;
    given();
    if (begin != nullptr) note({op, begin, timeline_.mark(stream)});
  }

  void begin_op(RunningOp& op) override;
  void end_op(RunningOp& op) noexcept override;
  // Whatever fails becomes the reason why a step is not sampled.
  void begin_step(uint32_t step) override;
  void end_step() override;
  void freed(Block* block) noexcept override;
  using Participant::tell;

 private:
  // A record, with who was there and what ran.
  struct Told {
    cupti::Sample sample{};
    int64_t service_ns = 0;  // of fault groups, and of what leaves for a budget
    bool leaves = false;     // a page's first record, of those that leave for a budget
    OpIdentity op;
    const Record* record = nullptr;
  };
  struct Departure {
    OpIdentity op;
    driver::CUevent begin, end;
    int64_t begin_ns = 0, end_ns = 0;
    std::vector<Told*> pages{};  // their first records
  };
  void note(const Departure& departure) noexcept;
  void settle_departures();
  Departure* departure_at(int64_t ns);
  void share_departures(std::vector<Told>* all);
  bool is_due(uint32_t step) const;
  bool has_managed() const;
  void expect_faults();
  void follow_stalls(bool on);
  void spend(const std::vector<Told>& all);
  driver::CUresult finish_device(Wait name) const {
    return left_out(name) ? driver::CUDA_SUCCESS : backend_.call().ctx_synchronize();
  }
  void fail(const std::string& reason);
  cupti::Collected collect();
  std::vector<Told> tell(const std::vector<cupti::Sample>& samples, int64_t end_ns);
  bool place(Told* told, uint32_t reached) const;
  static void share_service(std::vector<Told>* all);
  void account(const Told& told, EventLog* events);
  void transfer(const Told& told, bool to_device, EventLog* events);
  void account_departures(EventLog* events);
  void add_last();
  static um_event event_of(const Told& told, um_event_kind kind, um_cause cause);

  const Backend& backend_;
  OpTimeline timeline_;
  BlockHistory history_;
  std::vector<Departure> departures_;  // settled: in order, those whose times are known
  std::vector<Stretch> stood_;         // for swaps
  std::vector<um_residency> ran_;
  bool running_ = false, collecting_ = false;
  uint32_t step_ = 0, op_index_ = 0;
  int64_t start_ns_ = 0;
  uint64_t evicted_page_ = 0;  // number of 2 MiB whose copy was told of last
  um_counters totals_{};
  um_sampling read_{};
};

}  // namespace um
