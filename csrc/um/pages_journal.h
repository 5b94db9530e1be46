// What the exact model tells: counters, one record per transfer and per fault group, and the clock that dates them.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "um/model.h"

namespace um::pages {

// What the driver's work takes. Defaults, never asserted, uncertain by a factor of two until a machine is calibrated;
// each comment names the measurement behind the number. A device profile overrides them.
struct Costs {
  uint32_t batch_max = 256;        // entries of a fault batch: uvm_perf_fault_batch_count
  int64_t batch_ns = 15'000;       // interrupt, fetch, sort, flush, replay: 18.6 to 20.9 us per first-touch
                                   // service (V100 PCIe, GTX 1060) less block_ns
  int64_t entry_ns = 50;           // per fault entry: T4 fetches a full batch in 13 us
  int64_t block_ns = 5'000;        // per block serviced (lock, page tables): same as batch_ns
  int64_t migrate_ns = 30'000;     // more when pages come from the host (unmapping): T4 services take 51 to 64 us
  int64_t first_map_ns = 100'000;  // once a block, for the DMA mapping of its host pages: Titan V, 178 us a new block
  int64_t transfer_ns = 2'400;     // per transfer record: 1.2 to 3.7 us fitted on four machines
  int64_t evict_ns = 20'000;       // per chunk, beside its copy: V100 PCIe oversubscribed 2x
  int64_t host_fault_ns = 20'000;  // per host fault, beside its copies: unverified
  int64_t prefetch_call_ns = 10'000;          // per call: P100, RTX 2060
  int64_t prefetch_block_ns = 15'000;         // per block of a call: same
  int64_t advise_call_ns = 15'000;            // per call: P100, 0.8 to 124 us
  int64_t read_mostly_block_ns = 200'000;     // more per populated block: 1.68 ms for 4 to 8 blocks, one measurement
  int64_t accessed_by_block_ns = 0;           // more per block: unknown
  double h2d_bytes_per_s = 12.4e9;            // PCIe 3.0 x16, page-locked
  double d2h_bytes_per_s = 12.4e9;            // same
  double zero_bytes_per_s = 0.7 * 900e9;      // 0.7 of the memory's bandwidth: unverified
  double remote_bytes_per_s = 0.93 * 12.4e9;  // V100 PCIe: 10.7 to 11.5 GiB/s on a 12.4 GB/s link
  double prefetch_bytes_per_s = 0;            // of prefetches, where they are not as fast as the link: POWER9
};

enum class Direction : uint8_t { none, h2d, d2h };

struct Record {
  int64_t start_ns, end_ns;
  uint64_t address, bytes;  // bytes moved; a fault group moves nothing itself
  uint32_t faults;          // pages of a fault group that faulted
  Direction direction;      // none: a fault group
  Cause cause;
};

struct PageCounters {
  Counters shared;     // services are counted once a block, as in um::Model
  int64_t faults = 0;  // fault entries of the device, one a page
  int64_t batches = 0;
  int64_t thrashing_pages = 0;  // detections, one a page
  int64_t throttles = 0;        // faults put off because their page thrashes
  int64_t pinned_pages = 0;     // thrashing pages pinned to one place
  int64_t remote_bytes = 0;     // accessed over the link, by either processor
  int64_t remote_requests = 0;
  int64_t zeroed_bytes = 0;      // of device memory
  int64_t fault_service_ns = 0;  // sum of the fault groups' windows: groups of one batch share theirs
};

class Journal {
 public:
  explicit Journal(const Costs& all) : costs(all) {}

  const Costs costs;
  PageCounters counters;

  int64_t now() const { return now_ns_; }
  void spend(int64_t duration_ns) { now_ns_ += duration_ns; }
  void spend_bytes(uint64_t bytes, double bytes_per_s) { now_ns_ += duration(bytes, bytes_per_s); }
  void wait_until(int64_t time_ns);

  // A prefetch copies on the engines while its caller goes on; a fault service waits for each of its copies.
  void copy_on_engines(bool on) { on_engines_ = on; }
  void transfer(Direction direction, Cause cause, uint64_t address, uint64_t bytes);
  void wait_for_engines();

  // A batch of device faults; its fault groups share its window.
  void begin_batch(uint32_t faults);
  void fault_group(uint64_t address, uint32_t faults);
  void end_batch();

  const std::vector<Record>& records() const { return records_; }

 private:
  static int64_t duration(uint64_t bytes, double bytes_per_s) {
    return std::llround(static_cast<double>(bytes) * 1e9 / bytes_per_s);
  }

  int64_t now_ns_ = 0, batch_start_ns_ = 0;
  int64_t engine_free_ns_[2] = {};
  bool on_engines_ = false;
  std::vector<Record> records_;
  std::vector<uint64_t> open_groups_;
};

}  // namespace um::pages
