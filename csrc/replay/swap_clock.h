// The time of a step that swaps: that of the compute queue, how far the host thread runs ahead of it, and what every
// nanosecond was spent on. The link is never ahead of the compute queue except while that stands still.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "replay/swap_link.h"
#include "umadvise.h"

namespace um::simulator {

class SwapClock {
 public:
  // Counts what time went to in `result`; it, the listener and the options are borrowed.
  SwapClock(const um_link& speeds, CopyListener& listener, const um_swap_options& options, um_swap_result& result)
      : link(speeds, listener), options_(options), result_(result) {}

  SwapLink link;
  int32_t op = -1;  // which of them runs, again or for the first time; -1: what is before the first

  uint32_t iteration() const { return iteration_; }  // from 1 on
  // The spans of the last one are forgotten.
  void begin_iteration();
  // The compute queue waits for what the host issues, where that is late.
  void issue_op();
  void execute(int64_t duration_ns, um_span_kind kind);
  void pay_for_mapping(uint64_t chunks);
  // The compute queue stands still, for a storage's sake, until something happens on the link.
  void wait_for_link(um_span_kind kind, int32_t storage);
  // The host waits for the compute queue.
  void wait_on_host();
  // A copy has ended now.
  void note_copy(Direction direction, const Copy& copy, int64_t start_ns, uint8_t engine);
  // Waits for all that the link still does, and tells when that was.
  int64_t run_out();
  std::vector<um_span> take_spans() { return std::move(spans_); }

 private:
  void stand_still(int64_t until_ns, um_span_kind kind, int32_t storage, int64_t* account);
  void span(int64_t start_ns, int64_t end_ns, um_span_kind kind, int32_t storage);

  const um_swap_options& options_;
  um_swap_result& result_;
  int64_t compute_ns_ = 0, host_ns_ = 0;
  uint32_t iteration_ = 0;
  std::vector<um_span> spans_;
  size_t last_span_ = 0;  // of the compute queue; none where there are no spans
};

}  // namespace um::simulator
