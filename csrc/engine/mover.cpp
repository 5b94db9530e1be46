// What the rest of the engine asks of the mover; see mover.h.
#include "engine/mover.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/host_memory.h"

namespace um {

using driver::CUstream;

Mover::Mover(const Backend& backend, MovableMemory& memory, Fences& fences, SwapEvents& events, Owners& owners)
    : streams(backend, fences),
      stalls(backend, fences),
      backend_(backend),
      memory_(memory),
      fences_(fences),
      events_(events),
      owners_(owners),
      catches_(backend.hooks->in_host) {
  const auto make = [&](CUstream* stream) {
    backend_.check(backend_.call().stream_create(stream, driver::CU_STREAM_NON_BLOCKING), "making a copy stream");
  };
  make(&to_device_);
  const OnError undo([&] { static_cast<void>(backend_.call().stream_destroy(to_device_)); });
  make(&to_host_);
}

Mover::~Mover() {
  static_cast<void>(backend_.call().stream_destroy(to_device_));
  static_cast<void>(backend_.call().stream_destroy(to_host_));
}

// ---- allocations ---------------------------------------------------------------------------------------------

Movable* Mover::make(uint64_t bytes, CUstream stream, int32_t storage, const std::vector<Use>& beside) {
  const uint64_t chunks = memory_.chunks_of(bytes);
  Movable* made = nullptr;
  while (made == nullptr) {  // the driver may have less memory than the budget: then no more is obtainable than it has
    if (!make_room(chunks)) refuse(beside.data(), beside.size(), chunks);
    clear(chunks, storage);
    made = make_idle(bytes, stream, storage);
  }
  return made;
}

Movable* Mover::make_idle(uint64_t bytes, CUstream stream, int32_t storage) {
  pool_.prepare(1);
  const uint64_t bit = streams.bit_of(stream);
  Residence residence;
  Block* block = nullptr;
  stalls.around(stream, &counted.wait_room_ns,
                [&] { block = memory_.make_on_device(bytes, stream, &residence, storage); });
  if (block == nullptr) return nullptr;
  Movable* const made = made_of(block, residence, bytes);
  made->pins = 1;
  made->written = catches_;  // by anybody, from now on
  link_newest(made);
  note_use(made, bit, true);
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
  *made = Movable{};
  made->block = block;
  made->residence = residence;
  return made;
}

void Mover::meet(Movable* block, void* storage) {
  if (block->residence.range == nullptr && block->streams != 0) return;  // ops used it on the host, and still may
  if (block->owner == nullptr && storage != nullptr) block->owner = owners_.remember(storage, block->block->address);
}

void Mover::disown(Movable* block) noexcept {
  if (block->owner != nullptr) owners_.forget(block->owner);
  block->owner = nullptr;
}

void Mover::free(Movable* block) noexcept {
  Fences::Fence fence = freed_after(*block);
  if (block->where == Where::queued) queue_.erase(std::find(queue_.begin(), queue_.end(), block));
  if (block->where == Where::leaving) leaving_.erase(std::find(leaving_.begin(), leaving_.end(), block));
  unlink(block);
  keep(block);
  disown(block);
  if (block->residence.range != nullptr) events_.placed(*block->block, false);
  memory_.free(block->block, &block->residence, fence);
  forget(&fence);
  forget(&block->moved);
  forget(&block->used);
  pool_.give(block);
}

// The end of all that uses its places, with one reference.
Fences::Fence Mover::freed_after(const Movable& block) noexcept {
  const bool leaves = block.where == Where::leaving, out = block.residence.range == nullptr;
  if (leaves || (out && block.streams == 0)) {  // nobody has used it since
    if (left_out(leaves ? Wait::departure_freed : Wait::host_copy_freed)) return 0;
    fences_.retain(block.moved);
    return block.moved;
  }
  try {
    return left_out(Wait::block_freed) ? 0 : last_use(block, Wait::arrival_freed, Wait::departure_freed);
  } catch (...) {  // no event to wait for: the work itself is waited for, and a driver that fails there has lost it all
    streams.synchronize(Wait::freed_without_event);
    fences_.retain(block.moved);
    return block.moved;
  }
}

bool Mover::at_hand(const Use* uses, size_t count, CUstream stream) {
  for (size_t i = 0; i < count; ++i) {
    const Movable& block = *uses[i].block;
    if (block.where != Where::device || (uses[i].write && (block.copied || block.copying_out))) return false;
  }
  const uint64_t bit = streams.bit_of(stream);
  for (size_t i = 0; i < count; ++i) note_use(uses[i].block, bit, uses[i].write);
  for (size_t i = 0; i < count; ++i) memory_.layout.awaits(uses[i].block->residence.range);
  note_op();
  return true;
}

void Mover::acquire(const Use* uses, size_t count, CUstream stream) {
  const uint64_t bit = streams.bit_of(stream);
  for (size_t i = 0; i < count; ++i) {  // all copies begin before one is waited for
    const Where where = uses[i].block->where;
    if (where != Where::device && where != Where::arriving && !bring(uses[i].block, stream)) refuse(uses, count);
  }
  for (size_t i = 0; i < count; ++i) memory_.layout.awaits(uses[i].block->residence.range);
  note_op();
  stalls.around(stream, &counted.wait_copy_ns, [&] {
    for (size_t i = 0; i < count; ++i) await(uses[i], stream, bit);
  });
}

// ---- what plans ask for --------------------------------------------------------------------------------------

bool Mover::swap_in(Movable* block) {
  if (block->where == Where::leaving) {
    stay(block);
  } else if (block->where == Where::host && block->written && block->owner != nullptr) {
    queue_.push_back(block);
    block->where = Where::queued;
    progress();
  } else {
    return false;
  }
  return true;
}

bool Mover::swap_out(Movable* block) {
  if (block->where == Where::queued) {
    queue_.erase(std::find(queue_.begin(), queue_.end(), block));
    block->where = Where::host;
    ++counted.cancelled;
    return true;
  }
  if (!may_leave(*block)) return false;
  leave(block, UM_SWAP_PLANNED);
  progress();
  return true;
}

bool Mover::set_spare(Movable* block) {
  if (!may_leave(*block) || block->spare) return false;
  if (block->copied || !block->written) {
    leave(block, UM_SWAP_PLANNED);
    return true;
  }
  block->spare = true;
  ++spares_;
  return true;
}

void Mover::keep(Movable* block) noexcept {
  if (!block->spare) return;
  block->spare = false;
  --spares_;
}

// ---- what somebody else than ops does ------------------------------------------------------------------------

// A copy to the device may read it long after the device's memory of it has gone to somebody else.
bool Mover::on_host(Movable* block, bool write) {
  if (block->residence.range != nullptr) return false;
  if (block->copying_out) stand(*block, &counted.wait_copy_ns, Wait::read_of_host_copy);
  if (block->streams != 0) {  // ops used it here
    const Fences::Fence used = streams.last_use(block->streams, {});
    const OnError undo([&] { fences_.release(used); });
    fences_.wait(used, Wait::host_after_kernels);
    fences_.release(used);
  }
  if (write) {
    stand(*block, &counted.wait_copy_ns, Wait::write_of_host_copy);
    forget(&block->moved);
  }
  block->copying_out = false;
  return true;
}

void Mover::lend(CUstream stream, Movable* block) {
  const uint64_t bit = streams.lend(stream);
  if (block->where == Where::leaving) stay(block);
  block->streams |= bit;
  forget(&block->used);
}

void Mover::stand_by(Movable* block) {
  if (on_host(block, false) || block->where != Where::arriving) return;
  stand(*block, &counted.wait_copy_ns, Wait::export_after_arrival);
  block->where = Where::device;
  forget(&block->moved);
  reveal(block);
}

// ---- order of use --------------------------------------------------------------------------------------------

// Of ops, and of the copy that runs; with one reference.
Fences::Fence Mover::last_use(const Movable& block, Wait of_arrival, Wait of_departure) {
  Fences::Fence ops = block.used;
  fences_.retain(ops);
  if (ops == 0) ops = streams.last_use(block.streams, {});
  const bool arrives = block.where == Where::arriving && block.streams == 0;  // else ops come after that
  const bool departs = block.copying_out || block.residence.range == nullptr;
  if ((!arrives || left_out(of_arrival)) && (!departs || left_out(of_departure))) return ops;
  const OnError undo([&] { fences_.release(ops); });
  const Fences::Fence both = fences_.join(ops, block.moved);
  fences_.release(ops);
  return both;
}

void Mover::end_use(const Use* uses, size_t count, CUstream stream) noexcept {
  if (catches_ || count == 0) return;  // there the op has ended by now
  try {
    const uint64_t bit = streams.bit_of(stream);
    const Fences::Fence ended = fences_.record(&stream, 1);
    for (size_t i = 0; i < count; ++i) {
      Movable* const block = uses[i].block;
      forget(&block->used);
      if (block->streams != bit) continue;
      fences_.retain(ended);
      block->used = ended;
    }
    fences_.release(ended);
  } catch (const std::exception&) {
    return;  // whoever needs it makes an event then, and waits for more
  }
}

void Mover::note_op() { memory_.layout.op(outlook_ != nullptr ? outlook_->op_duration() : 1); }

void Mover::note_use(Movable* block, uint64_t bit, bool write) {
  forget(&block->used);
  block->streams |= bit;
  block->written |= write;
  keep(block);
  if (newest_ == block) return;
  unlink(block);
  link_newest(block);
}

void Mover::unlink(Movable* block) noexcept {
  if (block->older == nullptr && oldest_ != block) return;
  (block->older != nullptr ? block->older->newer : oldest_) = block->newer;
  (block->newer != nullptr ? block->newer->older : newest_) = block->older;
  block->older = block->newer = nullptr;
}

void Mover::link_newest(Movable* block) noexcept {
  block->older = newest_;
  (newest_ != nullptr ? newest_->newer : oldest_) = block;
  newest_ = block;
}

void Mover::forget(Fences::Fence* fence) noexcept {
  if (*fence != 0) fences_.release(*fence);
  *fence = 0;
}

// ---- refusal -------------------------------------------------------------------------------------------------

void Mover::refuse(const Use* uses, size_t count, uint64_t chunks) const {
  std::vector<const Movable*> distinct;
  uint64_t needed = chunks * memory_.chunk_bytes();
  for (size_t i = 0; i < count; ++i) {
    if (std::find(distinct.begin(), distinct.end(), uses[i].block) != distinct.end()) continue;
    distinct.push_back(uses[i].block);
    needed += chunks_of(*uses[i].block) * memory_.chunk_bytes();
  }
  uint64_t held = memory_.small.now * memory_.chunk_bytes();
  for (const Movable* each = oldest_; each != nullptr; each = each->newer) {
    const bool own = std::find(distinct.begin(), distinct.end(), each) != distinct.end();
    if (!own && !may_leave(*each)) held += chunks_of(*each) * memory_.chunk_bytes();
  }
  throw Error(UM_OUT_OF_DEVICE_MEMORY,
              "its working set takes " + in_words(needed) + " in chunks of " + in_words(memory_.chunk_bytes()) +
                  ", and " + in_words(held) + " beside it cannot leave; the budget is " +
                  in_words(memory_.ranges.budget() * memory_.chunk_bytes()) + ", one of at least " +
                  in_words(needed + held) + " would do for this op; unified memory (policy advise) runs in any");
}

}  // namespace um
