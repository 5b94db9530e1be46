#include "driver/emulated/space.h"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>

#include "driver/emulated/layout.h"

namespace um::emulated {
namespace {

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1000000000} * now.tv_sec + now.tv_nsec;
}

uint32_t slots_for(uint64_t bytes) { return static_cast<uint32_t>(bytes / kBlockBytes); }

uint32_t blocks_for(uint64_t bytes) { return static_cast<uint32_t>((bytes + kBlockBytes - 1) / kBlockBytes); }

bool on_device(Mapping mapping) { return mapping == Mapping::device_read || mapping == Mapping::device_write; }
bool writable(Mapping mapping) { return mapping == Mapping::device_write || mapping == Mapping::remote_write; }

using Guard = std::lock_guard<SpinLock>;

}  // namespace

Space::Space(int device, const um_emulated_options& options, Mapper::Method method)
    : delays(options.delay_max_us, options.delay_seed),
      device_(device),
      ordered_(options.counting == UM_COUNTING_ORDERED),
      mapper_(method),
      device_tier_("umadvise-device", slots_for(options.capacity_bytes)),
      host_tier_("umadvise-host", slots_for(options.host_bytes)),
      model_(kSpanBlocks, device_tier_.slots()) {
  void* memory = mmap(nullptr, kSpanBlocks * sizeof(Block), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  blocks_ = static_cast<Block*>(memory);  // zero is a free block with no slots and no mapping
}

Space::~Space() {
  while (!ranges_.empty()) free(address_of(ranges_.begin()->first));
  munmap(blocks_, kSpanBlocks * sizeof(Block));
}

uint64_t Space::address_of(uint32_t block) const { return block_address(device_, block); }

template <class Each>
void Space::each_piece(uint64_t address, uint64_t bytes, const Each& each) {
  const uint64_t end = address + bytes;
  while (address < end) {
    const uint32_t block = place_of(address).block;
    const uint64_t piece_end = std::min(end, address_of(block) + kBlockBytes);
    each(block, address, piece_end - address);
    address = piece_end;
  }
}

// ---- ranges ------------------------------------------------------------------------------------------------

uint32_t Space::find_room(uint32_t blocks) {
  uint32_t first = 0;
  for (const auto& [start, count] : ranges_) {
    if (start - first >= blocks) return first;
    first = start + count;
  }
  return kSpanBlocks - first >= blocks ? first : Model::kNone;
}

uint64_t Space::allocate_managed(uint64_t bytes) {
  const std::lock_guard<std::mutex> ranges(ranges_lock_);
  const uint32_t count = blocks_for(bytes);
  if (bytes > kSpanBytes || managed_blocks_ + count > host_tier_.slots()) return 0;
  const uint32_t first = find_room(count);
  if (first == Model::kNone) return 0;
  ranges_.emplace(first, count);
  managed_blocks_ += count;
  const Guard guard(lock_);
  model_.allocate(first, count);
  for (uint32_t block = first; block < first + count; ++block) blocks_[block].kind = Kind::managed;
  return address_of(first);
}

uint64_t Space::allocate_plain(uint64_t bytes) {
  const std::lock_guard<std::mutex> ranges(ranges_lock_);
  const uint32_t count = blocks_for(bytes);
  if (bytes > kSpanBytes || count > device_tier_.slots()) return 0;
  const uint32_t first = find_room(count);
  if (first == Model::kNone) return 0;
  const Guard guard(lock_);
  uint32_t block = first;
  for (; block < first + count; ++block) {
    Outcome outcome;
    if (!model_.take_chunk(outcome)) break;
    bool done = true;
    for (int i = 0; i < outcome.count; ++i) done = perform(outcome.actions[i]) && settle(outcome.actions[i].block) && done;
    const uint32_t slot = done ? device_tier_.take() : Tier::kNoSlot;
    if (slot != Tier::kNoSlot) device_tier_.populate(slot);
    if (slot == Tier::kNoSlot || !mapper_.show(device_tier_, slot, address_of(block), true)) {
      if (slot != Tier::kNoSlot) device_tier_.give(slot);
      model_.give_chunk();
      break;
    }
    blocks_[block].device_slot = slot + 1;
    blocks_[block].mapping = static_cast<uint8_t>(Mapping::device_write);
    blocks_[block].kind = Kind::plain;
  }
  if (block < first + count) {
    while (block > first) release_block(--block);
    return 0;
  }
  ranges_.emplace(first, count);
  return address_of(first);
}

bool Space::free(uint64_t address) {
  const std::lock_guard<std::mutex> ranges(ranges_lock_);
  const auto found = ranges_.find(place_of(address).block);
  if (found == ranges_.end() || address_of(found->first) != address) return false;
  const Guard guard(lock_);
  if (blocks_[found->first].kind == Kind::managed) managed_blocks_ -= found->second;
  for (uint32_t block = found->first; block < found->first + found->second; ++block) release_block(block);
  ranges_.erase(found);
  return true;
}

void Space::release_block(uint32_t index) {
  Block& block = blocks_[index];
  unmap(index);
  if (block.kind == Kind::managed) model_.release(index);
  if (block.kind == Kind::plain) model_.give_chunk();
  give_slot(device_tier_, block.device_slot);
  give_slot(host_tier_, block.host_slot);
  block.kind = Kind::free;
}

uint64_t Space::allocation_bytes(uint64_t address) {
  const std::lock_guard<std::mutex> ranges(ranges_lock_);
  const auto found = ranges_.find(place_of(address).block);
  return found == ranges_.end() || address_of(found->first) != address ? 0 : found->second * kBlockBytes;
}

bool Space::managed(uint64_t address, uint64_t bytes) {
  bool all = bytes > 0 && address + bytes <= address_of(0) + kSpanBytes && address >= address_of(0);
  if (!all) return false;
  const Guard guard(lock_);
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) { all = all && blocks_[block].kind == Kind::managed; });
  return all;
}

// ---- doing what the model says -----------------------------------------------------------------------------

void Space::push(um_event_kind kind, Cause cause, uint64_t address, uint64_t bytes, int64_t start_ns, bool write,
                 bool unordered, bool first_touch) {
  if (!events_.on) return;
  events_.push({start_ns, now_ns() - start_ns, address, bytes, context.load(std::memory_order_relaxed), kind, cause, write,
                unordered, first_touch});
}

void Space::give_slot(Tier& tier, uint32_t& slot) {
  if (slot != 0) tier.give(slot - 1);
  slot = 0;
}

bool Space::unmap(uint32_t index) {
  Block& block = blocks_[index];
  const auto now = static_cast<Mapping>(block.mapping.load());
  if (now == Mapping::none) return true;
  const bool device = on_device(now);
  block.mapping = static_cast<uint8_t>(Mapping::none);
  const bool hidden = mapper_.hide(device ? device_tier_ : host_tier_, (device ? block.device_slot : block.host_slot) - 1,
                                   address_of(index));
  delays.wait();
  return hidden;
}

// Brings the page tables in line with the model, once the data is where it must be.
bool Space::settle(uint32_t index) {
  Block& block = blocks_[index];
  const auto now = static_cast<Mapping>(block.mapping.load());
  const Mapping wanted = block.kind == Kind::managed ? model_.mapping(index) : now;
  if (now == wanted) return true;
  bool done = true;
  if (on_device(now) == on_device(wanted) && now != Mapping::none && writable(wanted)) {
    done = mapper_.make_writable(address_of(index));
  } else {
    done = unmap(index);
    if (wanted != Mapping::none) {
      const bool device = on_device(wanted);
      delays.wait();
      done = done && mapper_.show(device ? device_tier_ : host_tier_, (device ? block.device_slot : block.host_slot) - 1,
                                  address_of(index), writable(wanted));
    }
  }
  block.mapping = static_cast<uint8_t>(wanted);
  return done;
}

bool Space::perform(const Action& action) {
  Block& block = blocks_[action.block];
  const uint64_t address = address_of(action.block);
  const int64_t start = events_.on ? now_ns() : 0;
  // Whoever still sees a copy must not store into it while it is copied, nor after it is given away.
  const bool seen_on_device = on_device(static_cast<Mapping>(block.mapping.load()));
  const bool stays_visible = (action.what == Do::drop_host && seen_on_device) || (action.what == Do::drop_device && !seen_on_device);
  if (!stays_visible && !unmap(action.block)) return false;
  const bool needs_device = action.what == Do::zero_device || action.what == Do::copy_h2d;
  const bool needs_host = action.what == Do::zero_host || action.what == Do::copy_d2h || action.what == Do::evict_copy;
  Tier& tier = needs_device ? device_tier_ : host_tier_;
  uint32_t& slot = needs_device ? block.device_slot : block.host_slot;
  bool fresh = false;
  if (needs_device || needs_host) {
    if (slot == 0) slot = tier.take() + 1;
    if (slot == 0) return false;  // kNoSlot + 1
    fresh = tier.populate(slot - 1);
  }
  char* device = block.device_slot != 0 ? device_tier_.alias(block.device_slot - 1) : nullptr;
  char* host = block.host_slot != 0 ? host_tier_.alias(block.host_slot - 1) : nullptr;
  switch (action.what) {
    case Do::zero_device:
    case Do::zero_host:
      if (!fresh) std::memset(needs_device ? device : host, 0, kBlockBytes);
      break;
    case Do::copy_h2d:
      std::memcpy(device, host, kBlockBytes);
      push(UM_EVENT_TRANSFER_H2D, action.cause, address, kBlockBytes, start);
      break;
    case Do::copy_d2h:
    case Do::evict_copy:
      std::memcpy(host, device, kBlockBytes);
      push(UM_EVENT_TRANSFER_D2H, action.cause, address, kBlockBytes, start);
      break;
    case Do::evict_drop:
    case Do::drop_host:
    case Do::drop_device:
      break;
  }
  delays.wait();
  const bool evicts = action.what == Do::evict_copy || action.what == Do::evict_drop;
  if (evicts) push(UM_EVENT_EVICTION, Cause::eviction, address, action.what == Do::evict_copy ? kBlockBytes : 0, start);
  if (evicts || action.what == Do::drop_device) give_slot(device_tier_, block.device_slot);
  if (action.what == Do::drop_host) give_slot(host_tier_, block.host_slot);
  return true;
}

bool Space::apply(const Outcome& outcome, uint32_t block) {
  bool done = true;
  for (int i = 0; i < outcome.count; ++i) done = done && perform(outcome.actions[i]);
  for (int i = 0; i < outcome.count; ++i) done = done && settle(outcome.actions[i].block);
  return done && settle(block);
}

bool Space::covered(uint32_t block, bool write) const {
  const auto now = static_cast<Mapping>(blocks_[block].mapping.load(std::memory_order_relaxed));
  return write ? writable(now) : now != Mapping::none;
}

// ---- service -----------------------------------------------------------------------------------------------

Service Space::serve(uint32_t block, uint64_t address, bool write, bool unordered) {
  if (blocks_[block].kind != Kind::managed) return Service::not_ours;
  if (covered(block, write)) return Service::served;  // another thread was first
  const int64_t start = now_ns();
  const Outcome outcome = model_.access(block, Processor::device, write);
  if (!apply(outcome, block)) return Service::failed;
  fault_service_ns_ += now_ns() - start;
  unordered_faults_ += unordered;
  push(UM_EVENT_FAULT_GROUP, Cause::coherence, address, kBlockBytes, start, write, unordered, outcome.first_touch);
  if (outcome.collapse) push(UM_EVENT_COLLAPSE, Cause::coherence, address, 0, start, write, unordered);
  if (outcome.remote_map) push(UM_EVENT_REMOTE_MAP, Cause::coherence, address, 0, start, write, unordered);
  return Service::served;
}

Service Space::fault(uint64_t address, bool write) {
  delays.wait();
  const Guard guard(lock_);
  return serve(place_of(address).block, address, write, ordered_);
}

bool Space::touch(uint64_t address, uint64_t bytes, bool write) {
  bool serviced = false;
  each_piece(address, bytes, [&](uint32_t block, uint64_t piece, uint64_t) {
    if (covered(block, write)) return;
    const Guard guard(lock_);
    serve(block, piece, write, false);
    serviced = true;
  });
  return serviced;
}

void Space::prefetch(uint64_t address, uint64_t bytes, Processor to) {
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) {
    delays.wait();
    const Guard guard(lock_);
    if (blocks_[block].kind == Kind::managed) apply(model_.prefetch(block, to), block);
  });
}

void Space::advise(uint64_t address, uint64_t bytes, Advice advice, Processor processor) {
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) {
    const Guard guard(lock_);
    if (blocks_[block].kind == Kind::managed) apply(model_.advise(block, advice, processor), block);
  });
}

void Space::discard(uint64_t address, uint64_t bytes) {
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t piece) {
    const Guard guard(lock_);
    if (piece == kBlockBytes && blocks_[block].kind == Kind::managed) {  // whole blocks only: a part may still be wanted
      model_.discard(block);
      settle(block);
    }
  });
}

bool Space::pin(uint64_t address, uint64_t bytes) {
  uint64_t pinned = 0;
  bool fits = true;
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t piece) {
    if (!fits) return;
    const Guard guard(lock_);
    if (blocks_[block].kind == Kind::plain) {
      pinned += piece;
      return;
    }
    fits = blocks_[block].kind == Kind::managed && apply(model_.prefetch(block, Processor::device), block) &&
           model_.resident(block, Processor::device) && apply(model_.access(block, Processor::device, true), block);
    if (!fits) return;
    model_.pin(block);
    pinned += piece;
  });
  if (!fits) unpin(address, pinned);
  return fits;
}

void Space::unpin(uint64_t address, uint64_t bytes) {
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) {
    const Guard guard(lock_);
    if (blocks_[block].kind == Kind::managed) model_.unpin(block);
  });
}

// ---- the copy engine ---------------------------------------------------------------------------------------

char* Space::copy_source(uint32_t index) const {
  const Block& block = blocks_[index];
  if (block.mapping != 0) return reinterpret_cast<char*>(address_of(index));  // mapped: its page tables are there
  if (block.device_slot != 0) return device_tier_.alias(block.device_slot - 1);
  return block.host_slot != 0 ? host_tier_.alias(block.host_slot - 1) : nullptr;
}

void Space::copy_out(char* target, uint64_t address, uint64_t bytes) {
  each_piece(address, bytes, [&](uint32_t block, uint64_t piece, uint64_t piece_bytes) {
    const Guard guard(lock_);
    const char* source = copy_source(block);
    if (source == nullptr) {
      std::memset(target, 0, piece_bytes);  // never touched
    } else {
      std::memcpy(target, source + (piece - address_of(block)), piece_bytes);
    }
    target += piece_bytes;
  });
}

void Space::copy_in(uint64_t address, const char* source, uint64_t bytes) {
  each_piece(address, bytes, [&](uint32_t block, uint64_t piece, uint64_t piece_bytes) {
    const Guard guard(lock_);
    if (blocks_[block].kind == Kind::managed) {
      apply(model_.prefetch(block, Processor::device), block);
      apply(model_.access(block, Processor::device, true), block);  // ends a duplicate
    }
    std::memcpy(reinterpret_cast<char*>(piece), source, piece_bytes);
    source += piece_bytes;
  });
}

void Space::fill(uint64_t address, uint8_t value, uint64_t bytes) {
  each_piece(address, bytes, [&](uint32_t block, uint64_t piece, uint64_t piece_bytes) {
    const Guard guard(lock_);
    if (blocks_[block].kind == Kind::managed) {
      apply(model_.prefetch(block, Processor::device), block);
      apply(model_.access(block, Processor::device, true), block);
    }
    std::memset(reinterpret_cast<char*>(piece), value, piece_bytes);
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

Totals Space::totals() {
  const Guard guard(lock_);
  return {model_.counters(), unordered_faults_, fault_service_ns_, device_tier_.taken() * kBlockBytes,
          host_tier_.taken() * kBlockBytes};
}

uint64_t Space::free_bytes() {
  const Guard guard(lock_);
  return model_.free_chunks() * kBlockBytes;
}

void Space::record(bool on) {
  const Guard guard(lock_);
  events_.on = on;
}

uint64_t Space::drain(Event* out, uint64_t capacity) {
  const Guard guard(lock_);
  return events_.drain(out, capacity);
}

uint64_t Space::dropped() {
  const Guard guard(lock_);
  return events_.dropped;
}

}  // namespace um::emulated
