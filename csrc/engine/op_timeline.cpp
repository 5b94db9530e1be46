#include "engine/op_timeline.h"

#include <algorithm>
#include <new>

#include "base/clock.h"

namespace um {

using driver::CUDA_SUCCESS;
using driver::CUevent;
using driver::CUstream;

void OpTimeline::start() noexcept {
  ops_.clear();
  events_.reuse();
  origin_ = nullptr;
  int64_t least_ns = INT64_MAX;
  for (int attempt = 0; attempt < kOriginAttempts; ++attempt) {  // the thread may be descheduled during an attempt
    const int64_t before_ns = now_ns();
    const CUevent event = events_.record(nullptr);
    if (event == nullptr) return;
    if (!left_out(Wait::timeline_origin) && backend_.call().event_synchronize(event) != CUDA_SUCCESS) return;
    const int64_t took_ns = now_ns() - before_ns;
    if (took_ns >= least_ns) continue;
    least_ns = took_ns;
    origin_ = event;
    origin_ns_ = before_ns + took_ns / 2;
  }
}

CUevent OpTimeline::mark(CUstream stream) noexcept { return origin_ == nullptr ? nullptr : events_.record(stream); }

uint64_t OpTimeline::begin(const OpIdentity& op, CUstream stream) noexcept {
  if (origin_ == nullptr || ops_.size() == kMostOps) return 0;
  const CUevent event = events_.record(stream);
  if (event == nullptr) return 0;
  try {
    ops_.push_back({op, event, {}, now_ns()});
  } catch (const std::bad_alloc&) {
    return 0;
  }
  return ops_.size();
}

void OpTimeline::end(uint64_t number, CUstream stream) noexcept {
  if (number == 0 || number > ops_.size()) return;
  Op& op = ops_[number - 1];
  op.returned_ns = now_ns();
  op.end = events_.record(stream);
  op.ended = op.end != nullptr;
}

bool OpTimeline::time_of(CUevent event, int64_t* ns) const {
  const int64_t since_ns = origin_ == nullptr ? UM_UNKNOWN : events_.between_ns(origin_, event);
  *ns = origin_ns_ + since_ns;
  return since_ns != UM_UNKNOWN;
}

// Removes ops whose times are unknown, because they ended in an exception or the driver failed.
void OpTimeline::settle() noexcept {
  const auto unknown = [this](Op& op) {
    return !op.ended || !time_of(op.begin, &op.begin_ns) || !time_of(op.end, &op.end_ns);
  };
  ops_.erase(std::remove_if(ops_.begin(), ops_.end(), unknown), ops_.end());
  std::sort(ops_.begin(), ops_.end(), [](const Op& one, const Op& other) {
    return one.begin_ns != other.begin_ns ? one.begin_ns < other.begin_ns : one.identity.index < other.identity.index;
  });
  int64_t latest_ns = INT64_MIN;
  for (Op& op : ops_) op.latest_end_ns = latest_ns = std::max(latest_ns, op.end_ns);
}

std::vector<OpTimeline::Op>::const_iterator OpTimeline::after(int64_t at_ns) const {
  return std::upper_bound(ops_.begin(), ops_.end(), at_ns, [](int64_t ns, const Op& op) { return ns < op.begin_ns; });
}

const OpIdentity* OpTimeline::running(int64_t at_ns) const {
  for (auto op = after(at_ns); op != ops_.begin();) {
    --op;
    if (op->latest_end_ns < at_ns) return nullptr;
    if (op->end_ns >= at_ns) return &op->identity;
  }
  return nullptr;
}

uint32_t OpTimeline::reached(int64_t at_ns) const {
  const auto next = after(at_ns);
  return next == ops_.begin() ? 0 : std::prev(next)->identity.index;
}

}  // namespace um
