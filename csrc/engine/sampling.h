// The sampled steps of a CUDA device: which they are, and what CUPTI's records of one say in this project's words, as
// the emulated device's counters and events. Not thread-safe: the device's lock is held, and its context is current
// where a step or an op begins or ends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cupti/collector.h"
#include "engine/block_history.h"
#include "engine/event_log.h"
#include "engine/op_timeline.h"
#include "memory/backend.h"

struct um_device;

namespace um {

class Sampling {
 public:
  Sampling(const um_device* owner, const Backend& backend);
  // A step that is being sampled is given up.
  ~Sampling();
  Sampling(const Sampling&) = delete;
  Sampling& operator=(const Sampling&) = delete;

  void set_every(uint32_t every) { read_.every = every; }
  bool running() const { return running_; }
  bool collecting() const { return collecting_; }

  // A step begins. Whatever fails becomes the reason why it is not sampled. `managed`: the device has managed memory;
  // without any nothing faults, and CUPTI is left alone until some is expected.
  void begin_step(uint32_t step, bool managed);
  // The first managed memory is about to be made, within a step that runs.
  void expect_faults();
  // It ends; its events go to `events`, nullptr: nobody wants them.
  void end_step(EventLog* events);
  // An op, between them; a number for its end.
  uint64_t begin_op(const OpIdentity& op, driver::CUstream stream) noexcept;
  void end_op(uint64_t number, driver::CUstream stream) noexcept { timeline_.end(number, stream); }
  void freed(const Block& block) noexcept { history_.freed(block, op_index_); }

  // Of all sampled steps; untouched before the first.
  void fill(um_counters* out) const;
  const um_sampling& read() const { return read_; }

 private:
  // A record, with who was there and what ran.
  struct Told {
    cupti::Sample sample{};
    int64_t service_ns = 0;  // of fault groups
    OpIdentity op;
    const Record* record = nullptr;
  };
  bool is_due(uint32_t step) const;
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
  void add_last();
  static um_event event_of(const Told& told, um_event_kind kind, um_cause cause);

  const um_device* const owner_;
  const Backend& backend_;
  OpTimeline timeline_;
  BlockHistory history_;
  bool running_ = false, collecting_ = false;
  uint32_t step_ = 0, op_index_ = 0;
  int64_t start_ns_ = 0;
  uint64_t evicted_page_ = 0;  // number of 2 MiB whose copy was told of last
  um_counters totals_{};
  um_sampling read_{};
};

}  // namespace um
