#include "um/pages.h"

#include <string>

#include "base/error.h"
#include "umadvise.h"

namespace um {
namespace {

// The tables of the model take 330 bytes a MiB.
constexpr uint64_t kMostDeviceBytes = uint64_t{1} << 40, kMostAllocationBytes = uint64_t{1} << 40;

pages::Machine checked(const pages::Machine& machine, const pages::Costs& costs) {
  const uint32_t page = machine.page_bytes;
  if (page != 4096 && page != 16384 && page != 65536)
    throw Error(UM_INVALID_ARGUMENT, "pages of " + std::to_string(page) + " bytes: expected 4096, 16384 or 65536");
  if (machine.device_bytes < kBlockBytes || machine.device_bytes > kMostDeviceBytes)
    throw Error(UM_INVALID_ARGUMENT,
                "a device of " + std::to_string(machine.device_bytes) + " bytes: expected 2 MiB to 1 TiB");
  for (double rate : {costs.h2d_bytes_per_s, costs.d2h_bytes_per_s, costs.zero_bytes_per_s, costs.remote_bytes_per_s})
    if (!(rate > 0)) throw Error(UM_INVALID_ARGUMENT, "a bandwidth that is not above 0 bytes a second");
  if (costs.batch_max == 0 || costs.batch_max > 1u << 20)
    throw Error(UM_INVALID_ARGUMENT, "fault batches of " + std::to_string(costs.batch_max) + " entries");
  return machine;
}

}  // namespace

PageModel::PageModel(const pages::Machine& machine, const pages::Costs& costs)
    : driver_(checked(machine, costs), costs) {}

PageModel::Allocation& PageModel::at(Id id) const {
  const auto found = allocations_.find(id);
  if (found == allocations_.end())
    throw Error(UM_INVALID_ARGUMENT, "allocation " + std::to_string(id) + " does not exist or is freed");
  return *found->second;
}

PageModel::Id PageModel::allocate(uint64_t bytes) {
  if (bytes == 0 || bytes > kMostAllocationBytes)
    throw Error(UM_INVALID_ARGUMENT, "an allocation of " + std::to_string(bytes) + " bytes: expected 1 byte to 1 TiB");
  auto allocation = std::make_unique<Allocation>();
  allocation->address = next_address_;
  allocation->bytes = bytes;
  const uint64_t page_bytes = driver_.machine.page_bytes;
  for (uint64_t pages = (bytes + page_bytes - 1) / page_bytes; pages > 0;) {
    const uint32_t here = static_cast<uint32_t>(std::min<uint64_t>(pages, driver_.pages_per_block));
    allocation->blocks.push_back(driver_.add_block(next_address_, here, &allocation->policy));
    next_address_ += kBlockBytes;
    pages -= here;
  }
  allocations_[next_id_] = std::move(allocation);
  return next_id_++;
}

void PageModel::free(Id id) {
  for (uint32_t block : at(id).blocks) driver_.release(block);
  allocations_.erase(id);
}

void PageModel::touch(Id id, const pages::Touch& touch) {
  const Allocation& allocation = at(id);
  if (touch.offset_bytes > allocation.bytes || touch.bytes > allocation.bytes - touch.offset_bytes)
    throw Error(UM_INVALID_ARGUMENT, "bytes " + std::to_string(touch.offset_bytes) + " to " +
                                         std::to_string(touch.offset_bytes + touch.bytes) + " of an allocation of " +
                                         std::to_string(allocation.bytes));
  if (touch.window_pages == 0 || touch.run_pages == 0)
    throw Error(UM_INVALID_ARGUMENT, "a window or a run of no pages: expected at least 1");
  if (touch.bytes > 0) pages::Toucher(driver_, allocation.blocks, touch, random_).run();
}

void PageModel::advise(Id id, Advice advice, Processor processor) {
  Allocation& allocation = at(id);
  pages::Policy& policy = allocation.policy;
  driver_.journal.spend(driver_.journal.costs.advise_call_ns);
  const auto each = [&](const auto& work) {
    for (uint32_t block : allocation.blocks) work(block);
  };
  const auto set_read_mostly = [&](bool on) {
    if (policy.read_mostly == on) return;
    policy.read_mostly = on;
    each([&](uint32_t block) { on ? driver_.read_mostly_set(block) : driver_.read_mostly_unset(block); });
  };
  const auto prefer = [&](pages::Location location) {
    const pages::Location former = policy.preferred;
    if (former == location) return;
    policy.preferred = location;
    each([&](uint32_t block) { driver_.preferred_location_changed(block, former); });
  };
  switch (advice) {
    case Advice::set_read_mostly:
      return set_read_mostly(true);
    case Advice::unset_read_mostly:
      return set_read_mostly(false);
    case Advice::set_preferred_location:
      return prefer(pages::location_of(processor));
    case Advice::unset_preferred_location:
      return prefer(pages::Location::none);
    case Advice::set_accessed_by:
      policy.accessed_by[static_cast<int>(processor)] = true;
      return each([&](uint32_t block) { driver_.accessed_by_set(block, processor); });
    case Advice::unset_accessed_by:  // a mapping stays until the page moves (uvm/uvm_va_range.c)
      policy.accessed_by[static_cast<int>(processor)] = false;
      return;
  }
}

void PageModel::prefetch(Id id, Processor to) {
  const Allocation& allocation = at(id);
  driver_.journal.spend(driver_.journal.costs.prefetch_call_ns);
  for (uint32_t block : allocation.blocks) driver_.prefetch(block, to);
}

void PageModel::discard(Id id) {
  for (uint32_t block : at(id).blocks) driver_.discard(block);
}

}  // namespace um
