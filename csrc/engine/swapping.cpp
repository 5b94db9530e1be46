#include "engine/swapping.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/names.h"
#include "memory/room.h"

namespace um {

using driver::CUstream;

namespace {

std::string about(const RunningOp* op) {
  if (op == nullptr) return "no room for memory that is made outside of ops: ";
  const std::string module = name_of(op->identity.module);
  return std::string("no room for ") + name_of(op->identity.op) + (module.empty() ? "" : " of " + module) + ": ";
}

Mover::Uses uses_of(const RunningOp& op) {
  Mover::Uses all = op.swapped;
  all.insert(all.end(), op.made_out.begin(), op.made_out.end());
  return all;
}

}  // namespace

Swapping::Chunks::Chunks(DeviceBase& base, SwapEvents& swaps, const um_chunk_options& options)
    : memory(base.handle, base.backend, *base.fences, base.allocations->blocks(), options),
      mover(base.backend, memory, *base.fences, swaps, base.owners),
      small(base.backend, memory, mover, *base.fences, swaps),
      small_option(options.small),
      session_bytes(options.session_bytes) {}

void Swapping::set(const um_chunk_options& options) {
  const RequiredContext current(base_.backend);
  if (chunks_ != nullptr) return change(options);
  auto made = std::make_unique<Chunks>(base_, swaps_, options);
  made->mover.order.outlook = outlook_;
  made->mover.last_resort = [this] {
    device_lock.assert_held();
    return find_room();
  };
  base_.allocations->set_chunked(&made->memory, made->small);
  chunks_ = std::move(made);
  swaps_.chunks = &chunks_->memory.ranges.chunks;
  base_.participants.join(*this);
  sampling_.stalls = &mover().waits.stalls;
  step_undo_.swaps_copies = &chunks_->memory.copies;
  base_.backend.hooks->set_describer(describe_);
  base_.backend.hooks->set_owner(serve_);
}

void Swapping::change(const um_chunk_options& options) {
  const bool same = (options.chunk_bytes == 0 || options.chunk_bytes == chunks_->memory.chunk_bytes()) &&
                    options.small == chunks_->small_option;
  if (!same) throw Error(UM_BAD_STATE, "the device has chunks already: only their budgets can change");
  static_cast<void>(base_.allocations->trim_small());
  chunks_->session_bytes = options.session_bytes;
  chunks_->memory.copies.set_budget(options.host_budget_bytes);
  chunks_->mover.set_budget(chunks_->memory.whole_chunks(options.budget_bytes));
}

void Swapping::close() noexcept {
  swaps_.chunks = nullptr;
  sampling_.stalls = nullptr;
  step_undo_.swaps_copies = nullptr;
  chunks_.reset();
}

void Swapping::look_ahead(const Outlook* outlook) {
  outlook_ = outlook;
  if (chunks_ == nullptr) return;
  mover().order.outlook = outlook;
  const RequiredContext current(base_.backend);
  chunks_->memory.layout.stop();
  chunks_->memory.shared.forget();
}

void Swapping::begin_anew() {
  if (chunks_ == nullptr || outlook_ != nullptr) return;
  const RequiredContext current(base_.backend);
  mover().unpack();
}

void Swapping::read(um_swap_counters* out) {
  *out = {};
  if (chunks_ != nullptr) {
    const CurrentContext current(base_.backend);
    mover().waits.stalls.settle();
    *out = swaps_.counted;
    const MovableMemory& memory = chunks_->memory;
    const uint64_t chunk = out->chunk_bytes = memory.chunk_bytes();
    out->budget_bytes = memory.ranges.chunks.pool.budget() * chunk;
    memory.ranges.chunks.taken.tell(&out->used_bytes, &out->used_peak_bytes, chunk);
    memory.small_chunks.tell(&out->pinned_bytes, &out->pinned_peak_bytes, chunk);
    memory.copies.in_use.tell(&out->host_bytes, &out->host_peak_bytes);
    out->host_pool_bytes = memory.copies.created_bytes();
    out->laid_out = base_.backend.hooks->in_host || is_laid_out();
  }
  out->silent_writes = base_.backend.totals().silent_writes;
}

// Called if nothing more can be evicted. An export is ended last, because its address may still be in use.
bool Swapping::find_room() noexcept {
  const bool in_reach = base_.backend.hooks->in_host;  // on such devices kernels have ended already
  return base_.allocations->trim_small() || (in_reach && mover().order.let_go_of_reach()) || end_export();
}

// Without chunks nothing can be evicted, and the allocation itself then throws.
bool Swapping::fits_small(uint64_t bytes) const {
  if (chunks_ == nullptr) return true;
  return bytes < chunks_->memory.least_leaving_bytes() && base_.allocations->takes_small(bytes);
}

// An op's results are on the device at once, and are pinned until the op ends. Memory that only ops use is swapped in
// at its first use. So is memory for an op that only creates, if no memory is idle: its caller may have taken a raw
// address since the last op, so memory must not be handed on before the next op.
Movable* Swapping::make_movable(const Request& request, CUstream stream) {
  const uint64_t bytes = request.bytes;
  RunningOp* const op = request.op;
  const bool expected = outlook_ != nullptr && (op == nullptr || !op->beside);
  const int32_t storage = expected ? outlook_->expected_key(bytes) : -1;
  Movable* made = nullptr;
  if (op == nullptr && !request.reachable) made = mover().make_out(bytes);
  if (op != nullptr && op->untouched) {
    made = mover().make_idle(bytes, stream, storage);
    if (made == nullptr) made = mover().make_out(bytes, base_.backend.hooks->in_host ? nullptr : &stream);
  }
  if (made == nullptr) made = mover().make(bytes, stream, storage);
  if (made != nullptr && op != nullptr && chunks_->put_off.active()) {
    Mover::Uses all = uses_of(*op);
    all.push_back({made, true});
    note_need(all, {}, op);
  }
  return made != nullptr ? made : make_anyway(bytes, op, stream);
}

// Used if memory is out. An op keeps its operands where they lie until it ends, so small operands may keep more chunks
// than they fill. An allocation that fails only because of that is made on the host, and swapped in at its next use.
Movable* Swapping::make_anyway(uint64_t bytes, RunningOp* op, CUstream stream) {
  const bool put_off = chunks_->put_off.active();
  const Mover::Uses uses = op != nullptr ? uses_of(*op) : Mover::Uses{};
  const Need need = mover().need(uses, {bytes});
  const bool too_much = op == nullptr || need.chunks() > chunks_->memory.ranges.chunks.pool.most();
  if (too_much && !put_off) refuse(uses, {bytes}, op);
  if (op != nullptr) make_room(op->made_out, op->made_out.size() + 1);
  if (put_off) note_need(uses, {bytes}, op);
  Movable* const made = mover().make_out(bytes, base_.backend.hooks->in_host ? nullptr : &stream);
  if (made == nullptr) refuse(uses, {bytes}, op);
  mover().note_displaced(made);
  if (op != nullptr) op->made_out.push_back({made, true});
  return made;
}

// Returns the blocks of plain and unified memory that the device may hold beside chunks; 0 if the budget is not
// divided, because chunks do not shrink for them then.
uint64_t Swapping::other_chunks() const {
  if (!present_budget().divided()) return 0;
  uint64_t bytes = 0;
  bool any_managed = false;
  base_.allocations->each_block([&](const Block& block) {
    const uint32_t memory = block.arena->heap->placement.memory;
    if (memory == UM_MEMORY_CHUNKED) return;
    any_managed = any_managed || memory == UM_MEMORY_MANAGED;
    bytes += block.bytes;
  });
  if (any_managed) bytes = std::max(bytes, 2 * kBlockBytes);
  return chunks_->memory.chunks_of(bytes);
}

PresentBudget Swapping::present_budget() const {
  const MovableMemory& memory = chunks_->memory;
  return {memory.ranges.chunks.pool.budget(), memory.chunk_bytes(), chunks_->session_bytes};
}

Need Swapping::need_in_any_budget(const Mover::Uses& uses, const std::vector<uint64_t>& made_bytes) const {
  Need need = chunks_->mover.need_in_any_budget(uses, made_bytes);
  need.other = other_chunks();
  return need;
}

void Swapping::note_need(const Mover::Uses& uses, const std::vector<uint64_t>& made_bytes, const RunningOp* op) {
  chunks_->put_off.note(need_in_any_budget(uses, made_bytes), about(op));
}

void Swapping::refuse(const Mover::Uses& uses, const std::vector<uint64_t>& made_bytes, const RunningOp* op) const {
  const std::string words = refusal(need_in_any_budget(uses, made_bytes), present_budget());
  throw Error(UM_OUT_OF_DEVICE_MEMORY, (op != nullptr ? about(op) : "") + words + step_undo_.changes());
}

bool Swapping::put_off() {
  if (chunks_ == nullptr || base_.ops.step == 0 || !base_.backend.hooks->in_host) return false;
  if (!chunks_->put_off.active()) step_undo_.begin_refused();
  chunks_->put_off.begin();
  return true;
}

void Swapping::end_put_off(uint64_t update_bytes, uint64_t update_tensors) {
  if (chunks_ == nullptr || !chunks_->put_off.active()) return;
  const Need update = need_in_any_budget({}, std::vector<uint64_t>(update_tensors, update_bytes));
  if (update.working > 0) chunks_->put_off.note(update, "no room for an update of a parameter: ");
  const std::string words = chunks_->put_off.end(present_budget());
  if (!words.empty()) throw Error(UM_OUT_OF_DEVICE_MEMORY, words + step_undo_.changed());
}

void Swapping::pin(Movable* block, bool write) {
  ++block->pins;
  const OnError undo([&] { --block->pins; });
  if (!mover().acquire({{block, write}}, nullptr)) refuse({{block, write}}, {}, nullptr);
}

Movable* Swapping::reserved_at(uint64_t address) const {
  const ReservedAddress* const found = has_chunks() ? chunks_->memory.reserved.find(address) : nullptr;
  return found != nullptr && !found->mapped() ? notes(*found->whose).movable : nullptr;
}

bool Swapping::return_to_reserved(Movable* block, bool write) {
  mover().transfers.call_back(block);
  pin(block, write);
  const OnError undo([&] { --block->pins; });
  const bool there = mover().transfers.to_reserved(block);
  --block->pins;
  return there;
}

uint64_t Swapping::device_bytes(const Block& block) const {
  const MovableMemory& memory = chunks_->memory;
  const uint64_t bytes = block.record.bytes;
  return memory.shares(bytes) ? memory.shared.part_bytes(bytes) : memory.chunks_of(bytes) * memory.chunk_bytes();
}

// ---- ops and steps ---------------------------------------------------------------------------------------------

void Swapping::begin_op(RunningOp& op) {
  if (op.swapped.empty()) return;
  for (const Movable::Use& use : op.swapped) ++use.block->pins;
  const OnError undo([&] {
    device_lock.assert_held();
    unpin(op);
  });
  const bool put_off = chunks_->put_off.active();
  if (put_off) note_need(op.swapped, {}, &op);
  if (!mover().busy() && mover().at_hand(op.swapped, op.stream)) return;
  const RequiredContext current(base_.backend);
  go_on();
  if (!mover().acquire(op.swapped, op.stream, put_off) && !put_off) refuse(op.swapped, {}, &op);
}

void Swapping::unpin(RunningOp& op) noexcept {
  for (const Movable::Use& use : op.swapped) --use.block->pins;
  op.swapped.clear();
}

void Swapping::end_op(RunningOp& op) noexcept {
  if (op.swapped.empty() && !mover().busy()) return;
  const CurrentContext current(base_.backend);
  mover().waits.end_use(op.swapped, op.stream);
  unpin(op);
  if (!op.untouched) go_on();
}

// Continues the plan's moves. An op is not refused because a copy for another op cannot begin.
void Swapping::go_on() noexcept {
  try {
    mover().progress();
  } catch (const std::exception&) {
    return;  // an op that needs this memory tries again, and may throw
  }
}

void Swapping::begin_step(uint32_t step) {
  if (outlook_ == nullptr || step == 0) return;
  const RequiredContext current(base_.backend);
  chunks_->memory.layout.begin_step();
  chunks_->memory.shared.begin_step();
}

// ---- what there is ---------------------------------------------------------------------------------------------

void Swapping::reset_peaks() noexcept {
  chunks_->memory.ranges.chunks.taken.reset_peak();
  chunks_->memory.small_chunks.reset_peak();
  chunks_->memory.copies.in_use.reset_peak();
}

// Managed memory and chunks rarely exist at the same time; if they do, this peak is an upper bound.
void Swapping::tell(um_memory_stats* out) const noexcept {
  out->host_bytes += chunks_->memory.copies.in_use.now;
  out->host_peak_bytes += chunks_->memory.copies.in_use.peak;
}

}  // namespace um
