#include "engine/running_op.h"

#include <algorithm>
#include <utility>

#include "um/model.h"

namespace um {
namespace {

// Returns the first page, and the page after the last one.
std::pair<uint64_t, uint64_t> pages(const um_access& access) {
  const uint64_t address = reinterpret_cast<uint64_t>(access.address);
  return {address / kBlockBytes, (address + access.bytes + kBlockBytes - 1) / kBlockBytes};
}

}  // namespace

void WorkingSet::add(uint64_t address, uint64_t bytes, bool write) {
  if (bytes == 0) return;
  accesses_.push_back({reinterpret_cast<const void*>(address), bytes, write, 0, nullptr});
  const auto [first, end] = pages(accesses_.back());
  most_pages_ += end - first;
}

void WorkingSet::remove(uint64_t address) noexcept {
  for (size_t i = accesses_.size(); i-- > 0;) {
    if (accesses_[i].address != reinterpret_cast<const void*>(address)) continue;
    const auto [first, end] = pages(accesses_[i]);
    most_pages_ -= end - first;
    accesses_.erase(accesses_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

std::optional<bool> WorkingSet::use_of(uint64_t page_address) const {
  std::optional<bool> writes;
  for (const um_access& access : accesses_) {
    const auto [first, end] = pages(access);
    const uint64_t page = page_address / kBlockBytes;
    if (page >= first && page < end) writes = writes.value_or(false) || access.write != 0;
  }
  return writes;
}

uint64_t WorkingSet::bytes_if_above(uint64_t limit_bytes) const {
  if (most_pages_ * kBlockBytes <= limit_bytes) return most_pages_ * kBlockBytes;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  ranges.reserve(accesses_.size());
  for (const um_access& access : accesses_) ranges.push_back(pages(access));
  std::sort(ranges.begin(), ranges.end());
  uint64_t distinct = 0, reached = 0;
  for (const auto& [first, end] : ranges) {
    if (end <= reached) continue;
    distinct += end - std::max(first, reached);
    reached = end;
  }
  return distinct * kBlockBytes;
}

uint64_t OpContexts::begin(const OpIdentity& identity) {
  identities_[++last_ % kRemembered] = identity;
  return last_;
}

OpIdentity OpContexts::find(uint64_t context) const {
  OpIdentity identity;
  if ((context & kOutside) != 0) {
    identity.step = static_cast<uint32_t>(context);
  } else if (context != 0 && context + kRemembered > last_) {
    identity = identities_[context % kRemembered];
  }
  return identity;
}

}  // namespace um
