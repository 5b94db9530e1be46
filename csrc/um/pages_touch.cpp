#include "um/pages_touch.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace um::pages {
namespace {

template <class Items>
void shuffle(Items& items, std::mt19937_64& random) {  // std::shuffle differs from library to library
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random() % i]);
}

}  // namespace

Toucher::Toucher(Driver& driver, const std::vector<uint32_t>& blocks, const Touch& touch, std::mt19937_64& random)
    : driver_(driver), blocks_(blocks), touch_(touch), random_(random) {
  const uint64_t page_bytes = driver.machine.page_bytes;
  const uint64_t first = touch.offset_bytes / page_bytes, last = (touch.offset_bytes + touch.bytes - 1) / page_bytes;
  count_ = touch.stride_bytes > page_bytes ? (touch.bytes - 1) / touch.stride_bytes + 1 : last - first + 1;
  if (touch.order == TouchOrder::random && touch.window_pages < driver.pages_per_block) {
    permutation_.resize(count_);
    std::iota(permutation_.begin(), permutation_.end(), 0u);
    shuffle(permutation_, random_);
  }
  done_.resize(count_);
}

void Toucher::run() {
  driver_.journal.wait_for_engines();
  for (uint64_t position = 0; position < count_;) {
    if (done_[position] || try_access(position)) {
      ++position;
      continue;
    }
    if (touch_.processor == Processor::host) {
      const auto [block, page] = block_and_page(page_at(position));
      service_on_host({position, block, page});
      continue;
    }
    std::vector<Fault> faults = missing(position, window_end(position));
    if (touch_.order == TouchOrder::parallel || (touch_.order == TouchOrder::random && !permuted()))
      arrive_in_random_order(faults);
    service_on_device(batch_of(faults));
  }
}

// ---- the order of pages ---------------------------------------------------------------------------------------------

uint64_t Toucher::page_at(uint64_t position) const {
  if (touch_.order == TouchOrder::backward) position = count_ - 1 - position;
  if (permuted()) position = permutation_[position];
  const uint64_t page_bytes = driver_.machine.page_bytes;
  if (touch_.stride_bytes > page_bytes) return (touch_.offset_bytes + position * touch_.stride_bytes) / page_bytes;
  return touch_.offset_bytes / page_bytes + position;
}

std::pair<uint32_t, uint32_t> Toucher::block_and_page(uint64_t page) const {
  return {blocks_[page / driver_.pages_per_block], static_cast<uint32_t>(page % driver_.pages_per_block)};
}

// A window narrower than a block stays inside it.
uint64_t Toucher::window_end(uint64_t first) const {
  const uint64_t end = std::min(count_, first + touch_.window_pages);
  if (permuted() || touch_.window_pages >= driver_.pages_per_block) return end;
  const uint64_t block = page_at(first) / driver_.pages_per_block;
  uint64_t position = first + 1;
  while (position < end && page_at(position) / driver_.pages_per_block == block) ++position;
  return position;
}

uint64_t Toucher::accessed_bytes(uint64_t page) const {
  const uint64_t page_bytes = driver_.machine.page_bytes;
  const uint64_t first = std::max(page * page_bytes, touch_.offset_bytes);
  const uint64_t outer = std::min((page + 1) * page_bytes, touch_.offset_bytes + touch_.bytes);
  if (touch_.stride_bytes == 0) return outer - first;
  return ((outer - first - 1) / touch_.stride_bytes + 1) * std::min(touch_.stride_bytes, kRequestBytes);
}

// ---- accesses -------------------------------------------------------------------------------------------------------

bool Toucher::try_access(uint64_t position) {
  const auto [block, page] = block_and_page(page_at(position));
  driver_.end_expired_pins(block);
  if (!driver_.at(block).allows(touch_.processor, page, touch_.write)) return false;
  finish(position);
  return true;
}

// Done for good: what is evicted later is not accessed again.
void Toucher::finish(uint64_t position) {
  done_[position] = true;
  const uint64_t page = page_at(position);
  const auto [block, index] = block_and_page(page);
  if (!driver_.at(block).resident[static_cast<int>(touch_.processor)].test(index))
    driver_.access_remotely(block, touch_.processor, accessed_bytes(page));
}

std::vector<Toucher::Fault> Toucher::missing(uint64_t first, uint64_t outer) {
  std::vector<Fault> faults;
  for (uint64_t position = first; position < outer; ++position) {
    if (done_[position] || try_access(position)) continue;
    const auto [block, page] = block_and_page(page_at(position));
    faults.push_back({position, block, page});
  }
  return faults;
}

void Toucher::arrive_in_random_order(std::vector<Fault>& faults) {
  std::vector<std::pair<size_t, size_t>> runs;  // first and outer, in `faults`
  for (size_t i = 0; i < faults.size(); ++i) {
    const bool joins = i > 0 && faults[i].position / touch_.run_pages == faults[i - 1].position / touch_.run_pages;
    if (!joins) runs.push_back({i, i});
    runs.back().second = i + 1;
  }
  shuffle(runs, random_);
  std::vector<Fault> arrived;
  for (const auto& [first, outer] : runs)
    arrived.insert(arrived.end(), &faults[first], &faults[first] + (outer - first));
  faults.swap(arrived);
}

// The first to arrive, as many as a batch takes.
std::vector<Toucher::Fault> Toucher::batch_of(const std::vector<Fault>& faults) const {
  std::map<uint32_t, uint32_t> in_block;
  std::vector<Fault> batch;
  for (const Fault& fault : faults) {
    if (batch.size() == driver_.journal.costs.batch_max) break;
    if (touch_.faults_per_service != 0 && in_block[fault.block] == touch_.faults_per_service) continue;
    ++in_block[fault.block];
    batch.push_back(fault);
  }
  return batch;
}

// Sorted by address and serviced block by block; one replay at the end, all accesses that were serviced go on.
void Toucher::service_on_device(std::vector<Fault> faults) {
  std::sort(faults.begin(), faults.end(),
            [&](const Fault& a, const Fault& b) { return page_at(a.position) < page_at(b.position); });
  driver_.journal.begin_batch(static_cast<uint32_t>(faults.size()));
  bool progress = false;
  int64_t retry_ns = INT64_MAX;
  std::vector<uint64_t> serviced;
  for (size_t first = 0, outer; first < faults.size(); first = outer) {
    const uint32_t block = faults[first].block;
    PageMask pages;
    for (outer = first; outer < faults.size() && faults[outer].block == block; ++outer) pages.set(faults[outer].page);
    const PageMask throttled = driver_.service(block, touch_.processor, pages, touch_.write);
    for (size_t i = first; i < outer; ++i) {
      if (throttled.test(faults[i].page)) {
        retry_ns = std::min(retry_ns, driver_.throttle_end_ns(block, faults[i].page));
      } else {
        serviced.push_back(faults[i].position);
      }
    }
    progress = progress || !(pages - throttled).empty();
  }
  driver_.journal.end_batch();
  for (uint64_t position : serviced) finish(position);
  // Replays until the throttling ends would find nothing to do.
  if (!progress) driver_.journal.wait_until(retry_ns + 1);
}

// One page at a time; a throttled thread sleeps its nap.
void Toucher::service_on_host(const Fault& fault) {
  Journal& journal = driver_.journal;
  journal.spend(journal.costs.host_fault_ns);
  PageMask page;
  page.set(fault.page);
  if (!driver_.service(fault.block, Processor::host, page, touch_.write).empty()) {
    journal.wait_until(driver_.throttle_end_ns(fault.block, fault.page) + 1);
    return;
  }
  ++journal.counters.shared.host_fault_groups;
  finish(fault.position);
}

}  // namespace um::pages
