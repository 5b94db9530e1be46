#include "engine/mover.h"

#include <algorithm>

#include "base/assert.h"
#include "base/error.h"
#include "base/on_error.h"
#include "memory/host_memory.h"

namespace um {

using driver::CUstream;

// ---- allocations ---------------------------------------------------------------------------------------------

Movable* Mover::make(uint64_t bytes, CUstream stream, int32_t storage) {
  while (make_room(bytes)) {  // the driver may have less memory than the budget, which lowers the obtainable chunks
    transfers.clear(bytes, storage);
    if (Movable* const made = make_idle(bytes, stream, storage)) return made;
  }
  return nullptr;
}

Movable* Mover::make_idle(uint64_t bytes, CUstream stream, int32_t storage) {
  pool_.prepare(1);
  const uint64_t bit = waits.streams.bit_of(stream);
  Residence residence;
  Block* block = nullptr;
  const um_event room =
      events_.wait(UM_EVENT_WAIT_ROOM, UM_SWAP_FOR_ROOM, nullptr);  // possibly the sum of several waits
  waits.stalls.around(stream, room, [&] { block = memory_.make_on_device(bytes, stream, &residence, storage); });
  if (block == nullptr) return nullptr;
  Movable* const made = made_of(block, residence, Where::device, bytes);
  made->pins = 1;
  transfers.note_use(made, bit);
  events_.placed(*block, true);
  UM_ASSERT(made->check());
  return made;
}

Movable* Mover::make_out(uint64_t bytes, const CUstream* user) {
  pool_.prepare(1);
  Residence residence;
  Block* const block = memory_.make_on_host(bytes, &residence, user);
  if (block == nullptr) return nullptr;
  Movable* const made = made_of(block, residence, Where::host, bytes);
  UM_ASSERT(made->check());
  return made;
}

Movable* Mover::made_of(Block* block, const Residence& residence, Where where, uint64_t bytes) {
  block->record.bytes = bytes;
  Movable* const made = pool_.take();
  *made = {block, residence, MoveState(where)};
  made->part_bytes = memory_.shares(bytes) ? memory_.shared.part_bytes(bytes) : 0;
  parts_bytes_.add(made->part_bytes);
  return made;
}

void Mover::free(Movable* block) noexcept {
  if (block->state.is(Where::queued)) unqueue(block);
  if (block->ordered != 0 && block->residence.range != nullptr) ++events_.counted.unused_swap_ins;
  if (!displaced_.empty()) displaced_.erase(std::remove(displaced_.begin(), displaced_.end(), block), displaced_.end());
  parts_bytes_.subtract(block->part_bytes);
  transfers.free(block);
  pool_.give(block);
}

// ---- ops -----------------------------------------------------------------------------------------------------

bool Mover::at_hand(const Uses& uses, CUstream stream) {
  for (const Movable::Use& use : uses) {
    const Movable& block = *use.block;
    const MoveState& state = block.state;
    if (!state.is(Where::device) || (use.write && (state.has_source() || state.copying_out()))) return false;
  }
  const uint64_t bit = waits.streams.bit_of(stream);
  for (const Movable::Use& use : uses) transfers.note_use(use.block, bit);
  note_op(uses);
  return true;
}

bool Mover::acquire(const Uses& uses, CUstream stream, bool anyway) {
  const uint64_t bit = waits.streams.bit_of(stream);
  const bool there = bring_all(uses) || (repack(uses) && bring_all(uses));
  if (!there && !anyway) return false;
  note_op(uses);
  for (const Movable::Use& use : uses) transfers.await(use, stream, bit);
  return there;
}

void Mover::finish_arrival(Movable* block) {
  block->ordered = 0;
  ++block->pins;
  const OnError undo([&] { --block->pins; });
  transfers.stand_by(block);
  --block->pins;
}

void Mover::note_op(const Uses& uses) {
  for (const Movable::Use& use : uses) {
    memory_.layout.awaits(use.block->residence.range);
    if (use.block->ordered == ops_) ++events_.counted.late_swap_ins;
    use.block->ordered = 0;
  }
  memory_.layout.op(order.outlook != nullptr ? order.outlook->op_duration() : 1);
}

// All copies begin before any is awaited.
bool Mover::bring_all(const Uses& uses) {
  return std::all_of(uses.begin(), uses.end(), [&](const Movable::Use& use) { return bring(use.block); });
}

// Returns true if the allocation is on the device, or its swap-in has begun; false if there is no memory, and nothing
// more can be evicted.
bool Mover::bring(Movable* block) {
  if (block->state.is(Where::leaving)) transfers.cancel_eviction(block);
  // Without an owner to be re-pointed, the allocation remains on the host.
  if (block->residence.range != nullptr || block->owner == nullptr) return true;
  const bool planned = block->state.is(Where::queued);
  do {
    if (!make_room(*block)) return false;
  } while (!transfers.arrive(block));
  if (planned) unqueue(block);
  return true;
}

// Small operands of an op may each lie in another chunk, beside parts that have been evicted since. Evicts them, so
// that they are packed into as few chunks as possible. Returns whether there were any.
bool Mover::repack(const Uses& uses) {
  bool any = false;
  memory_.shared.forget();  // otherwise they would return to their seats
  for (const Movable::Use& use : uses) {
    Movable* const block = use.block;
    const auto same = [&](const Movable::Use& each) { return each.block == block; };
    const auto own = static_cast<uint32_t>(std::count_if(uses.begin(), uses.end(), same));
    if (block->residence.range == nullptr || block->residence.range->shared == nullptr || block->pins != own) continue;
    block->pins = 0;
    const bool leaves = block->may_leave();
    if (leaves) leave(block, UM_SWAP_FOR_ROOM);
    block->pins = own;
    any |= leaves;
  }
  while (transfers.hand_on_first()) {
  }
  for (const Movable::Use& use : uses) {  // any part of a chunk will do
    ReservedAddress* const reserved = use.block->residence.reserved;
    if (reserved != nullptr && memory_.shares(use.block->block->record.bytes)) reserved->returns = false;
  }
  return any;
}

namespace {

bool is_among(const Movable* block, const Mover::Uses& uses) {
  return std::any_of(uses.begin(), uses.end(), [&](const Movable::Use& use) { return use.block == block; });
}

}  // namespace

// Returns the chunks of allocations that cannot be evicted, without the op's.
uint64_t Mover::held_beside(const Uses& uses) const {
  uint64_t chunks = 0;
  std::vector<const SharedChunk*> shared;
  for (const Movable* each = order.oldest(); each != nullptr; each = each->newer) {
    if (each->may_leave() || is_among(each, uses)) continue;
    const SharedChunk* const its = each->residence.range->shared;
    if (its != nullptr && std::find(shared.begin(), shared.end(), its) != shared.end()) continue;
    if (its != nullptr) shared.push_back(its);
    chunks += memory_.chunks_of(each->block->record.bytes);
  }
  return chunks;
}

// Returns an upper bound of these chunks in any budget. An allocation that did not fit here is on the device there.
// Each part of a shared chunk that cannot be evicted may be alone in its chunk, as its neighbours are evicted and
// others are swapped in: 48 parts of 128 KiB, which fill 3 chunks, may hold 48. But they never hold more than the
// chunks that all parts took at their peak, where unused rests take at most as much as the parts themselves.
uint64_t Mover::held_in_any_budget(const Uses& uses) const {
  uint64_t chunks = 0, parts = 0;
  const auto add = [&](const Movable& each) {
    each.part_bytes > 0 ? void(++parts) : void(chunks += memory_.chunks_of(each.block->record.bytes));
  };
  for (const Movable* each = order.oldest(); each != nullptr; each = each->newer) {
    const bool gives_way = each->owner != nullptr && each->pins == 0;  // even if it is in reach of ended kernels
    if (!gives_way && !is_among(each, uses)) add(*each);
  }
  for (const Movable* each : displaced_) {
    if (each->owner == nullptr && each->state.is(Where::host) && !is_among(each, uses)) add(*each);
  }
  return chunks + std::min(parts, 2 * memory_.chunks_of(parts_bytes_.peak));
}

// Counts parts of shared chunks as packed, because they are repacked if they lie too far apart.
uint64_t Mover::working(const Uses& uses, const std::vector<uint64_t>& made_bytes) const {
  uint64_t chunks = 0;
  std::vector<uint64_t> parts;
  const auto add = [&](uint64_t bytes) {
    memory_.shares(bytes) ? parts.push_back(bytes) : void(chunks += memory_.chunks_of(bytes));
  };
  for (auto use = uses.begin(); use != uses.end(); ++use) {
    const auto same = [&](const Movable::Use& each) { return each.block == use->block; };
    if (std::none_of(uses.begin(), use, same)) add(use->block->block->record.bytes);
  }
  for (const uint64_t bytes : made_bytes) add(bytes);
  return chunks + memory_.shared.chunks_for(parts);
}

Need Mover::need(const Uses& uses, const std::vector<uint64_t>& made_bytes) const {
  return {working(uses, made_bytes), held_beside(uses), memory_.small_chunks.now};
}

Need Mover::need_in_any_budget(const Uses& uses, const std::vector<uint64_t>& made_bytes) const {
  return {working(uses, made_bytes), held_in_any_budget(uses), memory_.small_chunks.now};
}

// ---- what plans ask for --------------------------------------------------------------------------------------

bool Mover::swap_in(Movable* block) {
  if (block->state.is(Where::leaving)) {
    transfers.cancel_eviction(block);
    return true;
  }
  UM_ASSERT(block->check());
  if (!block->state.is(Where::host) || block->owner == nullptr) return false;
  queue_.push_back(block);
  block->state.change(Change::queue);
  block->ordered = ops_;
  progress();
  return true;
}

bool Mover::swap_out(Movable* block) {
  if (block->state.is(Where::queued)) {
    unqueue(block);
    block->state.change(Change::remain_out);
    block->ordered = 0;
    UM_ASSERT(block->check());
    ++events_.counted.cancelled;
    return true;
  }
  if (!block->may_leave()) return false;
  leave(block, UM_SWAP_PLANNED);
  progress();
  return true;
}

bool Mover::evict_first(Movable* block) {
  if (!block->may_leave() || block->state.evicted_first()) return false;
  if (block->state.has_source()) {
    leave(block, UM_SWAP_PLANNED);
  } else {
    order.evict_first(block);
  }
  UM_ASSERT(block->check());
  return true;
}

void Mover::unqueue(Movable* block) noexcept { queue_.erase(std::find(queue_.begin(), queue_.end(), block)); }

void Mover::progress() {
  while (!queue_.empty()) {
    Movable* const next = queue_.front();
    const auto lacks = [&](uint64_t spare) {
      const uint64_t chunks = memory_.lacking(*next->block, next->residence);
      return chunks > 0 && memory_.ranges.chunks.obtainable() < chunks + spare;
    };
    while (lacks(memory_.layout.spare()) && transfers.hand_on_first(true)) {
    }
    if (!lacks(memory_.layout.spare()) && transfers.arrive(next)) {
      queue_.pop_front();
    } else if (transfers.any_leave() || !lacks(0) || !send(order.first_victim(), UM_SWAP_PLANNED)) {
      return;
    }
  }
}

int64_t Mover::room_bytes() const {
  const auto chunks =
      static_cast<int64_t>(memory_.ranges.chunks.obtainable()) - static_cast<int64_t>(memory_.layout.spare());
  int64_t bytes = chunks * static_cast<int64_t>(memory_.chunk_bytes());
  transfers.each_leaving([&](const Movable& block) { bytes += room_of(block); });
  for (const Movable* block : queue_) bytes -= room_of(*block);
  return bytes;
}

uint64_t Mover::queued_bytes() const {
  uint64_t bytes = 0;
  for (const Movable* block : queue_) bytes += block->block->record.bytes;
  return bytes;
}

int64_t Mover::send_away(int64_t later_than) {
  Movable* block = order.first_victim();
  if (block == nullptr) block = order.victim(later_than);
  return send(block, UM_SWAP_PLANNED) ? room_of(*block) : 0;
}

// ---- room ----------------------------------------------------------------------------------------------------

bool Mover::make_room(uint64_t bytes) {
  return make_chunks([&] { return memory_.lacking(bytes); });
}

bool Mover::make_room(const Movable& block) {
  return make_chunks([&] { return memory_.lacking(*block.block, block.residence); });
}

// `lacking` returns how many chunks must be obtainable in the present state.
template <class Lacking>
bool Mover::make_chunks(const Lacking& lacking) {
  while (memory_.ranges.chunks.obtainable() < lacking()) {
    if (!transfers.hand_on_first() && !evict_one() && !last_resort()) return false;
  }
  return true;
}

void Mover::unpack() {
  for (Movable* each = order.oldest(); each != nullptr;) {
    Movable* const newer = each->newer;
    if (each->residence.range->shared != nullptr && each->may_leave()) send(each, UM_SWAP_FOR_ROOM);
    each = newer;
  }
  while (memory_.shared.any() && transfers.hand_on_first()) {
  }
}

void Mover::set_budget(uint64_t chunks) {
  memory_.ranges.set_budget(chunks);
  while (memory_.ranges.chunks.taken.now > chunks && (transfers.hand_on_first() || evict_one())) {
  }
  memory_.ranges.shrink_to_budget();
}

// Evicts the next victim together with all parts of its chunk, which is free only then.
bool Mover::evict_one() {
  if (send(order.first_victim(), UM_SWAP_PLANNED)) return true;
  Movable* const victim = order.victim();
  const SharedChunk* const shared = victim != nullptr ? victim->residence.range->shared : nullptr;
  const bool any = send(victim, UM_SWAP_FOR_ROOM);
  for (Movable* each = shared != nullptr ? order.oldest() : nullptr; each != nullptr;) {
    Movable* const newer = each->newer;
    if (each->residence.range->shared == shared && each->may_leave()) send(each, UM_SWAP_FOR_ROOM);
    each = newer;
  }
  return any;
}

bool Mover::send(Movable* block, um_swap_cause cause) {
  if (block != nullptr) leave(block, cause);
  return block != nullptr;
}

void Mover::leave(Movable* block, um_swap_cause cause) {
  if (block->ordered != 0) ++events_.counted.unused_swap_ins;
  block->ordered = 0;
  transfers.leave(block, cause);
}

}  // namespace um
