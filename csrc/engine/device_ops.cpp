// Begins and ends the ops of a device.
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/on_error.h"
#include "engine/device.h"
#include "memory/address_map.h"

void um_device::begin_op(uint32_t op, uint32_t phase, uint32_t module, uint32_t flags, const um_access* accesses,
                         uint32_t count) {
  std::pair<const um_access*, uint32_t> given(accesses, count);
  const um_gather give = [](void* context, const um_access** out, uint32_t* out_count) {
    std::tie(*out, *out_count) = *static_cast<decltype(given)*>(context);
  };
  begin_op(op, phase, module, flags, give, &given);
}

void um_device::begin_op(uint32_t op, uint32_t phase, uint32_t module, uint32_t flags, um_gather gather,
                         void* context) {
  if (um::running_op != nullptr) {
    throw um::Error(UM_BAD_STATE, "an op runs in this thread already: ops do not nest");
  }
  um::RunningOp* running = nullptr;
  {
    const Locked locked = alive();
    running = guard.enter(op, phase, module, flags, gather, context);
  }
  um::running_op = running;
  const um::OnError end([&] { end_op(nullptr, 0); });  // the caller ends only ops whose begin succeeded
  guard.bring(*running);
}

uint32_t um_device::end_op(const um_shown* outputs, uint32_t count) noexcept {
  um::RunningOp* const op = own_op();
  return op != nullptr ? guard.end(op, outputs, count) : 0;
}

void um_device::show(const void* address, void* storage) noexcept {
  const Found found = find(um::address_of(address), true);
  if (found.block != nullptr) found.device->guard.meet(found.block, storage);
}
