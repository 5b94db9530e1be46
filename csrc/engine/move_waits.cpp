#include "engine/move_waits.h"

#include <exception>

namespace um {

using driver::CUstream;

void MoveWaits::stall(const Movable& block, CUstream stream, Wait name) {
  if (!backend_.hooks->in_host) {  // the device stalls, and later than now
    const um_event what = events_.wait(UM_EVENT_WAIT_COPY, block.cause, block.block);
    return stalls.around(stream, what, [&] { fences_.order(stream, block.moved, name); });
  }
  if (fences_.passed(block.moved, name)) return;
  const int64_t start_ns = backend_.now_ns();
  fences_.order(stream, block.moved, name);
  events_.tell(UM_EVENT_WAIT_COPY, block.cause, *block.block, 0, start_ns, backend_.now_ns() - start_ns);
}

void MoveWaits::stand(const Movable& block, um_event_kind for_what, Wait name) {
  if (block.moved == 0 || fences_.passed(block.moved, name)) return;
  const int64_t start_ns = backend_.now_ns();
  fences_.wait(block.moved, name);
  events_.tell(for_what, block.cause, *block.block, 0, start_ns, backend_.now_ns() - start_ns);
}

// A copy to the device may still read the host memory long after the allocation's device memory was handed on.
bool MoveWaits::on_host(Movable* block, bool write) {
  if (block->residence.range != nullptr) return false;
  if (block->state.copying_out()) stand(*block, UM_EVENT_WAIT_COPY, Wait::read_of_host_copy);
  if (block->streams != 0) {  // ops used it on the host
    const HeldFence used(fences_, streams.last_use(block->streams, {}));
    fences_.wait(used, Wait::host_after_kernels);
  }
  if (write) {
    stand(*block, UM_EVENT_WAIT_COPY, Wait::write_of_host_copy);
    fences_.replace(&block->moved);
  }
  block->state.change(Change::copied_out);
  return true;
}

void MoveWaits::end_use(const std::vector<Movable::Use>& uses, CUstream stream) noexcept {
  if (backend_.hooks->in_host || uses.empty()) return;  // on such devices the op has ended already
  try {
    const uint64_t bit = streams.bit_of(stream);
    const HeldFence ended(fences_, fences_.record(&stream, 1));
    for (const Movable::Use& use : uses) {
      fences_.replace(&use.block->used);
      if (use.block->streams != bit) continue;
      fences_.retain(ended);
      use.block->used = ended;
    }
  } catch (const std::exception&) {
    return;  // a later user then records an event of its own, and waits for more
  }
}

Fences::Fence MoveWaits::last_use(const Movable& block, Wait of_arrival, Wait of_departure) {
  Fences::Fence ops = block.used;
  fences_.retain(ops);
  if (ops == 0) ops = streams.last_use(block.streams, {});
  const bool arrives =
      block.state.is(Where::arriving) && block.streams == 0;  // otherwise the ops run after the arrival
  const bool departs = block.state.copying_out() || block.residence.range == nullptr;
  if ((!arrives || left_out(of_arrival)) && (!departs || left_out(of_departure))) return ops;
  const HeldFence held(fences_, ops);
  return fences_.join(ops, block.moved);
}

Fences::Fence MoveWaits::freed_after(const Movable& block) noexcept {
  const bool leaves = block.state.is(Where::leaving), out = block.residence.range == nullptr;
  const bool unused = leaves || (out && block.streams == 0);  // since it moved
  if (left_out(leaves ? Wait::departure_freed : unused ? Wait::host_copy_freed : Wait::block_freed)) return 0;
  try {
    if (!unused) return last_use(block, Wait::arrival_freed, Wait::departure_freed);
  } catch (...) {
    // No event can be recorded, so this waits for the work itself. A driver that fails here too has lost that work.
    streams.synchronize(Wait::freed_without_event);
  }
  fences_.retain(block.moved);
  return block.moved;
}

}  // namespace um
