// The C ABI for devices, their memory, and what happened on them.
#include "capi/device.h"

#include <string>

#include "base/error.h"
#include "driver/driver.h"
#include "engine/doors.h"
#include "engine/owners.h"
#include "engine/routes.h"
#include "memory/address_map.h"
#include "memory/features.h"
#include "memory/host_memory.h"
#include "memory/managed_cap.h"
#include "memory/names.h"
#include "memory/process.h"
#include "umadvise.h"

namespace {

using um::Error;
using um::capi::alive;
using um::capi::checked;
using um::capi::count_time_for;
using um::capi::given;
using um::capi::guarded;
using um::capi::guarded_value;

// What was counted can be read when the device is closed too, until another one is opened; then it is 0.
template <class Work>
uint64_t of_parts(const Work& work, um_device* device) {
  return guarded_value(uint64_t{0}, [&] {
    const um_device::Locked locked = checked(device).lock();
    return device->has_parts() ? uint64_t{work()} : 0;
  });
}

template <class Row>
uint64_t recorded(um_device* device, std::vector<Row> um::Tape::Rows::* rows, Row* out, uint64_t capacity) {
  return of_parts(
      [=] { return um::device_lock.assert_held(), device->recording.read(rows, out, out != nullptr ? capacity : 0); },
      device);
}

// "cuMemFree", or "cuMemAdvise (CUDA 12.2)" where a function comes in several forms.
std::string display_name(const um::driver::FunctionInfo& function) {
  int forms = 0;
  for (const auto& other : um::driver::kFunctions) forms += std::string(other.symbol) == function.symbol;
  if (forms == 1) return function.symbol;
  return std::string(function.symbol) + " (CUDA " + std::to_string(function.version / 1000) + "." +
         std::to_string(function.version % 1000 / 10) + ")";
}

}  // namespace

uint32_t um_abi_version(void) { return UM_ABI_VERSION; }
const char* um_last_error(void) { return um::capi::last_error; }

uint32_t um_intern(const char* text) {
  return guarded_value(0u, [&] { return um::intern(text); });
}
const char* um_string(uint32_t id) {
  return guarded_value("", [&] { return um::name_of(id); });
}

// ---- devices -----------------------------------------------------------------------------------------------

um_status um_device_open_emulated(const um_emulated_options* options, um_device** out) {
  return guarded([&] {
    given(out, "the place for the device");
    *out = um_device::open(um::Backend::open_emulated(*given(options, "the options")));
  });
}

um_status um_device_open_cuda(int32_t ordinal, um_device** out) {
  return guarded([&] {
    given(out, "the place for the device");
    *out = um_device::open(um::Backend::open_cuda(ordinal));
  });
}

um_status um_device_close(um_device* device) {
  return guarded([&] {
    um_device& closed = checked(device);
    um::forget_route(&closed);
    closed.close();
  });
}

const char* um_cuda_unavailable_reason(void) {
  const char* reason = nullptr;
  return um::driver::libcuda(&reason) != nullptr ? nullptr : reason;
}

um_status um_device_query(um_device* device, um_device_info* out) {
  return guarded([&] { alive(device)->query(given(out, "the place for the device's description")); });
}

const char* um_device_feature(um_device* device, uint32_t index, const char** reason) {
  return guarded_value(static_cast<const char*>(nullptr), [&]() -> const char* {
    if (index >= um::kFeatureCount) return nullptr;
    const std::string why = um::why_not(alive(device)->backend, static_cast<um::Feature>(index));
    if (reason != nullptr) *reason = why.empty() ? nullptr : um::name_of(um::intern(why.c_str()));
    return um::kFeatureNames[index];
  });
}

um_status um_discard_set(um_device* device, int32_t on) {
  return guarded([&] { alive(device)->backend.discards = on != 0; });
}

void um_host_shared_set(uint32_t processes) { um::share_host(processes); }

void um_most_managed_set(uint64_t bytes) { um::managed_cap::most_bytes = bytes; }

const char* um_driver_function(um_device* device, uint32_t index, const char** reason) {
  return guarded_value(static_cast<const char*>(nullptr), [&]() -> const char* {
    if (index >= um::driver::kFunctionCount) return nullptr;
    if (reason != nullptr) *reason = checked(device).backend.driver->reason[index];
    return um::name_of(um::intern(display_name(um::driver::kFunctions[index]).c_str()));
  });
}

um_status um_link_measure(um_device* device, uint64_t bytes, uint32_t copies, int32_t h2d, int32_t d2h,
                          int64_t* out_ns) {
  return guarded([&] {
    alive(device)->measure_link(bytes, copies, h2d != 0, d2h != 0, given(out_ns, "the place for the times"));
  });
}

// ---- allocation --------------------------------------------------------------------------------------------

um_status um_allocate(um_device* device, uint64_t bytes, const um_placement* placement, void* stream, void** out) {
  return guarded([&] {
    *given(out, "the place for the address") = nullptr;
    *out = checked(device).allocate(bytes, *given(placement, "the placement"), stream);
  });
}

int32_t um_free(void* pointer) { return um_device::free(pointer); }
int32_t um_owns(const void* address) { return um_device::owns(address); }

void um_route_set_thread(const um_route* route) { um::set_thread_route(route); }
void um_route_get_thread(um_route* out) { *out = um::thread_route(); }
void um_route_set_process(const um_route* route) { um::set_process_route(route); }

um_device* um_route_device(void) {
  um_route route;
  return um::current_route(&route) ? route.device : nullptr;
}

uint64_t um_route_lease(void) { return um::lease_routes(); }

um_status um_allocate_routed(uint64_t bytes, void* stream, void** out) {
  return guarded([&] {
    *given(out, "the place for the address") = nullptr;
    um_route route;
    if (!um::current_route(&route)) throw Error(UM_BAD_STATE, "no device is routed to in this thread");
    *out = route.device->allocate(bytes, route.placement, stream, um_device::Use::outside_ops);
  });
}

um_status um_allocation_at(const void* address, um_allocation* out) {
  return guarded([&] { um_device::describe(address, given(out, "the place for the allocation")); });
}

um_status um_allocation_label(const void* address, uint32_t role, uint32_t name) {
  return guarded([&] { um_device::label(address, role, name); });
}

uint64_t um_allocations(um_device* device, um_allocation* out, uint64_t capacity) {
  return guarded_value(uint64_t{0}, [&] { return alive(device)->list(out, out != nullptr ? capacity : 0); });
}

// ---- data in and out ---------------------------------------------------------------------------------------

um_status um_copy_from_host(void* device_address, const void* host, uint64_t bytes) {
  return guarded([&] { um::copy_from_host(device_address, host, bytes); });
}

um_status um_copy_to_host(void* host, const void* device_address, uint64_t bytes) {
  return guarded([&] { um::copy_to_host(host, device_address, bytes); });
}

um_status um_prefetch(const void* address, uint64_t bytes, int32_t to_host, void* stream) {
  return guarded([&] { um::prefetch(address, bytes, to_host != 0, stream); });
}

um_status um_stream_wait(um_device* device, void* waiting, void* awaited) {
  return guarded([&] {
    alive(device)->streams.wait(static_cast<um::driver::CUstream>(waiting), static_cast<um::driver::CUstream>(awaited));
  });
}

um_status um_stream_uses(const void* address, void* stream) {
  return guarded([&] { um::lend(address, stream); });
}

um_status um_memory_trim(um_device* device) {
  return guarded([&] { alive(device)->trim(); });
}

um_status um_owners_remember(um_device* device, uint32_t which) {
  return guarded([&] { alive(device)->block_owners.remember(static_cast<um_owners>(which)); });
}

um_status um_convert(um_device* device, const um_conversion* conversion, um_converted* out) {
  return guarded([&] {
    *given(out, "the place for what moved") = alive(device)->conversion.convert(*given(conversion, "the conversion"));
  });
}

um_status um_export(const void* address, const void** present) {
  return guarded([&] {
    const um_device::Found found = um_device::find_range(address, 0);
    const uint64_t held = found.device->exports.add(found.block, um::address_of(address));
    if (present != nullptr) *present = reinterpret_cast<const void*>(held);
  });
}

um_status um_export_lasting(const void* address) {
  return guarded([&] {
    const um_device::Found found = um_device::find_range(address, 0);
    found.device->exports.add_lasting(found.block);
  });
}

um_status um_address_shown(const void* address, const void** shown) {
  return guarded([&] {
    const um_device::Found found = um_device::find_range(address, 0);
    const uint64_t offset_bytes = um::address_of(address) - found.block->address;
    const uint64_t at = found.device->kind_of(*found.block).shown(found.block) + offset_bytes;
    *given(shown, "the place for the address") = reinterpret_cast<const void*>(at);
  });
}

um_status um_export_release(const void* address) {
  return guarded([&] {
    const um_device::Found found = um_device::find_range(address, 0);
    found.device->exports.release(found.block);
  });
}

// ---- what happened -----------------------------------------------------------------------------------------

uint64_t um_events_drain(um_device* device, um_event* out, uint64_t capacity) {
  return of_parts(
      [=] {
        return um::device_lock.assert_held(), device->observation.drain(given(out, "the place for events"), capacity);
      },
      device);
}

uint64_t um_events_dropped(um_device* device) {
  return of_parts([=] { return um::device_lock.assert_held(), device->observation.dropped(); }, device);
}

void um_events_enable(um_device* device, int32_t on) {
  guarded([&] { alive(device)->observation.set(on != 0); });
}

um_status um_counters_read(um_device* device, um_counters* out) {
  return guarded([&] { alive(device)->accounts.read(given(out, "the place for the counters")); });
}

um_status um_sampling_set(um_device* device, uint32_t every) {
  return guarded([&] { alive(device)->sampling.set_every(every); });
}

um_status um_sampling_read(um_device* device, um_sampling* out) {
  return guarded([&] { *given(out, "the place for the counters") = alive(device)->sampling.read(); });
}

um_status um_times_read(um_device* device, um_spent_time* out, int64_t* out_at_ns) {
  return guarded([&] {
    int64_t* const at_ns = given(out_at_ns, "the place for the time of the reading");
    *at_ns = alive(device)->times.read(given(out, "the place for the times"));
  });
}

uint32_t um_times_outside(um_device* device, uint32_t kind) {
  return guarded_value(uint32_t{UM_TIME_SCRIPT}, [&] {
    const um_device::Locked locked = alive(device);
    if (kind > UM_TIME_OBSERVING) throw Error(UM_INVALID_ARGUMENT, "time between ops is of no such kind");
    return uint32_t{count_time_for(locked, static_cast<um_time>(kind))};
  });
}

um_status um_memory_read(um_device* device, um_memory_stats* out) {
  return guarded([&] { alive(device)->accounts.read(given(out, "the place for the statistics")); });
}

uint64_t um_residency_read(um_device* device, um_residency* out, uint64_t capacity) {
  return guarded_value(uint64_t{0},
                       [&] { return alive(device)->observation.residency(out, out != nullptr ? capacity : 0); });
}

uint64_t um_placed_read(um_device* device, um_placed* out, uint64_t capacity) {
  return guarded_value(uint64_t{0}, [&] { return alive(device)->accounts.placed(out, out != nullptr ? capacity : 0); });
}

um_status um_memory_history_read(um_device* device, um_memory_history* out) {
  return guarded([&] { *given(out, "the place for the history") = alive(device)->accounts.history(); });
}

void um_memory_reset_peaks(um_device* device) {
  guarded([&] { alive(device)->accounts.reset_all_peaks(); });
}

// ---- recording ---------------------------------------------------------------------------------------------

um_status um_record(um_device* device, int32_t on) {
  return guarded([&] { alive(device)->recording.set(on != 0); });
}

uint64_t um_recorded_ops(um_device* device, um_recorded_op* out, uint64_t capacity) {
  return recorded(device, &um::Tape::Rows::ops, out, capacity);
}
uint64_t um_recorded_accesses(um_device* device, um_recorded_access* out, uint64_t capacity) {
  return recorded(device, &um::Tape::Rows::accesses, out, capacity);
}
uint64_t um_recorded_outputs(um_device* device, uint64_t* out, uint64_t capacity) {
  return recorded(device, &um::Tape::Rows::outputs, out, capacity);
}
uint64_t um_recorded_allocations(um_device* device, um_recorded_allocation* out, uint64_t capacity) {
  return recorded(device, &um::Tape::Rows::allocations, out, capacity);
}
uint64_t um_recorded_events(um_device* device, um_recorded_event* out, uint64_t capacity) {
  return recorded(device, &um::Tape::Rows::events, out, capacity);
}
uint64_t um_recorded_edges(um_device* device, um_recorded_edge* out, uint64_t capacity) {
  return recorded(device, &um::Tape::Rows::edges, out, capacity);
}
uint64_t um_recorded_lost(um_device* device) {
  return of_parts([=] { return um::device_lock.assert_held(), device->recording.lost(); }, device);
}
