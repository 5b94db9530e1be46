// Time on a simulated device: a host thread that runs ahead, a compute queue, a copy engine each way, and what each
// fault, copy and call of unified memory takes of them.
//
// Rules (NVIDIA/open-gpu-kernel-modules 595.45.04, kernel-open/nvidia-uvm; costs are the device's, all uncertain):
// services of faults are serial, their copies included, and the compute queue stands still meanwhile
// (uvm_gpu_replayable_faults.c); there an eviction ends before the fetch into its chunk begins (uvm_pmm_gpu.c). Copies
// of prefetches run on the engines: one block's eviction overlaps another's fetch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "devices/simulated/fault_shape.h"
#include "um/model.h"
#include "umadvise.h"

namespace um::simulator {

// In which order a prefetch runs: in that of the ops, so that the next one waits for it, or beside them from now on.
enum class Lane : uint8_t { ops, beside };

// Sums of one iteration: its times and remote bytes, and what has no field there.
struct Tally : um_simulated_step {
  double services, batches, entries, records[2];
  int64_t remote_accesses;
  int64_t host_late_ns;  // the compute queue had run out of issued work
};

class Clock {
 public:
  // `launch_ns`: of the host thread, once an op.
  Clock(const um_link& link, const um_pages_costs& costs, int64_t launch_ns)
      : link_(link), costs_(costs), launch_ns_(launch_ns) {}

  // What is counted and drawn from now on belongs to this iteration.
  void begin_step(uint32_t step);
  void begin_op(int32_t op, const FaultShape& shape);
  void end_op(int64_t duration_ns, bool host_waits);
  // Of copies and prefetches from now on; -1: of no certain storage.
  void name_storage(int32_t storage) { storage_ = storage; }

  // The host thread is in a driver call.
  void call(int64_t duration_ns);
  // Advice takes the lock that services of faults need (uvm/uvm_policy.c): those of the running op wait.
  void advise_call(int64_t duration_ns);
  // A fault group of the running op. `first_mapping`: the device has never seen the block; `at_once`: it comes as a
  // whole whatever the kernel's shape is (1.3 of uvm_perf_prefetch.c: resident nowhere, preferred here); `chunk_ns`:
  // when the free chunk that it takes is empty.
  void serve(const Outcome& outcome, bool first_mapping, bool at_once, int64_t chunk_ns);
  // One block of a prefetch. When its data will be there.
  int64_t migrate(const Outcome& outcome, bool first_mapping, Lane lane, int64_t chunk_ns);
  // The end of a prefetch in the ops' order.
  void end_migration();
  // A copy between ordinary memory and the device, for which the host waits.
  void copy(int direction, int64_t bytes);
  // The op needs what a prefetch beside it brings.
  void wait_for(int64_t ready_ns);
  // A GPU's streams: the ops that come begin no earlier; a copy of the engine's, and when it will have ended.
  void hold_ops(int64_t until_ns) { held_ns_ = until_ns > held_ns_ ? until_ns : held_ns_; }
  int64_t copy_beside(int direction, int64_t earliest_ns, int64_t bytes);
  // The host thread stands still.
  void host_waits(int64_t until_ns) { host_ns_ = until_ns > host_ns_ ? until_ns : host_ns_; }
  // Accesses of the running op over the link.
  void access_remotely(int64_t bytes, int64_t accesses);

  int64_t now_ns() const { return now_ns_; }
  int64_t host_ns() const { return host_ns_; }
  // When everything that ops were given until now will have ended.
  int64_t ops_end_ns() const { return now_ns_ > held_ns_ ? now_ns_ : held_ns_; }
  int64_t fault_service_ns() const { return fault_service_ns_; }
  const um_pages_costs& costs() const { return costs_; }
  Tally take_tally();
  std::vector<um_span> take_spans();

 private:
  static constexpr size_t kNoSpan = ~size_t{0};

  int64_t transfer_ns(int direction, int64_t start_ns, int64_t bytes, double records, um_cause cause) const;
  int64_t transfer(int direction, int64_t earliest_ns, int64_t before_ns, int64_t bytes, um_cause cause);
  void copy_in_service(int direction, int64_t bytes, double records);
  void draw(um_track track, um_span_kind kind, um_cause cause, int64_t start_ns, int64_t duration_ns, int64_t bytes);
  void stall(um_span_kind kind, um_cause cause, int64_t duration_ns, int64_t bytes);
  void open_faults();
  void close_faults();

  const um_link link_;
  const um_pages_costs costs_;
  const int64_t launch_ns_;
  FaultShape shape_{};
  int64_t now_ns_ = 0, host_ns_ = 0;  // the compute queue's and the host thread's
  int64_t held_ns_ = 0;               // no op begins before
  int64_t engine_free_ns_[2] = {}, filler_free_ns_ = 0;
  int64_t migration_ns_ = 0,
          migration_end_ns_ = 0;  // of a prefetch in the ops' order: the driver's work, and all of it
  int64_t fault_service_ns_ = 0, lock_ns_ = 0;
  um_span_kind migration_kind_ = UM_SPAN_WAIT_COPY;

  // Services of one op that follow each other: one span.
  bool faults_open_ = false;
  int64_t faults_start_ns_ = 0;
  struct FaultCopies {
    int64_t from_ns, duration_ns, bytes;  // when the engine was free for them; sums
  } fault_copies_[2] = {};

  int32_t op_ = -1, storage_ = -1;
  uint32_t step_ = 0;
  Tally tally_{};
  std::vector<um_span> spans_;
  size_t last_span_[4] = {kNoSpan, kNoSpan, kNoSpan, kNoSpan};
  int64_t remote_op_bytes_ = 0;
};

}  // namespace um::simulator
