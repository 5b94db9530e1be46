// Construction, ranges and statistics. What moves pages is in space_pages.cpp, the copy engine in space_copies.cpp.
#include "devices/emulated/space.h"

namespace um::emulated {
namespace {

uint32_t slots_for(uint64_t bytes) { return static_cast<uint32_t>(bytes / kBlockBytes); }

uint32_t blocks_for(uint64_t bytes) { return static_cast<uint32_t>((bytes + kBlockBytes - 1) / kBlockBytes); }

}  // namespace

Space::Space(int device, const um_emulated_options& options, Mapper::Method method)
    : delays(options.delay_max_us, options.delay_seed),
      device_(device),
      ordered_(options.counting == UM_COUNTING_ORDERED),
      mapper_(method),
      device_tier_("umadvise-device", slots_for(options.capacity_bytes)),
      host_tier_("umadvise-host", slots_for(options.host_bytes)),
      model_(kSpanBlocks, device_tier_.slots()),
      plain_(model_, device_tier_.slots()) {}

Space::~Space() {
  while (!mappings_.empty()) {
    const auto& [first, mapping] = *mappings_.begin();
    if (unmap(address_of(first), mapping.count * kBlockBytes) != driver::CUDA_SUCCESS) break;
  }
  while (!ranges_.empty()) {
    const uint32_t first = ranges_.first();
    if (!free(address_of(first))) ranges_.give(first);
  }
}

uint64_t Space::address_of(uint32_t block) const { return block_address(device_, block); }

// ---- ranges ------------------------------------------------------------------------------------------------

uint64_t Space::allocate_managed(uint64_t bytes) {
  const std::lock_guard<std::mutex> ranges(ranges_lock_);
  const uint32_t count = blocks_for(bytes);
  if (bytes > kSpanBytes || managed_blocks_ + host_handle_slots_ + count > host_tier_.slots()) return 0;
  const uint32_t first = ranges_.find_room(count);
  if (first == Model::kNone) return 0;
  ranges_.take(first, count);
  managed_blocks_ += count;
  const Guard guard(lock_);
  model_.allocate(first, count);
  for (uint32_t block = first; block < first + count; ++block) {
    blocks_[block].kind = Kind::managed;
    blocks_[block].tag = ResidentBlocks::kUntagged;
  }
  return address_of(first);
}

uint64_t Space::allocate_plain(uint64_t bytes) {
  const std::lock_guard<std::mutex> ranges(ranges_lock_);
  const uint32_t count = blocks_for(bytes);
  if (bytes > kSpanBytes || count > device_tier_.slots()) return 0;
  const uint32_t first = ranges_.find_room(count);
  if (first == Model::kNone) return 0;
  Moment over;
  const Guard guard(lock_);
  link_.begin(now_ns());
  const auto make_room = [&](const Outcome& outcome) { return evict(outcome); };
  plain_.return_remnant();
  uint32_t block = first;
  for (; block < first + count; ++block) {
    bool done = true;
    if (!plain_.take(make_room, done)) break;
    Block& made = blocks_[block];
    made.tag = ResidentBlocks::kUntagged;
    done = done && take_device_slot(made);
    if (done) device_tier_.populate(made.device_slot - 1);
    if (!done || !mapper_.show(device_tier_, made.device_slot - 1, address_of(block), true)) {
      give_device_slot(made);
      plain_.give();
      break;
    }
    made.mapping = static_cast<uint8_t>(Mapping::device_write);
    made.kind = Kind::plain;
  }
  const bool complete = block == first + count;
  while (!complete && block > first) release_block(--block);
  plain_.withhold_remnant(make_room);
  over.ns = link_.at_ns();
  if (!complete) return 0;
  ranges_.take(first, count);
  return address_of(first);
}

bool Space::free(uint64_t address) {
  const std::lock_guard<std::mutex> ranges(ranges_lock_);
  const uint32_t first = place_of(address).block, count = ranges_.count_at(first);
  if (count == 0 || address_of(first) != address) return false;
  const Guard guard(lock_);
  if (blocks_[first].kind == Kind::reserved) return false;
  if (blocks_[first].kind == Kind::managed) managed_blocks_ -= count;
  for (uint32_t block = first; block < first + count; ++block) release_block(block);
  ranges_.give(first);
  plain_.withhold_remnant([&](const Outcome& outcome) { return evict(outcome); });
  return true;
}

void Space::release_block(uint32_t index) {
  Block& block = blocks_[index];
  unmap(index);
  if (block.kind == Kind::managed) model_.release(index);
  if (block.kind == Kind::plain) plain_.give();
  give_device_slot(block);
  give_host_slot(block);
  block.kind = Kind::free;
  block.had = false;
  block.ready_ns = 0;
}

uint64_t Space::allocation_bytes(uint64_t address) {
  const std::lock_guard<std::mutex> ranges(ranges_lock_);
  const uint32_t first = place_of(address).block;
  return address_of(first) == address ? ranges_.count_at(first) * kBlockBytes : 0;
}

// Whether the range lies in this device's span, and each of its blocks is like that.
template <class Holds>
bool Space::all_blocks(uint64_t address, uint64_t bytes, const Holds& holds) {
  const uint64_t begin = address_of(0);
  if (address < begin || bytes > kSpanBytes || address - begin > kSpanBytes - bytes) return false;
  bool all = true;
  const Guard guard(lock_);
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) { all = all && holds(blocks_[block]); });
  return all;
}

bool Space::managed(uint64_t address, uint64_t bytes) {
  return bytes > 0 && all_blocks(address, bytes, [](const Block& block) { return block.kind == Kind::managed; });
}

bool Space::may_copy(uint64_t address, uint64_t bytes) {
  return all_blocks(address, bytes, [](const Block& block) {
    return block.kind != Kind::free && (block.kind != Kind::reserved || block.copy_access() != 0);
  });
}

// ---- what happened -----------------------------------------------------------------------------------------

void Space::residency(uint64_t address, uint64_t bytes, uint64_t* device_blocks, uint64_t* host_blocks) {
  *device_blocks = *host_blocks = 0;
  const Guard guard(lock_);
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) {
    *device_blocks += blocks_[block].device_slot != 0;
    *host_blocks += blocks_[block].host_slot != 0;
  });
}

void Space::tag(uint64_t address, uint64_t bytes, uint32_t tag) {
  const Guard guard(lock_);
  each_piece(address, bytes, [&](uint32_t index, uint64_t, uint64_t) {
    Block& block = blocks_[index];
    if (block.device_slot != 0) resident_.retag(block.tag, static_cast<uint8_t>(tag));
    block.tag = static_cast<uint8_t>(tag);
  });
}

void Space::reset_peaks() {
  const Guard guard(lock_);
  resident_.reset_peaks();
}

Totals Space::totals() {
  const Guard guard(lock_);
  Totals totals{};
  totals.model = model_.counters();
  totals.unordered_faults = unordered_faults_;
  totals.fault_service_ns = fault_service_ns_;
  totals.silent_writes = silent_writes_;
  totals.host_bytes = host_tier_.taken() * kBlockBytes;
  resident_.tell(totals);
  return totals;
}

void Space::set_link(const um_link& link, const um_driver_costs& costs) {
  const Guard guard(lock_);
  link_.set(link, costs);
}

um_charged Space::charged() {
  const Guard guard(lock_);
  return link_.charged();
}

void Space::charge_call(int64_t um_driver_costs::* cost) {
  Moment over;
  const Guard guard(lock_);
  link_.begin(now_ns());
  link_.spend(link_.costs().*cost);
  over.ns = link_.at_ns();
}

uint64_t Space::free_bytes() {
  const Guard guard(lock_);
  return plain_.free_chunks() * kBlockBytes;
}

}  // namespace um::emulated
