#include "engine/refusal.h"

#include <algorithm>
#include <utility>

#include "memory/host_memory.h"

namespace um {
namespace {

constexpr const char* kOtherwise = "; unified memory (policy advise) runs in any";

std::string made_of(const Need& need, uint64_t budget, uint64_t chunk_bytes) {
  const auto words = [&](uint64_t count) { return in_words(count * chunk_bytes); };
  return "its working set takes " + words(need.working) + " in chunks of " + words(1) + ", and " +
         words(need.held + need.small) + " beside it cannot leave; the budget is " + words(budget);
}

}  // namespace

std::string refusal(const Need& need, uint64_t budget, uint64_t chunk_bytes) {
  return made_of(need, budget, chunk_bytes) + ", one of at least " + in_words(need.chunks() * chunk_bytes) +
         " would do for this op" + kOtherwise;
}

std::string refusal_of_step(const Need& need, uint64_t budget, uint64_t chunk_bytes) {
  // What was refused is never advised: an op may also have been refused for how others lay in the chunks.
  const uint64_t enough_bytes =
      std::max((need.working + need.held) * chunk_bytes + Need::kConstantBytes, (budget + 1) * chunk_bytes);
  return made_of(need, budget, chunk_bytes) + ". No op of this step needs more: a budget of " + in_words(enough_bytes) +
         " does for it and for all like it, with the " + in_words(Need::kConstantBytes) +
         " that small tensors may take, which now take " + in_words(need.small * chunk_bytes) + kOtherwise;
}

void PutOff::note(const Need& need, const std::string& who) {
  if (need.working + need.held <= most_.working + most_.held) return;
  most_ = need;
  who_ = who;
}

std::string PutOff::end(uint64_t budget, uint64_t chunk_bytes) {
  const Need most = std::exchange(most_, {});
  const std::string who = std::exchange(who_, {});
  active_ = false;
  return who.empty() ? "" : who + refusal_of_step(most, budget, chunk_bytes);
}

}  // namespace um
