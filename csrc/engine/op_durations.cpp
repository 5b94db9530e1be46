#include "engine/op_durations.h"

#include <algorithm>
#include <new>

#include "engine/device_base.h"

namespace um {
namespace {

// Returns 0 if the row cannot be stored.
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

OpDurations::OpDurations(DeviceBase& base, Tape& tape)
    : Participant(base, kDurationTurns), backend_(base.backend), tape_(tape), spans_(base.backend) {}

// The op's swap-ins were ordered in the stream before this.
void OpDurations::begin_op(RunningOp& op) {
  if (op.recorded == 0) return;
  const CurrentContext current(backend_);
  const Number span = spans_.begin(op.stream);
  op.timed = kept(ops_, {op.recorded, span, backend_.now_ns()});
}

void OpDurations::end_op(RunningOp& op) noexcept {
  if (op.timed == 0) return;
  const CurrentContext current(backend_);
  if (Op* const ended = find(op.timed)) ended->ended_ns = backend_.now_ns();
  spans_.end(op.timed, op.stream);
}

OpDurations::Op* OpDurations::find(Number span) noexcept {
  const auto op = std::lower_bound(ops_.begin(), ops_.end(), span,
                                   [](const Op& each, Number number) { return each.span < number; });
  return op != ops_.end() && op->span == span ? &*op : nullptr;
}

void OpDurations::end_step() {
  if (spans_.count() > kMostUnsettled) settle();
}

void OpDurations::start() noexcept {
  const CurrentContext current(backend_);
  static_cast<void>(wait());
  begin_anew();
}

bool OpDurations::wait() const noexcept {
  return left_out(Wait::recording_settled) || backend_.call().ctx_synchronize() == driver::CUDA_SUCCESS;
}

void OpDurations::begin_anew() noexcept {
  clear();
  idle_ = spans_.begin(nullptr);
  idle_ns_ = backend_.now_ns();
}

// All work of the op before a pause has ended when the pause's span begins, so none of the op ran during that span.
void OpDurations::settle() noexcept {
  if (ops_.empty()) return;
  const CurrentContext current(backend_);
  if (!wait()) return clear();
  for (const Pause& pause : pauses_) {
    const int64_t stood_ns = spans_.length_ns(pause.span);
    Op* const op = find(pause.op);
    if (op != nullptr && stood_ns != UM_UNKNOWN) op->stood_ns += stood_ns;
  }
  // The least lag is the device's when it was idle.
  int64_t idle_lag_ns = 0;
  for (Op& op : ops_) {
    const int64_t since_idle_ns = spans_.apart_ns(idle_, op.span);
    op.lag_ns = since_idle_ns == UM_UNKNOWN ? kUnknownLag : since_idle_ns - (op.begun_ns - idle_ns_);
    idle_lag_ns = std::min(idle_lag_ns, op.lag_ns);
  }
  for (const Op& op : ops_) {
    const int64_t length_ns = spans_.length_ns(op.span);
    if (length_ns == UM_UNKNOWN) continue;
    const int64_t ran_ns = std::max<int64_t>(0, length_ns - op.stood_ns);
    const int64_t launch_ns = op.ended_ns - op.begun_ns - op.stood_ns;
    const int64_t late_ns = std::max<int64_t>(0, launch_ns - (op.lag_ns - idle_lag_ns));
    tape_.ran(op.ticket, std::max(ran_ns - late_ns, ran_ns / kLeastPart));
  }
  begin_anew();
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
