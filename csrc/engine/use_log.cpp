#include "engine/use_log.h"

#include <algorithm>
#include <iterator>

namespace um {

void UseLog::start(uint64_t position) {
  ring_.resize(kMostOps);
  first_ = end_ = position;
}

void UseLog::note(uint32_t op, uint64_t serial) noexcept { ring_[end_++ % kMostOps] = {serial, op}; }

namespace {

template <class Each>
void make_distinct(std::vector<Each>* all) {
  std::sort(all->begin(), all->end());
  all->erase(std::unique(all->begin(), all->end()), all->end());
}

// Returns the share of the union that both sets have.
template <class Each>
UseLog::Likeness compared(bool lasting, const std::vector<Each>& one, const std::vector<Each>& other) {
  std::vector<Each> both;
  std::set_intersection(one.begin(), one.end(), other.begin(), other.end(), std::back_inserter(both));
  const size_t either = one.size() + other.size() - both.size();
  return {lasting, either == 0 ? 0 : static_cast<double>(both.size()) / static_cast<double>(either), either};
}

}  // namespace

std::vector<UseLog::Use> UseLog::uses(uint64_t from, uint64_t to, const std::vector<uint64_t>& lasting) const {
  std::vector<Use> found;
  for (uint64_t at = from; at < to; ++at) {
    const Use& use = ring_[at % kMostOps];
    if (std::binary_search(lasting.begin(), lasting.end(), use.serial)) found.push_back(use);
  }
  make_distinct(&found);
  return found;
}

std::vector<uint32_t> UseLog::operators(uint64_t from, uint64_t to) const {
  std::vector<uint32_t> found;
  for (uint64_t at = from; at < to; ++at) found.push_back(ring_[at % kMostOps].op);
  make_distinct(&found);
  return found;
}

UseLog::Likeness UseLog::likeness(uint64_t first, uint64_t second, const std::vector<uint64_t>& lasting) const {
  const Likeness found = compared(true, uses(first, second, lasting), uses(second, end_, lasting));
  if (found.part >= kLasting) return found;
  return compared(false, operators(first, second), operators(second, end_));
}

}  // namespace um
