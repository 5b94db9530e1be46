#include "engine/mover.h"

#include <algorithm>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/host_memory.h"

namespace um {

using driver::CUstream;

// ---- allocations ---------------------------------------------------------------------------------------------

Movable* Mover::make(uint64_t bytes, CUstream stream, int32_t storage, const Uses& beside) {
  const uint64_t chunks = memory_.chunks_of(bytes);
  for (;;) {  // the driver may have less memory than the budget: then no more is obtainable than it has
    if (!make_room(chunks)) refuse(beside, chunks);
    transfers.clear(chunks, storage);
    if (Movable* const made = make_idle(bytes, stream, storage)) return made;
  }
}

Movable* Mover::make_idle(uint64_t bytes, CUstream stream, int32_t storage) {
  pool_.prepare(1);
  const uint64_t bit = waits.streams.bit_of(stream);
  Residence residence;
  Block* block = nullptr;
  waits.stalls.around(stream, &events_.counted.wait_room_ns,
                      [&] { block = memory_.make_on_device(bytes, stream, &residence, storage); });
  if (block == nullptr) return nullptr;
  Movable* const made = made_of(block, residence, bytes);
  made->pins = 1;
  transfers.note_use(made, bit, true);
  events_.placed(*block, true);
  return made;
}

Movable* Mover::make_out(uint64_t bytes, const CUstream* user) {
  pool_.prepare(1);
  Residence residence;
  Block* const block = memory_.make_on_host(bytes, &residence, user);
  if (block == nullptr) return nullptr;
  Movable* const made = made_of(block, residence, bytes);
  made->where = Where::host;
  made->written = true;  // whoever asked has the address
  return made;
}

Movable* Mover::made_of(Block* block, const Residence& residence, uint64_t bytes) {
  block->record.bytes = bytes;
  Movable* const made = pool_.take();
  *made = {block, residence};
  return made;
}

void Mover::free(Movable* block) noexcept {
  if (block->where == Where::queued) unqueue(block);
  transfers.free(block);
  pool_.give(block);
}

// ---- ops -----------------------------------------------------------------------------------------------------

bool Mover::at_hand(const Uses& uses, CUstream stream) {
  for (const Movable::Use& use : uses) {
    const Movable& block = *use.block;
    if (block.where != Where::device || (use.write && (block.copied || block.copying_out))) return false;
  }
  const uint64_t bit = waits.streams.bit_of(stream);
  for (const Movable::Use& use : uses) transfers.note_use(use.block, bit, use.write);
  note_op(uses);
  return true;
}

void Mover::acquire(const Uses& uses, CUstream stream) {
  const uint64_t bit = waits.streams.bit_of(stream);
  for (const Movable::Use& use : uses) {  // all copies begin before one is waited for
    if (!bring(use.block, stream)) refuse(uses);
  }
  note_op(uses);
  waits.stalls.around(stream, &events_.counted.wait_copy_ns, [&] {
    for (const Movable::Use& use : uses) transfers.await(use, stream, bit);
  });
}

void Mover::settle(Movable* block) {
  ++block->pins;
  const OnError undo([&] { --block->pins; });
  transfers.stand_by(block);
  --block->pins;
}

void Mover::note_op(const Uses& uses) {
  for (const Movable::Use& use : uses) memory_.layout.awaits(use.block->residence.range);
  memory_.layout.op(order.outlook != nullptr ? order.outlook->op_duration() : 1);
}

// Onto the device, or on its way. False: there is no room, and nothing more will leave.
bool Mover::bring(Movable* block, CUstream stream) {
  if (block->where == Where::leaving) transfers.stay(block);
  // What nobody could be told of stays on the host.
  if (block->residence.range != nullptr || block->owner == nullptr) return true;
  const bool planned = block->where == Where::queued;
  do {
    if (!make_room(chunks_of(*block))) return false;
  } while (!transfers.arrive(block, stream));
  if (planned) unqueue(block);
  return true;
}

void Mover::refuse(const Uses& uses, uint64_t chunks) const {
  const auto own = [&](const auto& to, const Movable* block) {
    return std::any_of(uses.begin(), to, [&](const auto& use) { return use.block == block; });
  };
  for (auto use = uses.begin(); use != uses.end(); ++use) {
    if (!own(use, use->block)) chunks += chunks_of(*use->block);
  }
  uint64_t held = memory_.small.now;
  for (const Movable* each = order.oldest(); each != nullptr; each = each->newer) {
    if (!own(uses.end(), each) && !each->may_leave()) held += chunks_of(*each);
  }
  const auto words = [&](uint64_t count) { return in_words(count * memory_.chunk_bytes()); };
  throw Error(UM_OUT_OF_DEVICE_MEMORY, "its working set takes " + words(chunks) + " in chunks of " + words(1) +
                                           ", and " + words(held) + " beside it cannot leave; the budget is " +
                                           words(memory_.ranges.chunks.pool.budget()) + ", one of at least " +
                                           words(chunks + held) +
                                           " would do for this op; unified memory (policy advise) runs in any");
}

// ---- what plans ask for --------------------------------------------------------------------------------------

bool Mover::swap_in(Movable* block) {
  if (block->where == Where::leaving) {
    transfers.stay(block);
    return true;
  }
  if (block->where != Where::host || !block->written || block->owner == nullptr) return false;
  queue_.push_back(block);
  block->where = Where::queued;
  progress();
  return true;
}

bool Mover::swap_out(Movable* block) {
  if (block->where == Where::queued) {
    unqueue(block);
    block->where = Where::host;
    ++events_.counted.cancelled;
    return true;
  }
  if (!block->may_leave()) return false;
  transfers.leave(block, UM_SWAP_PLANNED);
  progress();
  return true;
}

bool Mover::set_spare(Movable* block) {
  if (!block->may_leave() || block->spare) return false;
  if (block->copied || !block->written) {
    transfers.leave(block, UM_SWAP_PLANNED);
  } else {
    order.set_spare(block);
  }
  return true;
}

void Mover::unqueue(Movable* block) noexcept { queue_.erase(std::find(queue_.begin(), queue_.end(), block)); }

void Mover::progress() {
  while (!queue_.empty()) {
    Movable* const next = queue_.front();
    const uint64_t least = chunks_of(*next), needed = least + memory_.layout.spare();
    while (memory_.ranges.chunks.obtainable() < needed && transfers.hand_on_first(true)) {
    }
    if (memory_.ranges.chunks.obtainable() >= needed && transfers.arrive(next, nullptr)) {
      queue_.pop_front();
    } else if (transfers.any_leave() || memory_.ranges.chunks.obtainable() >= least ||
               !send(order.spare(), UM_SWAP_PLANNED)) {
      return;
    }
  }
}

// ---- room ----------------------------------------------------------------------------------------------------

bool Mover::make_room(uint64_t chunks) {
  while (memory_.ranges.chunks.obtainable() < chunks) {
    if (!transfers.hand_on_first() && !evict_one() && !last_resort()) return false;
  }
  return true;
}

void Mover::set_budget(uint64_t chunks) {
  memory_.ranges.set_budget(chunks);
  while (memory_.ranges.chunks.taken.now > chunks && (transfers.hand_on_first() || evict_one())) {
  }
  memory_.ranges.settle();
}

bool Mover::evict_one() { return send(order.spare(), UM_SWAP_PLANNED) || send(order.victim(), UM_SWAP_FOR_ROOM); }

bool Mover::send(Movable* block, um_swap_cause cause) {
  if (block != nullptr) transfers.leave(block, cause);
  return block != nullptr;
}

}  // namespace um
