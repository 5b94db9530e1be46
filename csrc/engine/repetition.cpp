#include "engine/repetition.h"

#include <algorithm>
#include <new>

#include "base/error.h"
#include "base/scattered.h"
#include "engine/device_base.h"

namespace um {
namespace {

// How often a place must be reached before sequences are compared, and before less likeness suffices: a mixture of
// experts, or layers that are skipped at random, never use quite the same storages.
constexpr uint32_t kFewest = 3, kPatient = 12;
// Two networks that alternate share half of the storages they use.
constexpr double kLike = 2.0 / 3, kSomewhatLike = 1.0 / 3;
constexpr double kAlike = 0.9;
// If fewer uses than this are compared, agreement of two thirds means nothing.
constexpr size_t kFew = 8;
// The number of steps for which a better edge is still searched. A better edge recurs less often than the present one.
// The bounds are how often the present one may recur for each time of the better one: parts of a batch before an
// update, or calls of one module before one of another.
constexpr uint32_t kSearchSteps = 32, kMostParts = 16, kMostCalls = 4;
// If no edge was reached for this many times the longest step, the loop has ended, and another one may run.
constexpr uint64_t kStale = 4;
// Short sequences are no steps: an edge takes the host as long as a dozen ops or more, so edges would take most of the
// time in a loop of few small ops. A clock must not decide this, as a session that is run twice must find the same
// steps. The work of the ops decides: 1 for each op, which takes the host 5 us or more, and 1 for each 32 KiB of its
// operands, which take a processor or a link 3 us. An op counts for 4 MiB at most, since an op that reads a few rows of
// a table has all of it as an operand. A sequence of work 256 takes 1.3 ms or more, and an edge takes 40 to 60 us.
// Example: an update of 12 ops on 16 KiB counts 12, and makes no step; a token that reads 12 weights of 1.6 MB counts
// 600, and makes one.
constexpr uint32_t kLeastWork = 256;
constexpr uint64_t kBytesOfWork = uint64_t{1} << 15, kMostWorkOfOp = 128;
// A place that was found in long steps may recur more often later, for example in a loop over the rows of a table.
constexpr uint64_t kFewestOps = 4;
constexpr size_t kMostEdges = 8;
constexpr size_t kSlots = size_t{1} << 14;
// Bounds the ops and allocations that are visited to compare sequences: 32 for each of the first ops, and then one for
// each 4 ops, as a program in which no step was found by then may have none.
constexpr uint64_t kComparedPerOp = 32, kEagerOps = uint64_t{1} << 14, kOpsPerCompared = 4;

uint64_t key_of(uint64_t kind, uint64_t what, uint64_t who) { return scattered(scattered(kind << 32 ^ what) ^ who); }

}  // namespace

void Repetition::set(bool on) {
  edges_.clear();
  longest_ = 0;
  due_ = in_backward_ = false;
  backwards_ = begun_ = calls_ = search_end_ = 0;
  on ? look_again() : watch(Watch::nothing);
  on ? base_.participants.join(*this) : base_.participants.leave(*this);
}

void Repetition::watch(Watch watch) {
  watch_ = watch;
  if (watch != Watch::nothing) return;
  seen_ = std::vector<Seen>();  // `= {}` would keep the capacity, and the device outlives its session
  times_ = std::vector<LastTwo>();
  log_ = {};
}

void Repetition::look_again() {
  seen_.assign(kSlots, {});
  times_.resize(kSlots);
  edges_.reserve(kMostEdges);
  log_.start(position_);
  watch_ = Watch::everything;
}

Repetition::Moment Repetition::now() const {
  const Allocations& all = *base_.allocations;
  return {position_, all.last_serial(), all.statistics.requested_bytes.now, work_, backwards_, begun_, calls_};
}

bool Repetition::call(uint64_t module, bool differentiated) {
  ++calls_;
  if (comes({key_of(0, module, 0), Kind::call, differentiated})) return true;
  if (!due_) return false;
  begin_step();
  return true;
}

void Repetition::begin_op(RunningOp& op) {
  if (!op.may_begin_a_step) return;
  const bool backward = op.identity.phase == UM_PHASE_BACKWARD, inside = backward || op.identity.module != 0;
  const bool after_backward = in_backward_ && !backward;
  note_backward(backward);
  if (!edges_.empty() && watch_ != Watch::everything && position_ - last_begin_ > kStale * longest_) look_again();
  if (inside && watch_ == Watch::nothing) {
    ++position_;
    return;
  }
  bool written = false;
  const uint64_t serial = oldest(&written);
  bool begins = false;
  if (!inside && serial != 0) {
    const uint32_t name = op.identity.op;
    const Kind kind = written ? Kind::write : Kind::use;
    begins = comes({key_of(1, name, serial), kind, op.differentiated});
    if (after_backward) begins = comes({key_of(2, name, 0), Kind::after_backward, false}) || begins;
  }
  if (watch_ != Watch::nothing) {
    log_.note(op.identity.op, serial);
    work_ += work();
  }
  ++position_;
  if (begins) throw Error(UM_STEP_BEGINS, "a step begins here");
}

// An edge in a forward that was found before the first backward was taken for inference, wrongly.
void Repetition::note_backward(bool runs) {
  if (runs && !in_backward_ && backwards_++ == 0 && watch_ != Watch::everything) {
    const auto wrong = [](const Edge& edge) { return edge.place.differentiated; };
    edges_.erase(std::remove_if(edges_.begin(), edges_.end(), wrong), edges_.end());
    look_again();
    if (!edges_.empty()) watch_ = Watch::better;
    search_end_ = begun_ + kSearchSteps;
  }
  in_backward_ = runs;
}

// Returns the serial number of the oldest operand, and whether it is written to; 0: there is none.
uint64_t Repetition::oldest(bool* written) const {
  uint64_t least = 0;
  for (const Operand& operand : base_.ops.operands) {
    const uint64_t serial = operand.block->record.serial;
    if (least != 0 && serial >= least) continue;
    least = serial;
    *written = operand.access->write != 0;
  }
  return least;
}

// This is not inlined, because most ops begin while nothing is searched.
[[gnu::noinline]] uint32_t Repetition::work() const {
  uint64_t bytes = 0;
  for (const Operand& operand : base_.ops.operands) bytes += operand.access->bytes;
  return static_cast<uint32_t>(1 + std::min(bytes / kBytesOfWork, kMostWorkOfOp));
}

bool Repetition::comes(const Place& place) {
  for (Edge& edge : edges_) {
    if (edge.place.key == place.key) return begins_at(edge);
  }
  const bool better = place.kind == Kind::write || place.kind == Kind::call;
  const bool wanted = watch_ == Watch::everything || (watch_ == Watch::better && better);
  if (!wanted) return false;
  try {
    Edge* const found = look(place);
    return found != nullptr && begins_at(*found);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool Repetition::begins_at(Edge& edge) {
  const bool called = calls_ > edge.calls;
  edge.calls = calls_;
  if (edge.place.kind != Kind::call && called) {
    due_ = true;
    return false;
  }
  if (position_ - last_begin_ < kFewestOps) return false;
  begin_step();
  return true;
}

void Repetition::begin_step() {
  due_ = false;
  if (begun_++ != 0) longest_ = std::max(longest_, position_ - last_begin_);
  last_begin_ = position_;
  if (begun_ >= search_end_) watch(Watch::nothing);
}

// Notes that a place was reached. Returns it as an edge if it has turned out to be one.
Repetition::Edge* Repetition::look(const Place& place) {
  const size_t slot = place.key % kSlots;
  Seen& seen = seen_[slot];
  LastTwo& last = times_[slot];
  const Moment at = now();
  if (seen.key != place.key) {  // the old key keeps its slot while it may recur
    if (seen.count > 1 && log_.holds(last.second.position)) return nullptr;
    seen = {place.key, 1, 0};
    last.second = at;
    return nullptr;
  }
  const bool found = ++seen.count >= std::max(kFewest, seen.next) && repeats(place, seen, last, at);
  const Moment before = last.second;
  last = {before, at};
  if (!found) return nullptr;
  if (at.edges > before.edges) edges_.clear();  // the new edge replaces these
  if (edges_.size() == kMostEdges) edges_.erase(edges_.begin());
  edges_.push_back({place, before.calls});
  last_begin_ = before.position;
  seen_.assign(kSlots, {});  // the search begins again for an edge that is better than this one
  watch_ = Watch::better;
  search_end_ = begun_ + kSearchSteps;
  return &edges_.back();
}

bool Repetition::repeats(const Place& place, Seen& seen, const LastTwo& last, const Moment& now) {
  const auto& [first, second] = last;
  const bool small = now.work - second.work < kLeastWork || second.work - first.work < kLeastWork;
  if (small && watch_ == Watch::everything) return false;  // a better edge spans several steps that were large enough
  if (!log_.holds(first.position) || !is_wanted(place, last, now)) return false;
  const uint64_t cost = now.position - first.position;
  if (compared_ + cost > kComparedPerOp * std::min(position_, kEagerOps) + position_ / kOpsPerCompared) return false;
  seen.next = seen.count + std::max(1u, seen.count / 2);
  const std::vector<uint64_t> lasting = older_than(first);
  compared_ += cost + lasting.size();
  const UseLog::Likeness likeness = log_.likeness(first.position, second.position, lasting);
  if (likeness.lasting == (place.kind == Kind::after_backward)) return false;
  const bool trains = now.backwards > first.backwards, better = now.edges > first.edges;
  if (trains && place.kind == Kind::write) return likeness.part >= kSomewhatLike;
  if (better || likeness.uses < kFew) return likeness.part >= kAlike;
  return likeness.part >= (seen.count >= kPatient && place.kind == Kind::call ? kSomewhatLike : kLike);
}

// Returns the serial numbers of live allocations that were live at that moment too, ascending.
std::vector<uint64_t> Repetition::older_than(const Moment& moment) const {
  std::vector<uint64_t> found;
  base_.allocations->each_block([&](const Block& block) {
    if (block.record.serial <= moment.last_serial) found.push_back(block.record.serial);
  });
  std::sort(found.begin(), found.end());
  return found;
}

// Without backward, although autograd records, memory that grows shows a training's forward, which keeps tensors for
// its backward.
bool Repetition::is_wanted(const Place& place, const LastTwo& last, const Moment& now) const {
  const auto& [first, second] = last;
  const bool one = second.backwards > first.backwards, other = now.backwards > second.backwards;
  if (one != other) return false;
  if (!one && place.differentiated && now.live_bytes > second.live_bytes) return false;
  const uint32_t before = second.edges - first.edges, since = now.edges - second.edges;
  if (before == 0 && since == 0) return watch_ == Watch::everything;
  if (before < 2 || since < 2) return false;
  if (place.kind == Kind::call) return before == since && since <= kMostCalls;
  return one && place.kind == Kind::write && before <= kMostParts && since <= kMostParts;
}

}  // namespace um
