#include "replay/unified_input.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/indexed_trace.h"

namespace um::simulator {
namespace {

constexpr double kLongestNs = 4e18;  // 127 years: sums of what lasts less stay in 64 bits

bool positive(double rate) { return rate > 0 && std::isfinite(rate); }

}  // namespace

void check(const um_unified_options& options, uint64_t storages) {
  const um_pages_costs& costs = options.costs;
  const um_link& link = options.link;
  require(options.placements != nullptr || storages == 0, "the placements of the storages are missing");
  require(options.iterations > 0, "no iterations: expected at least one");
  require(options.service <= UM_SERVICE_RECORDED,
          "unknown services: expected the guard's (0) or the recorded ones (1)");
  check(link);
  require(costs.zero_bytes_per_s > 0 && costs.remote_bytes_per_s > 0 && costs.batch_max > 0,
          "memory that is never filled, accesses that never end, or fault batches without a fault");
  for (const int64_t cost :
       {costs.batch_ns, costs.entry_ns, costs.block_ns, costs.migrate_ns, costs.first_map_ns, costs.evict_ns,
        costs.prefetch_call_ns, costs.prefetch_block_ns, costs.advise_call_ns, costs.read_mostly_block_ns,
        costs.accessed_by_block_ns, options.launch_ns, link.fixed_ns[0], link.fixed_ns[1]}) {
    require(cost >= 0 && cost <= 1000000000000, "a cost of less than nothing or more than 1000 s");
  }
  const um_concurrency& kernel = options.concurrency;
  require(kernel.window_pages > 0 && kernel.run_pages > 0 && kernel.faults_per_service > 0,
          "a kernel that touches no pages: expected positive numbers of pages and faults");
}

void check(const um_link& link) {
  for (int direction = 0; direction < 2; ++direction) {
    require(positive(link.bytes_per_s[direction]) && positive(link.both_bytes_per_s[direction]) &&
                link.fixed_ns[direction] >= 0,
            "a link that moves nothing, or back in time");
  }
}

// What um_device and the arithmetic here would not survive.
void check(const um_trace& trace, uint32_t iterations) {
  double sum_ns = 0;
  for (uint64_t op = 0; op < trace.op_count; ++op) {
    require(trace.op_duration_ns[op] >= UM_UNKNOWN, "this is no trace: an op of less than no time");
    require(trace.op_window_pages[op] >= 0 && trace.op_run_pages[op] >= 0 && trace.op_faults_per_service[op] >= 0,
            "this is no trace: a kernel of less than no pages");
    sum_ns += static_cast<double>(trace.op_duration_ns[op]);
  }
  require(sum_ns * iterations < kLongestNs, "a run of more than a hundred years");
  const auto inside = [&](int32_t storage, int64_t offset_bytes, int64_t bytes) {
    const int64_t all_bytes = trace.storage_bytes[storage];
    return offset_bytes >= 0 && bytes >= 0 && offset_bytes <= all_bytes && bytes <= all_bytes - offset_bytes;
  };
  for (uint64_t row = 0; row < trace.access_count; ++row) {
    require(inside(trace.access_storage[row], trace.access_offset_bytes[row], trace.access_bytes[row]),
            "this is no trace: an access goes beyond its storage");
  }
  for (uint64_t row = 0; row < trace.event_count; ++row) {
    const uint8_t kind = trace.event_kind[row];
    require(kind <= kServiceWrite, "this is no trace: an event of unknown kind");
    const bool copies = kind == kHostWrite || kind == kHostRead;
    require(!copies || inside(trace.event_storage[row], trace.event_offset_bytes[row], trace.event_bytes[row]),
            "this is no trace: a copy goes beyond its storage");
  }
}

std::vector<uint64_t> checked_in_order(const um_plan& plan, const um_trace& trace) {
  std::vector<uint64_t> rows(plan.count);
  std::iota(rows.begin(), rows.end(), uint64_t{0});
  for (const uint64_t row : rows) {
    const int64_t storage = plan.storage[row], op = plan.op[row];
    require(plan.kind[row] <= UM_PLAN_DISCARD,
            "the plan swaps or recomputes: under unified memory it may advise, prefetch and discard");
    require(op >= 0 && op < static_cast<int64_t>(trace.op_count), "the plan names an op that the trace has not");
    require(storage >= 0 && storage < static_cast<int64_t>(trace.storage_count),
            "the plan names a storage that the trace has not");
    const int64_t bytes = trace.storage_bytes[storage], offset = plan.offset_bytes[row];
    require(offset >= 0 && offset <= bytes && plan.bytes[row] >= 0 && plan.bytes[row] <= bytes - offset,
            "the plan goes beyond a storage");
    require(plan.kind[row] != UM_PLAN_ADVISE || (plan.argument[row] >= 0 && plan.argument[row] < UM_ADVICE_PREFETCH),
            "the plan gives an advice that is none of the driver's");
  }
  const auto place = [&](uint64_t row) { return int64_t{plan.op[row]} * 2 + (plan.after[row] != 0); };
  std::stable_sort(rows.begin(), rows.end(), [&](uint64_t a, uint64_t b) { return place(a) < place(b); });
  return rows;
}

}  // namespace um::simulator
