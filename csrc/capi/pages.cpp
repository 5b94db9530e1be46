// The C ABI of um::PageModel.
#include "um/pages.h"

#include <string>

#include "capi/guard.h"
#include "engine/counters.h"
#include "umadvise.h"

struct um_pages {
  um::PageModel model;
};

namespace {

using um::Error;
using um::Processor;
using um::capi::caught;
using um::capi::given;

um::PageModel& checked(um_pages* pages) { return given(pages, "the model")->model; }
const um::PageModel& checked(const um_pages* pages) { return given(pages, "the model")->model; }

Processor processor(int32_t host) { return host != 0 ? Processor::host : Processor::device; }

um::pages::Costs costs_of(const um_pages_costs& given_costs) {
  um::pages::Costs costs;
  costs.batch_max = given_costs.batch_max;
  costs.batch_ns = given_costs.batch_ns;
  costs.entry_ns = given_costs.entry_ns;
  costs.block_ns = given_costs.block_ns;
  costs.migrate_ns = given_costs.migrate_ns;
  costs.first_map_ns = given_costs.first_map_ns;
  costs.transfer_ns = given_costs.transfer_ns;
  costs.evict_ns = given_costs.evict_ns;
  costs.host_fault_ns = given_costs.host_fault_ns;
  costs.prefetch_call_ns = given_costs.prefetch_call_ns;
  costs.prefetch_block_ns = given_costs.prefetch_block_ns;
  costs.advise_call_ns = given_costs.advise_call_ns;
  costs.read_mostly_block_ns = given_costs.read_mostly_block_ns;
  costs.accessed_by_block_ns = given_costs.accessed_by_block_ns;
  costs.h2d_bytes_per_s = static_cast<double>(given_costs.h2d_bytes_per_s);
  costs.d2h_bytes_per_s = static_cast<double>(given_costs.d2h_bytes_per_s);
  costs.zero_bytes_per_s = static_cast<double>(given_costs.zero_bytes_per_s);
  costs.remote_bytes_per_s = static_cast<double>(given_costs.remote_bytes_per_s);
  costs.prefetch_bytes_per_s = static_cast<double>(given_costs.prefetch_bytes_per_s);
  return costs;
}

um::pages::Touch touch_of(const um_pages_touch& touch) {
  if (touch.order > UM_TOUCH_PARALLEL)
    throw Error(UM_INVALID_ARGUMENT, "no such order: " + std::to_string(touch.order));
  um::pages::Touch result{touch.offset_bytes, touch.bytes, processor(static_cast<int32_t>(touch.host)),
                          touch.write != 0};
  result.order = static_cast<um::pages::TouchOrder>(touch.order);
  result.window_pages = touch.window_pages;
  result.run_pages = touch.run_pages;
  result.faults_per_service = touch.faults_per_service;
  result.stride_bytes = touch.stride_bytes;
  return result;
}

um_pages_record record_of(const um::pages::Record& record) {
  constexpr uint16_t kKinds[] = {UM_EVENT_FAULT_GROUP, UM_EVENT_TRANSFER_H2D, UM_EVENT_TRANSFER_D2H};  // by Direction
  return {record.start_ns,
          record.end_ns,
          record.address,
          record.bytes,
          record.faults,
          kKinds[static_cast<int>(record.direction)],
          static_cast<uint16_t>(record.cause)};
}

}  // namespace

um_status um_pages_create(const um_pages_options* options, um_pages** out) {
  return caught([&] {
    const um_pages_options& wanted = *given(options, "the options");
    const um::pages::Machine machine{wanted.device_bytes, wanted.page_bytes, wanted.coherent != 0};
    *given(out, "the place for the model") = new um_pages{{machine, costs_of(wanted.costs)}};
  });
}
void um_pages_destroy(um_pages* pages) { delete pages; }

um_status um_pages_allocate(um_pages* pages, uint64_t bytes, uint64_t* allocation, uint64_t* address) {
  return caught([&] {
    given(allocation, "the place for the allocation");
    given(address, "the place for the address");
    *allocation = checked(pages).allocate(bytes);
    *address = checked(pages).address(*allocation);
  });
}

um_status um_pages_free(um_pages* pages, uint64_t allocation) {
  return caught([&] { checked(pages).free(allocation); });
}

um_status um_pages_accesses(um_pages* pages, const um_pages_touch* touch) {
  return caught([&] {
    const um_pages_touch& wanted = *given(touch, "the touch");
    checked(pages).touch(wanted.allocation, touch_of(wanted));
  });
}

um_status um_pages_advise(um_pages* pages, uint64_t allocation, uint32_t advice, int32_t host) {
  return caught([&] {
    if (advice > UM_UNSET_ACCESSED_BY) throw Error(UM_INVALID_ARGUMENT, "no such advice: " + std::to_string(advice));
    checked(pages).advise(allocation, static_cast<um::Advice>(advice), processor(host));
  });
}

um_status um_pages_prefetch(um_pages* pages, uint64_t allocation, int32_t host) {
  return caught([&] { checked(pages).prefetch(allocation, processor(host)); });
}

um_status um_pages_discard(um_pages* pages, uint64_t allocation) {
  return caught([&] { checked(pages).discard(allocation); });
}

um_status um_pages_counters_read(const um_pages* pages, um_pages_counters* out) {
  return caught([&] {
    const um::pages::PageCounters& counters = checked(pages).counters();
    um_pages_counters& result = *given(out, "the place for the counters");
    result.shared = {};
    um::fill(counters.shared, &result.shared);
    result.shared.remote_accesses = counters.remote_requests;
    result.shared.fault_service_ns = counters.fault_service_ns;
    result.host_fault_groups = counters.shared.host_fault_groups;
    result.faults = counters.faults;
    result.batches = counters.batches;
    result.thrashing_pages = counters.thrashing_pages;
    result.throttles = counters.throttles;
    result.pinned_pages = counters.pinned_pages;
    result.remote_bytes = counters.remote_bytes;
    result.zeroed_bytes = counters.zeroed_bytes;
  });
}

int64_t um_pages_now_ns(const um_pages* pages) {
  int64_t now_ns = 0;
  caught([&] { now_ns = checked(pages).now_ns(); });
  return now_ns;
}

uint64_t um_pages_records(const um_pages* pages, uint64_t first, um_pages_record* out, uint64_t capacity) {
  uint64_t count = 0;
  caught([&] {
    const std::vector<um::pages::Record>& records = checked(pages).records();
    count = records.size();
    for (uint64_t i = 0; out != nullptr && i < capacity && first + i < count; ++i)
      out[i] = record_of(records[first + i]);
  });
  return count;
}
