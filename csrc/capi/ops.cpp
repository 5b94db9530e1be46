// The C ABI for ops, steps and what moves in them.
#include <algorithm>

#include "base/error.h"
#include "capi/device.h"
#include "engine/device.h"
#include "engine/doors.h"
#include "engine/owners.h"
#include "engine/step_sums.h"
#include "memory/process.h"
#include "memory/shared_chunks.h"
#include "umadvise.h"

using um::capi::alive;
using um::capi::checked;
using um::capi::count_time_for;
using um::capi::given;
using um::capi::guarded;
using um::capi::guarded_value;

namespace {

constexpr const char* kEdge = "the place for the readings";

// Throws um::Error if the step that ends was refused.
void set_step(const um_device::Locked& device, uint32_t step) REQUIRES(um::device_lock) {
  device->guard.set_step(step);
  device->swapping.end_put_off();
}

// Reads the times last, so that they include the other readings.
void read_all(const um_device::Locked& device, um_edge* out) REQUIRES(um::device_lock) {
  out->events = device->observation.waiting();
  device->accounts.read(&out->counters);
  device->read(&out->swaps);
  device->accounts.read(&out->memory);
  out->exports_ended = device->accounts.history().exports_ended;
  out->at_ns = device->times.read(&out->times);
}

}  // namespace

// ---- ops ---------------------------------------------------------------------------------------------------

um_status um_op_begin(um_device* device, uint32_t op, uint32_t phase, uint32_t module, uint32_t flags,
                      const um_access* accesses, uint32_t count) {
  return guarded([&] {
    checked(device).begin_op(op, phase, module, flags, count > 0 ? given(accesses, "the accesses") : nullptr, count);
  });
}

um_status um_op_begin_gathered(um_device* device, uint32_t op, uint32_t phase, uint32_t module, uint32_t flags,
                               um_gather gather, void* context) {
  return guarded(
      [&] { checked(device).begin_op(op, phase, module, flags, given(gather, "the function that gathers"), context); });
}

uint32_t um_op_end(um_device* device, const um_shown* outputs, uint32_t count) {
  return device != nullptr && !um::process::forked() ? device->end_op(outputs, count) : 0;
}

void um_show(const um_shown* shown) {
  if (shown != nullptr && !um::process::forked()) um_device::show(shown->address, shown->storage);
}

void um_owners_set(const um_owner_functions* functions) {
  if (functions != nullptr) um::owners::set(functions);
}

void um_op_stream_set(void* stream) {
  if (!um::left_out(um::Wait::op_stream)) um::op_stream = static_cast<um::driver::CUstream>(stream);
}

um_status um_budget_set(um_device* device, uint64_t budget_bytes) {
  return guarded([&] { alive(device)->budget.set(budget_bytes); });
}

um_status um_plain_limit_set(um_device* device, uint64_t limit_bytes) {
  return guarded([&] { alive(device)->allocations->limit_plain(limit_bytes); });
}

um_status um_step_set(um_device* device, uint32_t step) {
  return guarded([&] { set_step(alive(device), step); });
}

um_status um_edge_approach(um_device* device, um_edge* out) {
  return guarded([&] {
    const auto locked = alive(device);
    um_edge& edge = *given(out, kEdge);
    edge.at_ns = locked->times.read(&edge.times);
    count_time_for(locked, UM_TIME_PLANNING);
  });
}

um_status um_edge_begin(um_device* device, uint32_t step, um_edge* out) {
  return guarded([&] {
    const auto locked = alive(device);
    um_edge& edge = *given(out, kEdge);
    count_time_for(locked, UM_TIME_OBSERVING);
    edge.events = locked->observation.waiting();
    if (edge.events > 0) return;
    set_step(locked, step);
    locked->accounts.read(&edge.counters);
    locked->read(&edge.swaps);
  });
}

um_status um_edge_end(um_device* device, um_edge* out) {
  return guarded([&] {
    const auto locked = alive(device);
    um_edge* const edge = given(out, kEdge);
    count_time_for(locked, UM_TIME_OBSERVING);
    set_step(locked, 0);
    read_all(locked, edge);
  });
}

um_status um_edge_read(um_device* device, um_edge* out) {
  return guarded([&] { read_all(alive(device), given(out, kEdge)); });
}

int32_t um_step_sums_add(um_device* device, const um_edge* begun, const um_edge* ended, um_step_sums* sums) {
  return guarded_value(0, [&] {
    const auto locked = alive(device);
    um_step_sums& to = *given(sums, "the sums");
    to.row_count = locked->observation.residency(to.rows + to.row_capacity, to.row_capacity);
    return um::add_step(*given(begun, kEdge), *given(ended, kEdge), &to) ? 1 : 0;
  });
}

um_status um_refusals_put_off(um_device* device) {
  return guarded([&] {
    if (!alive(device)->swapping.put_off())
      throw um::Error(UM_UNSUPPORTED, "refusals are put off in steps alone, and where kernels run in the host");
  });
}

int32_t um_refusal_pending(um_device* device) {
  return guarded_value(0, [&] { return alive(device)->swapping.is_refused() ? 1 : 0; });
}

um_status um_refusals_end(um_device* device, uint64_t update_bytes, uint64_t update_tensors) {
  return guarded([&] { alive(device)->swapping.end_put_off(update_bytes, update_tensors); });
}

um_status um_step_watch(const void* address) {
  return guarded([&] {
    const um_device::Found found = um_device::find_range(address, 0);
    found.device->step_undo.watch(found.block);
  });
}

um_status um_step_undo(um_device* device, uint64_t* refused_at) {
  return guarded([&] {
    *refused_at = alive(device)->step_undo.refused_at();
    std::vector<char> contents;
    uint64_t address = 0;
    while (alive(device)->step_undo.take(&contents, &address))
      um::copy_from_host(reinterpret_cast<void*>(address), contents.data(), contents.size());
  });
}

um_status um_repetition_set(um_device* device, int32_t on) {
  return guarded([&] { alive(device)->repetition.set(on != 0); });
}

int32_t um_repetition_call(um_device* device, uint64_t module, int32_t differentiated) {
  return guarded_value(0, [&] { return alive(device)->repetition.call(module, differentiated != 0) ? 1 : 0; });
}

// ---- explicit swapping -------------------------------------------------------------------------------------

um_status um_chunks_set(um_device* device, const um_chunk_options* options) {
  return guarded([&] { alive(device)->swapping.set(*given(options, "the options")); });
}

uint64_t um_chunk_share(uint64_t bytes, uint64_t chunk_bytes) {
  return um::SharedChunks::share_of(bytes, std::max<uint64_t>(chunk_bytes, 1));
}

um_status um_program_add(um_device* device, const um_program* program, uint32_t* out_number) {
  return guarded([&] {
    *given(out_number, "the place for the number") = alive(device)->plan_executor.add(*given(program, "the program"));
  });
}

um_status um_program_expect(um_device* device, uint32_t number) {
  return guarded([&] { alive(device)->plan_executor.expect(number); });
}

um_status um_program_drop(um_device* device, uint32_t number) {
  return guarded([&] {
    const auto locked = alive(device);
    number != 0 ? locked->plan_executor.drop(number) : locked->plan_executor.drop_all();
  });
}

um_status um_swap_read(um_device* device, um_swap_counters* out) {
  return guarded([&] { alive(device)->read(given(out, "the place for the counters")); });
}
