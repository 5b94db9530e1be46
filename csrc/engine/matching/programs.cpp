#include "engine/matching/programs.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace um {

namespace {

// Comparing more ops before a position would not distinguish it any better.
constexpr size_t kMostContext = 8;
// An op without a persistent operand is found only if at least this many ops before it are equal too.
constexpr size_t kLeastContext = 2;
constexpr size_t kMostPlaces = 64;
// A step's size is compared at each of its first ops, and at every 64th op after these.
constexpr size_t kSizingOps = 64;
// A plan for too little memory is worse than one for too much, so the former counts as this much farther away.
constexpr double kTooSmall = 2;

double unlikeness(int64_t made, int64_t programs) {
  const auto one = static_cast<double>(std::max<int64_t>(made, 1)),
             other = static_cast<double>(std::max<int64_t>(programs, 1));
  return one > other ? (one / other - 1) * kTooSmall : other / one - 1;
}

}  // namespace

const Program& Programs::add(const um_program& program) {
  constexpr int32_t kMostKeys = std::numeric_limits<int32_t>::max() / 2;
  if (next_key_ > kMostKeys) next_key_ = 0;  // the programs that had these keys were dropped long ago
  all_.push_back(std::make_unique<Program>(program, last_number_ + 1, next_key_));
  ++last_number_;
  next_key_ += all_.back()->storage_count();
  return *all_.back();
}

// The keys stay the same if both programs have as many storages.
std::unique_ptr<const Program> Programs::replace(const um_program& program) {
  const auto place =
      std::find_if(all_.begin(), all_.end(), [&](const auto& each) { return each->number == program.replaces; });
  if (place == all_.end()) throw Error(UM_INVALID_ARGUMENT, "there is no program to be replaced");
  const Program& old = **place;
  const bool as_many = program.trace->storage_count == static_cast<uint64_t>(old.storage_count());
  auto added = std::make_unique<Program>(program, old.number, as_many ? old.first_key : next_key_);
  if (!as_many) next_key_ += added->storage_count();
  place->swap(added);
  return added;
}

void Programs::drop(uint32_t number) noexcept {
  all_.erase(std::remove_if(all_.begin(), all_.end(), [&](const auto& each) { return each->number == number; }),
             all_.end());
}

void Programs::clear() noexcept {
  all_.clear();
  successors_.clear();
}

const Program* Programs::find(uint32_t number) const {
  for (const auto& each : all_) {
    if (each->number == number) return each.get();
  }
  return nullptr;
}

const Program* Programs::expected(const Program* before) const {
  const auto found = successors_.find(before != nullptr ? before->number : 0);
  const Program* const known = found != successors_.end() ? find(found->second) : nullptr;
  if (known != nullptr) return known;
  return before != nullptr ? before : (all_.empty() ? nullptr : all_.back().get());
}

void Programs::note_step(const Program* before, const Program& now) {
  successors_[before != nullptr ? before->number : 0] = now.number;
}

void Programs::expect(const Program* before, const Program& next) {
  successors_.emplace(before != nullptr ? before->number : 0, next.number);
}

Programs::Place Programs::seek(const ProgramCursor& cursor) const {
  if (const Place found = same_beginning(cursor); found.program != nullptr) return found;
  Place best;
  size_t most = 0;
  const auto look_in = [&](const Program& program) {
    size_t context = 0;
    const Place found = best_place(program, cursor, &context);
    if (found.program != nullptr && (best.program == nullptr || context > most)) best = found, most = context;
  };
  look_in(*cursor.program());
  if (best.program != nullptr) return best;
  for (auto each = all_.rbegin(); each != all_.rend(); ++each) {
    if (each->get() != cursor.program()) look_in(**each);
  }
  return best;
}

// Considers only programs that begin with all of the step's ops. The nearest in size wins; of equally near ones, the
// longest does.
Programs::Place Programs::same_beginning(const ProgramCursor& cursor) const {
  const std::vector<uint64_t>& history = cursor.history();
  Place best;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& each : all_) {
    const std::vector<uint64_t>& signatures = each->signatures();
    if (each.get() == cursor.program() || signatures.size() < history.size()) continue;
    if (signatures[history.size() - 1] != history.back()) continue;
    if (!std::equal(history.begin(), history.end(), signatures.begin())) continue;
    const int32_t before = each->matchable_ops()[history.size() - 1] - 1;
    const double unlike = unlikeness(cursor.made_bytes(), each->made_bytes(before));
    const bool longer = best.program != nullptr && signatures.size() > best.program->signatures().size();
    if (unlike < least || (unlike == least && longer)) {
      best = {each.get(), history.size() - 1, cursor.unbroken()}, least = unlike;
    }
  }
  return best;
}

// Returns the position before which the most ops equal those of the step. A tie goes to the nearest one ahead, or else
// to the nearest one behind: ops that repeat go on where they began.
Programs::Place Programs::best_place(const Program& program, const ProgramCursor& cursor, size_t* context) const {
  const std::vector<uint64_t>&history = cursor.history(), &signatures = program.signatures();
  const std::vector<size_t>& positions = program.positions(history.back());
  const size_t next = &program == cursor.program() ? cursor.next_position() : 0;
  const auto ahead = std::lower_bound(positions.begin(), positions.end(), next);
  Place best;
  size_t tried = 0;
  const auto look_at = [&](size_t position) {
    size_t same = 0;
    const size_t most = std::min({kMostContext, position, history.size() - 1});
    while (same < most && signatures[position - same - 1] == history[history.size() - same - 2]) ++same;
    if (!program.uses_persistent(position) && same < kLeastContext) return;
    if (best.program == nullptr || same > *context) best = {&program, position, false}, *context = same;
  };
  for (auto each = ahead; each != positions.end() && tried < kMostPlaces; ++each, ++tried) look_at(*each);
  for (auto each = ahead; each != positions.begin() && tried < kMostPlaces; ++tried) look_at(*--each);
  return best;
}

const Program* Programs::nearer_in_size(const ProgramCursor& cursor) const {
  if (cursor.exact()) return nullptr;
  if (cursor.next_position() > kSizingOps && cursor.next_position() % kSizingOps != 0) return nullptr;
  const Program* const followed = cursor.program();
  const Program* best = followed;
  double least = unlikeness(cursor.made_bytes(), followed->made_bytes(cursor.op() - 1));
  for (const auto& each : all_) {
    if (each.get() == followed || each->family() != followed->family()) continue;
    const int32_t op = cursor.next_position() > 0 ? each->matchable_ops()[cursor.next_position() - 1] : -1;
    const double unlike = unlikeness(cursor.made_bytes(), each->made_bytes(op - 1));
    if (unlike < least) best = each.get(), least = unlike;
  }
  return best != followed ? best : nullptr;
}

}  // namespace um
