// Explicit swapping on a device: chunked memory, and steps that follow a program.
#include <algorithm>

#include "base/error.h"
#include "base/on_error.h"
#include "engine/device.h"
#include "memory/address_map.h"
#include "memory/migration.h"
#include "memory/names.h"

using um::Block;
using um::CurrentContext;
using um::Error;
using um::managed;
using um::RequiredContext;
using um::RunningOp;
using um::Swapper;
using um::driver::CUstream;

namespace {

Error named(const Error& error, const RunningOp& op) {
  if (error.status() != UM_OUT_OF_DEVICE_MEMORY) return error;
  const std::string module = um::name_of(op.identity.module);
  return Error(error.status(), std::string("no room for ") + um::name_of(op.identity.op) +
                                   (module.empty() ? "" : " of " + module) + ": " + error.what());
}

}  // namespace

// ---- chunks ------------------------------------------------------------------------------------------------

void um_device::set_chunks(const um_chunk_options& options) {
  const Lock lock = lock_alive();
  const RequiredContext current(backend_);
  if (chunked_ != nullptr) {
    const bool same = (options.chunk_bytes == 0 || options.chunk_bytes == chunked_->chunk_bytes()) &&
                      options.host_mapped == chunk_options_.host_mapped && options.small == chunk_options_.small;
    if (!same) throw Error(UM_BAD_STATE, "the device has chunks already: only their budgets can change");
    chunked_->set_host_budget(options.host_budget_bytes);
    swapper_->set_budget(options.budget_bytes);
    return;
  }
  auto chunked = std::make_unique<um::ChunkedMemory>(backend_, options, *fences_);
  auto swapper = std::make_unique<Swapper>(backend_, *chunked, *fences_, swap_events_, options.host_mapped != 0);
  chunked->set_marker([swapper = swapper.get()] { return swapper->everything(); });
  swapper->set_forecast(program_.get());
  swapper->set_export_ender([this] { return end_oldest_export(UM_MEMORY_CHUNKED); });
  allocations_->set_chunked(chunked.get());
  chunked_ = std::move(chunked);
  swapper_ = std::move(swapper);
  chunk_options_ = options;
  if (backend_.hooks == nullptr) return;
  backend_.hooks->set_describer(tell_stray_access);
  backend_.hooks->set_owner(serve_stray_access);
}

// Small blocks never leave: what large ones hold must, when there is no chunk for more of them.
Block* um_device::allocate_evicting(uint64_t bytes, const um_placement& placement, const um::Birth& birth) {
  const bool chunked = placement.memory == UM_MEMORY_CHUNKED && swapper_ != nullptr;
  Block* block = nullptr;
  try {
    block = allocate_preferred(bytes, placement, birth);
  } catch (const Error& error) {
    if (!chunked || error.status() != UM_OUT_OF_DEVICE_MEMORY) throw;
    const RequiredContext current(backend_);
    if (!swapper_->make_room(1)) throw;
  }
  if (block == nullptr) block = allocate_preferred(bytes, placement, birth);
  if (chunked) swapper_->note_level();
  return block;
}

// What is made is there at once, as whoever gets its address may use it in no op, and even in the kernel. It stays
// until the op ends that made it; on a GPU, if none did or one that only creates, until an op was given it. What nobody
// else will use (Use::by_ops) comes with its first use.
void um_device::make_chunked(Block* block, RunningOp* op, CUstream stream, Use use) {
  const um::OnError undo([&] {
    if (block->swapped != nullptr) detach(block);
    forget(block);
  });
  try {
    swapper_->attach(block);
    const RequiredContext current(backend_);
    if (op == nullptr && use == Use::by_ops) {
      if (backend_.hooks != nullptr) chunked_->vacate(*block);
      return;
    }
    if (op == nullptr || op->untouched) return bring_for_good(block, op != nullptr ? op->stream : stream);
    op->swapped.push_back({block->swapped, true});
    swapper_->pin(block->swapped);
    swap_events_.op = op->identity;
    swapper_->acquire(op->swapped.data(), op->swapped.size(), op->stream, op->swapped.size() - 1);
  } catch (const Error& error) {
    throw op != nullptr ? named(error, *op) : error;
  }
}

void um_device::bring_for_good(Block* block, CUstream stream) {
  hold(block->swapped, true, stream);
  swapper_->unpin(block->swapped);
  block->swapped->in_reach = true;
}

void um_device::detach(Block* block) noexcept {
  const auto is_it = [&](const Swapper::Use& use) { return use.block == block->swapped; };
  for (RunningOp* op : running_ops_) {  // of any thread
    op->swapped.erase(std::remove_if(op->swapped.begin(), op->swapped.end(), is_it), op->swapped.end());
  }
  const CurrentContext current(backend_);
  swapper_->detach(block);
}

void um_device::bring_in(RunningOp& op) {
  for (const Swapper::Use& use : op.swapped) swapper_->pin(use.block);
  const um::OnError undo([&] { unpin(op); });
  try {
    if (swapper_->at_hand(op.swapped.data(), op.swapped.size(), op.stream)) return;
    const RequiredContext current(backend_);
    go_on_swapping();
    swapper_->acquire(op.swapped.data(), op.swapped.size(), op.stream);
  } catch (const Error& error) {
    throw named(error, op);
  }
}

void um_device::unpin(RunningOp& op) noexcept {
  for (const Swapper::Use& use : op.swapped) swapper_->unpin(use.block);
  op.swapped.clear();
}

void um_device::let_go(RunningOp& op) noexcept {
  unpin(op);
  if (!swapper_->busy()) return;
  const CurrentContext current(backend_);
  go_on_swapping();
}

// With what plans asked for: no op is refused because a copy for another one cannot begin.
void um_device::go_on_swapping() noexcept {
  try {
    swapper_->progress();
  } catch (const std::exception&) {
    return;  // an op that needs the room itself meets it again, and may throw
  }
}

void um_device::end_swapping() noexcept {
  const CurrentContext current(backend_);
  program_.reset();
  swapper_.reset();
  if (chunked_ != nullptr) static_cast<void>(chunked_->give_back());
  chunked_.reset();
  fences_.reset();
  if (side_stream_ != nullptr) static_cast<void>(backend_.call().stream_destroy(side_stream_));
  side_stream_ = nullptr;
}

void um_device::swapping(um_swap_counters* out) {
  const Lock lock = lock_alive();
  *out = swapper_ != nullptr ? swapper_->counted : um_swap_counters{};
  out->actions = actions_;
  out->skipped_actions = skipped_actions_;
  out->redundant_actions = redundant_actions_;
  if (backend_.hooks == nullptr) out->host_accesses = UM_UNKNOWN;
  out->silent_writes = backend_.totals().silent_writes;
  if (program_ != nullptr) program_->tell(out);
  out->programs_followed += programs_followed_;
  if (chunked_ == nullptr) return;
  const uint64_t chunk = chunked_->chunk_bytes();
  out->chunk_bytes = chunk;
  out->budget_bytes = chunked_->budget() * chunk;
  swapper_->note_level();
  swapper_->used.tell(&out->used_bytes, &out->used_peak_bytes);
  chunked_->pinned().tell(&out->pinned_bytes, &out->pinned_peak_bytes, chunk);
  chunked_->host_in_use().tell(&out->host_bytes, &out->host_peak_bytes, chunk);
  out->host_pool_bytes = chunked_->host_pool() * chunk;
}

// ---- programs ----------------------------------------------------------------------------------------------

void um_device::set_program(const um_program* program) {
  const Lock lock = lock_alive();
  std::unique_ptr<um::Program> next = program != nullptr ? std::make_unique<um::Program>(*program) : nullptr;
  if (program_ != nullptr) {
    programs_followed_ += program_->followed();
    program_->release();
  }
  program_ = std::move(next);
  if (swapper_ != nullptr) swapper_->set_forecast(program_.get());
}

template <class Each>
void um_device::act(bool after, const Each& each) {
  const auto [first, end] = program_->actions(after);
  if (first == end) return;
  const RequiredContext current(backend_);
  for (size_t row = first; row < end; ++row) each(program_->action(row));
}

// A step ends and another begins; 0 is none.
void um_device::follow_step(uint32_t step) {
  if (step_ != 0) {
    act(true, [&](const um::Program::Action& action) { carry_out(action); });
    program_->end_step();
  }
  if (step != 0) program_->begin_step(*allocations_);
}

// Swaps after an op come when everything has that happened between it and the next one, such as frees.
void um_device::follow_op(const RunningOp& op) {
  if (!program_->driving()) return;
  act(true, [&](const um::Program::Action& action) { carry_out(action); });
  program_->begin_op(op.identity.op, operands_.data(), operands_.size());
  act(false, [&](const um::Program::Action& action) {
    if (action.block != nullptr && managed(*action.block)) return move_managed(action, op.stream);
    carry_out(action);
  });
  send_prefetches(op.stream);
}

// Prefetches and advice after an op come before anything else does: memory that is about to be freed can be discarded.
void um_device::finish_op(const RunningOp& op) noexcept {
  try {
    act(true, [&](const um::Program::Action& action) {
      if (action.block != nullptr && managed(*action.block)) move_managed(action, op.stream);
    });
    send_prefetches(op.stream);
  } catch (const std::exception&) {  // it was a wish
    ++skipped_actions_;
  }
}

// Of chunked memory.
void um_device::carry_out(const um::Program::Action& action) {
  if (action.block != nullptr && managed(*action.block)) return;
  um::Swapped* const block = action.block != nullptr ? action.block->swapped : nullptr;
  if (block == nullptr) {
    ++(action.block == nullptr ? skipped_actions_ : redundant_actions_);
    return;
  }
  const auto carried_out = [&] {
    switch (action.kind) {
      case UM_PLAN_SWAP_IN:
        return swapper_->swap_in(block);
      case UM_PLAN_SWAP_OUT:
        return swapper_->swap_out(block);
      case UM_PLAN_DROP:  // where the host has it, that is free
        return action.argument != 0 ? swapper_->swap_out(block) : swapper_->set_spare(block);
      case UM_PLAN_PREFETCH:
        return action.argument == 0 ? swapper_->swap_in(block) : swapper_->swap_out(block);
      case UM_PLAN_WAIT:
        return swapper_->wait(block);
      default:
        return false;
    }
  };
  try {
    ++(carried_out() ? actions_ : redundant_actions_);
  } catch (const Error&) {  // no memory on the host, or the driver refuses: it was a wish
    ++skipped_actions_;
  }
}

void um_device::move_managed(const um::Program::Action& action, CUstream stream) {
  if (backend_.why_no_migration() != nullptr) {
    ++skipped_actions_;
    return;
  }
  const uint64_t at = action.block->address + action.offset_bytes;
  const auto prefetch = [&](bool to_host) {
    if (to_host && action.block->record.exports > 0) return;
    const auto use = to_host ? um::Budget::Use::to_host : um::Budget::Use::to_device;
    keep_budget([&](um::Budget& budget) { budget.use(at, action.bytes, use); }, stream);
    prefetches_.push_back({at, action.bytes, to_host});
    // Ordered counting looks at one thing after another, so prefetches come there where they are asked for.
    if (backend_.ordered()) send_prefetches(stream);
  };
  ++actions_;
  switch (action.kind) {
    case UM_PLAN_PREFETCH:
      return prefetch(action.argument != 0);
    case UM_PLAN_SWAP_IN:
      return prefetch(false);
    case UM_PLAN_SWAP_OUT:
    case UM_PLAN_DROP:
      return prefetch(true);
    case UM_PLAN_DISCARD:
      action.block->record.discarded = true;
      return;
    case UM_PLAN_ADVISE:
      return um::set_advice(backend_, at, action.bytes, static_cast<um_advice>(action.argument));
    default:
      return;
  }
}

// What a plan asks for at one point goes out at once, beside the ops. The host is ahead of the device: pages that leave
// may be what kernels that have not begun yet are to use, and those that come are to find the room that others left.
void um_device::send_prefetches(CUstream stream) {
  if (prefetches_.empty()) return;
  const um::OnError forget([&] { prefetches_.clear(); });
  const RequiredContext current(backend_);
  if (!backend_.ordered()) order(side_stream(), stream, um::Wait::pages_after_op);
  um::prefetch(backend_, prefetches_, backend_.ordered() ? nullptr : side_stream());
  prefetches_.clear();
  sample_residency();
}

void um_device::set_discards(bool on) {
  const Lock lock = lock_alive();
  backend_.discards = on;
}

// Whole pages, before anybody gets them: without it, eviction would copy what nobody needs.
void um_device::discard_freed(const Block& block) noexcept {
  constexpr uint64_t kPage = um::kBlockBytes;
  const uint64_t first = (block.address + kPage - 1) / kPage * kPage, end = block.end() / kPage * kPage;
  if (first >= end || !backend_.discards || !backend_.has(um::driver::Function::mem_discard_batch_async)) return;
  // Who gets the memory next waits for the stream that freed it. That one is not named here: the order below is right
  // for the legacy stream alone.
  if (other_streams_) return;
  try {
    const CurrentContext current(backend_);
    const CUstream stream = side_stream();  // the driver takes no discards in the legacy one
    order(stream, nullptr, um::Wait::discard_after_use);
    um::discard(backend_, first, end - first, stream);
    order(nullptr, stream, um::Wait::discard_before_reuse);
  } catch (const std::exception&) {
    return;  // it is slower without, not wrong
  }
}
