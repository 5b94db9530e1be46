// The part of the C ABI that simulates explicit swapping.
#include "base/error.h"
#include "capi/guard.h"
#include "replay/simulation.h"
#include "replay/swap_executor.h"
#include "umadvise.h"

namespace {

using um::Error;
using um::require;
using um::capi::given;

void check_link(const um_link& link) {
  for (int direction = 0; direction < 2; ++direction) {
    require(link.fixed_ns[direction] >= 0, "a copy's fixed cost is below 0");
    require(link.bytes_per_s[direction] > 0 && link.both_bytes_per_s[direction] > 0,
            "the link has no speed: expected bytes a second in both directions, alone and together");
    require(link.engines[direction] >= 1 && link.engines[direction] <= 32, "expected 1 to 32 copy engines a direction");
  }
}

void check_options(const um_swap_options& options) {
  require(options.allocator <= UM_ALLOCATOR_VA_CHUNKS, "unknown model of allocation");
  require(options.eviction <= UM_EVICT_LEAST_RECENT, "unknown rule of eviction");
  require(options.chunk_bytes >= 512 && options.chunk_bytes % 512 == 0, "expected chunks of a multiple of 512 bytes");
  require(options.budget_bytes <= uint64_t{1} << 62, "the budget is larger than any memory");
  require(options.op_issue_ns >= 0 && options.op_sync_ns >= 0 && options.map_ns_per_chunk >= 0, "a cost is below 0");
  require(options.iterations >= 1, "expected at least one iteration");
}

void check_durations(const um_trace& trace, uint32_t iterations) {
  constexpr double kLongestNs = 3.2e18;  // a hundred years
  double sum_ns = 0;
  for (uint64_t op = 0; op < trace.op_count; ++op) sum_ns += static_cast<double>(trace.op_duration_ns[op]);
  require(sum_ns * iterations < kLongestNs, "a run of more than a hundred years");
}

}  // namespace

um_status um_simulate_swap(const um_trace* trace, const um_plan* plan, const um_link* link,
                           const um_swap_options* options, um_swap_result* result, um_simulation** out) {
  return um::capi::caught([&] {
    given(result, "the place for the result");
    given(out, "the place for the simulation");
    check_link(*given(link, "the link"));
    check_options(*given(options, "the options"));
    check_durations(*given(trace, "the trace"), options->iterations);
    um::simulator::SwapExecutor executor(*trace, plan, *link, *options);
    try {
      executor.run();
    } catch (const Error&) {
      *result = executor.result();
      throw;
    }
    *result = executor.result();
    *out = new um_simulation;
    (*out)->spans = executor.take_spans();
  });
}
