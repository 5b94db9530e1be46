#include "devices/simulated/space.h"

#include <algorithm>

#include "um/driver_calls.h"

namespace um::simulator {
namespace {

uint64_t host_blocks(const um_emulated_options& options) {
  return options.host_bytes == 0 ? kSpanBlocks : options.host_bytes / kBlockBytes;
}

}  // namespace

Space::Space(int device, const um_emulated_options& options)
    : base_(kFirstAddress + static_cast<uint64_t>(device) * kSpanBytes),
      chunks_(static_cast<uint32_t>(options.capacity_bytes / kBlockBytes)),
      most_managed_blocks_(host_blocks(options)),
      model_(kSpanBlocks, chunks_),
      plain_(model_, chunks_),
      ordered_(options.counting == UM_COUNTING_ORDERED) {}

// ---- ranges ---------------------------------------------------------------------------------------------------------

uint32_t Space::allocate(uint64_t bytes, Kind kind) {
  if (bytes > kSpanBytes) return Model::kNone;
  const auto count = static_cast<uint32_t>((bytes + kBlockBytes - 1) / kBlockBytes);
  const uint32_t first = ranges_.find_room(count);
  if (first == Model::kNone) return first;
  if (blocks_.size() < first + count) blocks_.resize(first + count);
  ranges_.take(first, count);
  for (uint32_t block = first; block < first + count; ++block) {
    blocks_[block] = {};
    blocks_[block].kind = kind;
    blocks_[block].tag = emulated::ResidentBlocks::kUntagged;
  }
  return first;
}

uint64_t Space::allocate_managed(uint64_t bytes) {
  const uint64_t count = (bytes + kBlockBytes - 1) / kBlockBytes;
  if (managed_blocks_ + count > most_managed_blocks_) return 0;
  const uint32_t first = allocate(bytes, Kind::managed);
  if (first == Model::kNone) return 0;
  managed_blocks_ += count;
  model_.allocate(first, static_cast<uint32_t>(count));
  return base_ + first * kBlockBytes;
}

uint64_t Space::allocate_plain(uint64_t bytes) {
  const uint64_t count = (bytes + kBlockBytes - 1) / kBlockBytes;
  if (count > chunks_) return 0;
  const uint32_t first = allocate(bytes, Kind::plain);
  if (first == Model::kNone) return 0;
  const auto make_room = [&](const Outcome& outcome) {
    migrate(outcome, Model::kNone);
    return true;
  };
  plain_.return_remnant();
  bool done = true;
  uint32_t taken = 0;
  while (taken < count && plain_.take(make_room, done)) {
    Block& block = blocks_[first + taken++];
    block.on_device = true;
    resident_.add(block.tag);
  }
  const bool complete = taken == count;
  if (!complete) {
    for (uint32_t block = first; block < first + count; ++block) {
      if (block >= first + taken) blocks_[block].kind = Kind::free;  // it has no chunk to give
      release_block(block);
    }
    ranges_.give(first);
  }
  plain_.withhold_remnant(make_room);
  end_migration();
  return complete ? base_ + first * kBlockBytes : 0;
}

uint64_t Space::reserve(uint64_t bytes) {
  const uint32_t first = allocate(bytes, Kind::reserved);
  return first == Model::kNone ? 0 : base_ + first * kBlockBytes;
}

bool Space::take_physical(uint64_t blocks) {
  const auto make_room = [&](const Outcome& outcome) {
    migrate(outcome, Model::kNone);
    return true;
  };
  plain_.return_remnant();
  bool done = true;
  uint64_t taken = 0;
  while (taken < blocks && plain_.take(make_room, done)) ++taken;
  if (taken < blocks) {
    give_physical(taken);
    return false;
  }
  plain_.withhold_remnant(make_room);
  return true;
}

void Space::give_physical(uint64_t blocks) {
  for (; blocks > 0; --blocks) plain_.give();
}

bool Space::free(uint64_t address) {
  const auto first = static_cast<uint32_t>((address - base_) / kBlockBytes);
  const uint32_t count = address % kBlockBytes == 0 ? ranges_.count_at(first) : 0;
  if (count == 0) return false;
  if (blocks_[first].kind == Kind::managed) managed_blocks_ -= count;
  for (uint32_t block = first; block < first + count; ++block) release_block(block);
  ranges_.give(first);
  plain_.withhold_remnant([&](const Outcome& outcome) {
    migrate(outcome, Model::kNone);
    return true;
  });
  end_migration();
  return true;
}

void Space::release_block(uint32_t index) {
  Block& block = blocks_[index];
  if (block.kind == Kind::managed) model_.release(index);
  if (block.kind == Kind::plain) plain_.give();
  if (block.on_device) resident_.subtract(block.tag);
  host_blocks_ -= block.on_host;
  block = {};
}

bool Space::managed(uint64_t address, uint64_t bytes) const {
  const uint64_t end_bytes = blocks_.size() * kBlockBytes;
  bool all = bytes > 0 && address >= base_ && address - base_ < end_bytes && bytes <= end_bytes - (address - base_);
  if (!all) return false;
  each_piece(address, bytes,
             [&](uint32_t block, uint64_t, uint64_t) { all = all && blocks_[block].kind == Kind::managed; });
  return all;
}

// ---- what an outcome changes ----------------------------------------------------------------------------------------

void Space::follow(const Outcome& outcome) {
  for (int i = 0; i < outcome.count; ++i) {
    const Action& action = outcome.actions[i];
    Block& block = blocks_[action.block];
    const bool was_on_device = block.on_device, was_on_host = block.on_host;
    switch (action.what) {
      case Do::evict_copy:
        block.on_host = true;
        [[fallthrough]];
      case Do::evict_drop:
      case Do::drop_device:
        block.on_device = false;
        break;
      case Do::zero_device:
      case Do::copy_h2d:
        block.on_device = true;
        break;
      case Do::zero_host:
      case Do::copy_d2h:
        block.on_host = true;
        break;
      case Do::drop_host:
        block.on_host = false;
        break;
    }
    if (block.on_device && !was_on_device) resident_.add(block.tag);
    if (!block.on_device && was_on_device) resident_.subtract(block.tag);
    host_blocks_ += static_cast<uint64_t>(block.on_host) - static_cast<uint64_t>(was_on_host);
  }
}

bool Space::first_mapping(uint32_t block) {
  if (block == Model::kNone || blocks_[block].mapped_once) return false;
  return blocks_[block].mapped_once = true;
}

// The next owner of a chunk waits for the copy that empties it; chunks that nobody has left come first
// (uvm/uvm_pmm_gpu.c: the free list, then what is unused, in order). 0 where no chunk is taken, or one that is evicted.
int64_t Space::chunk_ready_ns(const Outcome& outcome) {
  while (!leaving_ns_.empty() && leaving_ns_.front() <= clock->now_ns()) leaving_ns_.pop_front();
  bool taken = false;
  for (int i = 0; i < outcome.count; ++i) {
    const Do what = outcome.actions[i].what;
    if (what == Do::evict_copy || what == Do::evict_drop) return 0;
    taken |= what == Do::zero_device || what == Do::copy_h2d;
  }
  if (!taken || leaving_ns_.size() <= model_.chunks.free()) return 0;
  const int64_t ready_ns = leaving_ns_.front();
  leaving_ns_.pop_front();
  return ready_ns;
}

// `block` is what the outcome is about; Model::kNone: no block, only what has to leave.
void Space::migrate(const Outcome& outcome, uint32_t block) {
  follow(outcome);
  if (clock == nullptr) return;
  const int64_t chunk_ns = chunk_ready_ns(outcome);
  const int64_t ready_ns = clock->migrate(outcome, outcome.count > 0 && first_mapping(block), lane, chunk_ns);
  if (lane == Lane::ops || block == Model::kNone) return;
  for (int i = 0; i < outcome.count; ++i) {
    if (outcome.actions[i].what != Do::drop_device) continue;
    leaving_ns_.push_back(leaving_ns_.empty() ? ready_ns : std::max(ready_ns, leaving_ns_.back()));
  }
  blocks_[block].ready_ns = ready_ns;
  last_ready_ns_ = std::max(last_ready_ns_, ready_ns);
}

void Space::end_migration() {
  if (clock != nullptr && lane == Lane::ops) clock->end_migration();
}

// ---- faults ---------------------------------------------------------------------------------------------------------

bool Space::covered(uint32_t block, bool write) const {
  if (blocks_[block].kind == Kind::plain) return true;
  const Mapping now = model_.mapping(block);
  return write ? now == Mapping::device_write || now == Mapping::remote_write : now != Mapping::none;
}

bool Space::serve(uint32_t index, bool write) {
  if (covered(index, write)) return false;
  const Outcome outcome = model_.access(index, Processor::device, write);
  follow(outcome);
  if (clock != nullptr) {
    const bool at_once = outcome.first_touch && blocks_[index].preferred_here;
    clock->serve(outcome, first_mapping(index), at_once, chunk_ready_ns(outcome));
  }
  return true;
}

bool Space::touch(uint64_t address, uint64_t bytes, bool write) {
  bool serviced = false;
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) { serviced |= serve(block, write); });
  return serviced;
}

void Space::fault(uint64_t address, bool write) {
  if (managed(address, 1) && serve(static_cast<uint32_t>((address - base_) / kBlockBytes), write))
    unordered_faults_ += ordered_;
}

// ---- calls ----------------------------------------------------------------------------------------------------------

void Space::prefetch(uint64_t address, uint64_t bytes, Processor to) {
  if (clock != nullptr) clock->call(clock->costs().prefetch_call_ns);
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) {
    if (blocks_[block].kind != Kind::managed) return;
    calls::prefetch(model_, block, to, [&](const Outcome& outcome, uint32_t of) {
      migrate(outcome, of);
      return true;
    });
  });
  end_migration();
}

void Space::advise(uint64_t address, uint64_t bytes, Advice advice, Processor processor) {
  int64_t populated = 0, count = 0;
  each_piece(address, bytes, [&](uint32_t index, uint64_t, uint64_t) {
    Block& block = blocks_[index];
    if (block.kind != Kind::managed) return;
    ++count;
    populated += block.on_device || block.on_host;
    if (advice == Advice::set_preferred_location) block.preferred_here = processor == Processor::device;
    if (advice == Advice::unset_preferred_location) block.preferred_here = false;
    follow(model_.advise(index, advice, processor));
  });
  if (clock == nullptr) return;
  const um_pages_costs& costs = clock->costs();
  const bool walks = advice == Advice::set_read_mostly, maps = advice == Advice::set_accessed_by;
  clock->advise_call(costs.advise_call_ns + (walks ? populated * costs.read_mostly_block_ns : 0) +
                     (maps ? count * costs.accessed_by_block_ns : 0));
}

void Space::discard(uint64_t address, uint64_t bytes) {
  int64_t discarded = 0;
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t piece) {
    if (blocks_[block].kind == Kind::managed) discarded += calls::discard(model_, block, piece);
  });
  if (clock == nullptr) return;
  const um_pages_costs& costs = clock->costs();  // each block is unmapped under its lock, as in a prefetch
  clock->call(costs.prefetch_call_ns + discarded * costs.block_ns);
}

bool Space::pin(uint64_t address, uint64_t bytes) {
  plain_.return_remnant();
  uint64_t pinned = 0;
  bool fits = true;
  const auto apply = [&](const Outcome& outcome, uint32_t of) {
    migrate(outcome, of);
    return true;
  };
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t piece) {
    fits = fits && (blocks_[block].kind == Kind::plain || calls::pin(model_, block, apply));
    if (fits) pinned += piece;
  });
  if (!fits) {
    unpin(address, pinned);
    return false;
  }
  plain_.withhold_remnant([&](const Outcome& outcome) { return apply(outcome, Model::kNone); });
  end_migration();
  return true;
}

void Space::unpin(uint64_t address, uint64_t bytes) {
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) {
    if (blocks_[block].kind == Kind::managed) model_.chunks.unpin(block);
  });
  plain_.withhold_remnant([&](const Outcome& outcome) {
    migrate(outcome, Model::kNone);
    return true;
  });
  end_migration();
}

void Space::store(uint64_t address, uint64_t bytes) {
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) {
    if (blocks_[block].kind != Kind::managed) return;
    calls::open_for_store(model_, block, [&](const Outcome& outcome, uint32_t of) {
      migrate(outcome, of);
      return true;
    });
  });
  end_migration();
  if (clock != nullptr) clock->copy(0, static_cast<int64_t>(bytes));
}

// What the host holds already does not cross the link.
void Space::load(uint64_t address, uint64_t bytes) {
  uint64_t crossing = 0;
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t piece) {
    if (blocks_[block].on_device && !blocks_[block].on_host) crossing += piece;
  });
  if (clock != nullptr) clock->copy(1, static_cast<int64_t>(crossing));
}

void Space::note_use(uint64_t address, uint64_t bytes) {
  const bool waits = last_ready_ns_ > clock->now_ns(), remote = model_.counters().remote_maps > 0;
  if (!waits && !remote) return;
  int64_t remote_bytes = 0, accesses = 0, ready_ns = 0;
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t piece) {
    ready_ns = std::max(ready_ns, blocks_[block].ready_ns);
    const Mapping now = blocks_[block].kind == Kind::managed ? model_.mapping(block) : Mapping::none;
    if (now != Mapping::remote_read && now != Mapping::remote_write) return;
    remote_bytes += static_cast<int64_t>(piece);
    ++accesses;
  });
  if (ready_ns > clock->now_ns()) clock->wait_for(ready_ns);
  if (accesses > 0) clock->access_remotely(remote_bytes, accesses);
}

// ---- what there is --------------------------------------------------------------------------------------------------

void Space::residency(uint64_t address, uint64_t bytes, uint64_t* device_blocks, uint64_t* host_blocks_out) const {
  *device_blocks = *host_blocks_out = 0;
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) {
    *device_blocks += blocks_[block].on_device;
    *host_blocks_out += blocks_[block].on_host;
  });
}

void Space::tag(uint64_t address, uint64_t bytes, uint32_t tag) {
  each_piece(address, bytes, [&](uint32_t index, uint64_t, uint64_t) {
    Block& block = blocks_[index];
    if (block.on_device) resident_.retag(block.tag, static_cast<uint8_t>(tag));
    block.tag = static_cast<uint8_t>(tag);
  });
}

emulated::Totals Space::totals() const {
  emulated::Totals totals{};
  totals.model = model_.counters();
  totals.unordered_faults = unordered_faults_;
  totals.fault_service_ns = clock != nullptr ? clock->fault_service_ns() : 0;
  totals.host_bytes = host_blocks_ * kBlockBytes;
  resident_.tell(totals);
  return totals;
}

}  // namespace um::simulator
