#include "engine/op_durations.h"

#include <algorithm>
#include <new>

#include "engine/device.h"

namespace um {
namespace {

// 0 where it cannot be kept.
template <class Row>
uint64_t kept(std::vector<Row>& rows, const Row& row) noexcept {
  if (row.span == 0) return 0;
  try {
    rows.push_back(row);
    return row.span;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

}  // namespace

OpDurations::OpDurations(um_device& device, Tape& tape)
    : Participant(device, kDurationTurns), backend_(device.backend), tape_(tape), spans_(device.backend) {}

// Its bring-in is ordered before.
void OpDurations::begin_op(RunningOp& op) {
  if (op.recorded == 0) return;
  const CurrentContext current(backend_);
  op.timed = kept(ops_, {op.recorded, spans_.begin(op.stream)});
}

void OpDurations::end_op(RunningOp& op) noexcept {
  if (op.timed == 0) return;
  const CurrentContext current(backend_);
  spans_.end(op.timed, op.stream);
}

void OpDurations::end_step() {
  if (spans_.count() > kMostUnsettled) settle();
}

// What the op was given before has ended when a pause begins, so that this is the time in which nothing of it ran.
void OpDurations::settle() noexcept {
  if (spans_.count() == 0) return;
  const CurrentContext current(backend_);
  if (!left_out(Wait::recording_settled) && backend_.call().ctx_synchronize() != driver::CUDA_SUCCESS) return clear();
  for (const Pause& pause : pauses_) {
    const auto op = std::lower_bound(ops_.begin(), ops_.end(), pause.op,
                                     [](const Op& each, Number number) { return each.span < number; });
    const int64_t stood_ns = spans_.length_ns(pause.span);
    if (op != ops_.end() && op->span == pause.op && stood_ns != UM_UNKNOWN) op->stood_ns += stood_ns;
  }
  for (const Op& op : ops_) {
    const int64_t length_ns = spans_.length_ns(op.span);
    if (length_ns != UM_UNKNOWN) tape_.ran(op.ticket, std::max<int64_t>(0, length_ns - op.stood_ns));
  }
  clear();
}

void OpDurations::clear() noexcept {
  spans_.clear();
  ops_.clear();
  pauses_.clear();
}

void OpDurations::destroy() noexcept {
  clear();
  spans_.destroy();
}

OpPause::OpPause(OpDurations& durations, const RunningOp* op, driver::CUstream stream) noexcept
    : durations_(durations), stream_(stream) {
  if (op == nullptr || op->timed == 0) return;
  const CurrentContext current(durations_.backend_);
  span_ = kept(durations_.pauses_, {op->timed, durations_.spans_.begin(stream_)});
}

OpPause::~OpPause() {
  if (span_ == 0) return;
  const CurrentContext current(durations_.backend_);
  durations_.spans_.end(span_, stream_);
}

}  // namespace um
