#include "engine/refusal.h"

#include <algorithm>
#include <utility>

#include "memory/host_memory.h"

namespace um {
namespace {

constexpr const char* kOtherwise = "; unified memory (policy advise) runs in any";

std::string made_of(const Need& need, const PresentBudget& budget) {
  const auto words = [&](uint64_t count) { return in_words(count * budget.chunk_bytes); };
  const std::string present = budget.divided()
                                  ? in_words(budget.session_bytes) + ", of which chunks have " + words(budget.chunks)
                                  : words(budget.chunks);
  return "its working set takes " + words(need.working) + " in chunks of " + words(1) + ", and " +
         words(need.held + need.small) + " beside it cannot leave; the budget is " + present;
}

// The present budget is never advised again, because an op may also be refused for the way in which others lie in
// chunks.
uint64_t enough_bytes(const Need& need, const PresentBudget& budget) {
  const uint64_t present_bytes = std::max(budget.session_bytes, budget.chunks * budget.chunk_bytes);
  return std::max(need.lasting() * budget.chunk_bytes + Need::kConstantBytes, present_bytes + budget.chunk_bytes);
}

std::string with_small(const Need& need, const PresentBudget& budget) {
  return ", with the " + in_words(Need::kConstantBytes) + " that small tensors may take, which now take " +
         in_words(need.small * budget.chunk_bytes);
}

}  // namespace

std::string refusal(const Need& need, const PresentBudget& budget) {
  return made_of(need, budget) + ". Up to this point a budget of " + in_words(enough_bytes(need, budget)) + " does" +
         with_small(need, budget) + ". Results and later ops may need more" + kOtherwise;
}

std::string refusal_of_step(const Need& need, const PresentBudget& budget) {
  return made_of(need, budget) + ". No op of this step needs more: a budget of " +
         in_words(enough_bytes(need, budget)) + " does for it and for all like it" + with_small(need, budget) +
         kOtherwise;
}

void PutOff::note(const Need& need, const std::string& who) {
  if (need.lasting() <= most_.lasting()) return;
  most_ = need;
  who_ = who;
}

std::string PutOff::end(const PresentBudget& budget) {
  const Need most = std::exchange(most_, {});
  const std::string who = std::exchange(who_, {});
  active_ = false;
  return who.empty() ? "" : who + refusal_of_step(most, budget);
}

}  // namespace um
