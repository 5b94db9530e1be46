// Chunked memory as a kind of memory. Allocations without a Movable are small, and are never evicted.
#include <algorithm>

#include "base/error.h"
#include "base/on_error.h"
#include "engine/swapping.h"

namespace um {

using driver::CUstream;

Block* Swapping::make(const Request& request) {
  RunningOp* const op = request.op;
  if (fits_small(request.bytes)) {
    if (Block* const small = make_small(request)) return small;
  }
  const RequiredContext current(base_.backend);
  if (op != nullptr) {
    swaps_.op = op->identity;
    op->swapped.reserve(op->swapped.size() + 1);
  }
  const bool creates = op != nullptr && op->untouched;
  Movable* const made = make_movable(request, op != nullptr ? op->stream : request.stream);
  base_.allocations->enter(made->block, request.bytes, request.placement, request.birth);
  notes(*made->block).movable = made;
  if (made->state.is(Where::host)) return made->block;
  if (op != nullptr && !creates) {
    op->swapped.push_back({made, true});
  } else {
    --made->pins;
    made->state.change(Change::bar);
  }
  return made->block;
}

// Returns nullptr if the step is refused: small memory that finds no chunk then moves like any other.
Block* Swapping::make_small(const Request& request) {
  RunningOp* const op = request.op;
  if (chunks_ != nullptr) {
    const CurrentContext current(base_.backend);
    mover().waits.streams.bit_of(request.stream);
    if (op != nullptr) mover().waits.streams.bit_of(op->stream);
  }
  try {
    Block* const block = base_.allocations->allocate(request.bytes, request.placement, request.birth);
    if (op != nullptr) op->fixed.push_back(block);
    return block;
  } catch (const Error& error) {
    if (chunks_ == nullptr || !chunks_->put_off.active() || error.status() != UM_OUT_OF_DEVICE_MEMORY) throw;
    return nullptr;
  }
}

void Swapping::use(RunningOp& op, const Operand& operand) {
  Movable* const movable = notes(*operand.block).movable;
  meet(operand.block, operand.access->storage);
  if (movable != nullptr) {
    movable->state.change(Change::admit);
    op.swapped.push_back({movable, operand.access->write != 0});
  } else {
    op.fixed.push_back(operand.block);
    static_cast<void>(mover().waits.streams.bit_of(op.stream));
  }
}

void Swapping::meet(Block* block, void* storage) {
  Movable* const movable = notes(*block).movable;
  movable != nullptr ? mover().transfers.meet(movable, storage) : owners_.meet(block, storage);
}

void Swapping::lend(Block* block, CUstream stream) {
  if (left_out(Wait::stream_lent)) return;
  const RequiredContext current(base_.backend);
  if (Movable* const movable = notes(*block).movable) {
    mover().transfers.lend(stream, movable);
  } else {
    mover().waits.streams.lend(stream);  // the arenas of small blocks wait for all known streams
  }
}

void Swapping::prefetch(Block* block, uint64_t, uint64_t, bool to_host, CUstream) {
  Movable* const movable = notes(*block).movable;
  if (movable == nullptr) return;
  const RequiredContext current(base_.backend);
  static_cast<void>(to_host ? mover().swap_out(movable) : mover().swap_in(movable));
}

void Swapping::hold(Block* block, bool for_life) {
  Movable* const movable = notes(*block).movable;
  if (movable == nullptr) return;
  const bool held = notes(*block).exports > 0;
  const RequiredContext current(base_.backend);
  Transfers& transfers = mover().transfers;
  if (!held) {
    transfers.call_back(movable);
    pin(movable, true);
  }
  const OnError undo([&] { movable->pins -= held ? 0 : 1; });
  transfers.stand_by(movable);  // the code that gets the address may use it in any stream
  transfers.hand_out(movable, for_life);
}

void Swapping::let_go(Block* block) noexcept {
  if (notes(*block).movable != nullptr) --notes(*block).movable->pins;
}

uint64_t Swapping::shown(Block* block) {
  Movable* const movable = notes(*block).movable;
  if (movable == nullptr) return block->address;
  const RequiredContext current(base_.backend);
  if (notes(*block).exports > 0) mover().transfers.hand_out(movable, true);
  return mover().transfers.reserve(movable);
}

void Swapping::free(Block* block) noexcept {
  Movable* const movable = notes(*block).movable;
  if (movable == nullptr) {
    owners_.forget(block);
    return base_.allocations->free(block);
  }
  const auto is_it = [&](const Movable::Use& use) { return use.block == movable; };
  for (RunningOp* op : base_.ops.running) {  // in any thread
    for (Mover::Uses* uses : {&op->swapped, &op->made_out})
      uses->erase(std::remove_if(uses->begin(), uses->end(), is_it), uses->end());
  }
  const CurrentContext current(base_.backend);
  base_.allocations->leave(*block);
  mover().free(movable);
}

}  // namespace um
