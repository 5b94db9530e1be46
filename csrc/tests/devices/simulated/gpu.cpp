// A simulated GPU by its driver table alone: what streams, events and copies cost of virtual time, and what virtual
// memory management refuses.
#include "devices/simulated/gpu.h"

#include <memory>

#include "check.h"
#include "devices/simulated/device.h"
#include "memory/backend.h"
#include "memory/physical.h"
#include "simulated_link.h"

namespace {

using namespace um::driver;  // NOLINT(google-build-using-namespace): the driver's types

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A GPU of 64 MiB whose calls take no time but those that are given.
struct Open {
  explicit Open(const um::simulator::CallCosts& costs = {}, bool synchronous = false) {
    um_emulated_options options{};
    options.capacity_bytes = 64 * kMiB;
    backend = um::Backend::open_simulated_gpu(options, synchronous);
    um::simulator::Space& space = um::simulator::space_of(backend.ordinal);
    gpu = std::make_unique<um::simulator::Gpu>(space, clock, costs, synchronous);
    space.migrator.clock = &clock;
    space.gpu = gpu.get();
    CHECK(call().ctx_set_current(backend.context) == CUDA_SUCCESS);
  }
  ~Open() { backend.close(); }
  const Table& call() const { return backend.call(); }

  CUstream stream() const {
    CUstream made = nullptr;
    CHECK(call().stream_create(&made, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    return made;
  }
  // After everything that the stream was given.
  CUevent event(CUstream after) const {
    CUevent made = nullptr;
    CHECK(call().event_create(&made, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    CHECK(call().event_record(made, after) == CUDA_SUCCESS);
    return made;
  }
  void op(int64_t duration_ns) {
    clock.begin_op(-1, um::simulator::FaultShape{});
    clock.end_op(duration_ns, false);
  }

  um::simulator::Clock clock{test::link(), um_pages_costs{}, 0};
  um::Backend backend;
  std::unique_ptr<um::simulator::Gpu> gpu;
};

}  // namespace

TEST(the_host_runs_ahead) {
  Open open;
  open.op(5000);
  const CUevent done = open.event(nullptr);
  CHECK(open.clock.host_ns() == 0);
  CHECK(open.call().event_query(done) == CUDA_ERROR_NOT_READY);
  CHECK(open.call().stream_query(nullptr) == CUDA_ERROR_NOT_READY);
  CHECK(open.call().event_synchronize(done) == CUDA_SUCCESS);
  CHECK(open.clock.host_ns() == 5000);
  CHECK(open.call().event_query(done) == CUDA_SUCCESS);
  CHECK(open.call().event_synchronize(done) == CUDA_SUCCESS);  // nothing to wait for
  const auto count = open.gpu->take_counts()[static_cast<size_t>(Function::event_synchronize)];
  CHECK(count.calls == 2 && count.waits == 1 && count.wait_ns == 5000);
}

TEST(streams_wait_for_events_and_nobody_else) {
  Open open;
  const CUstream in = open.stream(), out = open.stream();
  CHECK(open.call().memcpy_htod_async(0, nullptr, 4000, in) == CUDA_SUCCESS);   // until 5000
  CHECK(open.call().memcpy_dtoh_async(nullptr, 0, 1000, out) == CUDA_SUCCESS);  // until 2000: another engine
  CHECK(open.call().stream_wait_event(nullptr, open.event(in), 0) == CUDA_SUCCESS);
  open.op(100);
  CHECK(open.clock.now_ns() == 5100 && open.clock.host_ns() == 0);
  CHECK(open.call().stream_synchronize(out) == CUDA_SUCCESS);
  CHECK(open.clock.host_ns() == 2000);
  CHECK(open.call().memcpy_htod_async(0, nullptr, 1000, out) == CUDA_SUCCESS);  // its engine is busy until 5000
  CHECK(open.call().stream_wait_event(out, open.event(nullptr), 0) == CUDA_SUCCESS);
  CHECK(open.call().ctx_synchronize() == CUDA_SUCCESS);
  CHECK(open.clock.host_ns() == 7000);
  const um::simulator::Tally tally = open.clock.take_tally();
  CHECK(tally.compute_ns == 100 && tally.wait_copy_ns == 5000 && tally.host_late_ns == 0);
  CHECK(tally.copy_ns[0] == 7000 && tally.copy_ns[1] == 2000);
}

TEST(calls_take_time_of_the_host) {
  um::simulator::CallCosts costs{};
  costs[static_cast<size_t>(Function::mem_host_alloc)] = {300, 50};
  Open open(costs);
  open.op(1000);  // page-locking waits for the device
  void* host = nullptr;
  CHECK(open.call().mem_host_alloc(&host, 2 * kMiB, 0) == CUDA_SUCCESS);
  CHECK(open.clock.host_ns() == 1100);
  static_cast<char*>(host)[2 * kMiB - 1] = 1;
  CHECK(open.call().mem_free_host(host) == CUDA_SUCCESS);
  CHECK(open.call().mem_free_host(host) == CUDA_ERROR_INVALID_HANDLE);
  open.op(0);  // and the device stood still
  CHECK(open.clock.take_tally().host_late_ns == 100);
}

TEST(a_synchronous_host_waits_with_the_ops) {
  Open open({}, true);
  CHECK(open.backend.hooks != nullptr);
  const CUstream in = open.stream();
  CHECK(open.call().memcpy_htod_async(0, nullptr, 4000, in) == CUDA_SUCCESS);  // until 5000
  void* host = nullptr;
  CHECK(open.call().mem_host_alloc(&host, 2 * kMiB, 0) == CUDA_SUCCESS);  // does not wait for it
  CHECK(open.backend.now_ns() == 0);
  CHECK(open.call().stream_wait_event(nullptr, open.event(in), 0) == CUDA_SUCCESS);
  CHECK(open.backend.now_ns() == 5000 && open.clock.now_ns() == 5000);
  CHECK(open.call().memcpy_dtoh_async(nullptr, 0, 1000, nullptr) == CUDA_SUCCESS);  // in the ops' own stream
  CHECK(open.backend.now_ns() == 7000);
  const um::simulator::Tally tally = open.clock.take_tally();
  CHECK(tally.wait_copy_ns == 7000 && tally.host_late_ns == 0);
}

TEST(what_is_no_stream_or_event_is_refused) {
  Open open;
  const CUstream stream = open.stream();
  const CUevent event = open.event(stream);
  CHECK(open.call().stream_destroy(stream) == CUDA_SUCCESS);
  CHECK(open.call().stream_destroy(stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(open.call().event_record(event, stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(open.call().stream_wait_event(stream, event, 0) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(open.call().memcpy_htod_async(0, nullptr, 1, stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(open.call().event_destroy(event) == CUDA_SUCCESS);
  CHECK(open.call().event_query(event) == CUDA_ERROR_INVALID_HANDLE);
}

TEST(physical_memory_has_a_limit_and_goes_with_its_last_use) {
  Open open;
  const CUmemAllocationProp properties = um::physical_properties(open.backend);
  CUmemGenericAllocationHandle first = 0, second = 0;
  CHECK(open.call().mem_create(&first, 40 * kMiB, &properties, 0) == CUDA_SUCCESS);
  CHECK(open.call().mem_create(&second, 40 * kMiB, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  CUdeviceptr address = 0;
  CHECK(open.call().mem_address_reserve(&address, 120 * kMiB, 0, 0, 0) == CUDA_SUCCESS);
  CHECK(open.call().mem_map(address, 40 * kMiB, 0, first, 0) == CUDA_SUCCESS);
  CHECK(open.call().mem_map(address + 80 * kMiB, 40 * kMiB, 0, first, 0) == CUDA_SUCCESS);  // at two addresses
  CHECK(open.call().mem_release(first) == CUDA_SUCCESS);
  CHECK(open.call().mem_release(first) == CUDA_ERROR_INVALID_VALUE);
  CHECK(open.call().mem_create(&second, 40 * kMiB, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(open.call().mem_unmap(address, 40 * kMiB) == CUDA_SUCCESS);
  CHECK(open.call().mem_address_free(address, 120 * kMiB) == CUDA_ERROR_INVALID_VALUE);  // still mapped there
  CHECK(open.call().mem_unmap(address + 80 * kMiB, 40 * kMiB) == CUDA_SUCCESS);
  CHECK(open.call().mem_create(&second, 40 * kMiB, &properties, 0) == CUDA_SUCCESS);
  CHECK(open.call().mem_release(second) == CUDA_SUCCESS);
  CHECK(open.call().mem_address_free(address, 120 * kMiB) == CUDA_SUCCESS);
}

TEST(only_whole_mappings_in_reserved_places) {
  Open open;
  const CUmemAllocationProp properties = um::physical_properties(open.backend);
  CUmemGenericAllocationHandle handles[2];
  for (CUmemGenericAllocationHandle& handle : handles)
    CHECK(open.call().mem_create(&handle, 4 * kMiB, &properties, 0) == CUDA_SUCCESS);
  CUdeviceptr address = 0;
  CHECK(open.call().mem_address_reserve(&address, 8 * kMiB, 0, 0, 0) == CUDA_SUCCESS);
  CHECK(open.call().mem_map(address + 6 * kMiB, 4 * kMiB, 0, handles[0], 0) == CUDA_ERROR_INVALID_VALUE);  // beyond
  CHECK(open.call().mem_map(address, 2 * kMiB, 0, handles[0], 0) == CUDA_ERROR_INVALID_VALUE);             // a part
  CHECK(open.call().mem_map(address, 4 * kMiB, 0, handles[0], 0) == CUDA_SUCCESS);
  CHECK(open.call().mem_map(address + 2 * kMiB, 4 * kMiB, 0, handles[1], 0) == CUDA_ERROR_INVALID_VALUE);  // taken
  CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CHECK(open.call().mem_set_access(address, 8 * kMiB, &access, 1) == CUDA_ERROR_INVALID_VALUE);  // a hole
  CHECK(open.call().mem_map(address + 4 * kMiB, 4 * kMiB, 0, handles[1], 0) == CUDA_SUCCESS);
  CHECK(open.call().mem_set_access(address, 8 * kMiB, &access, 1) == CUDA_SUCCESS);
  CHECK(open.call().mem_unmap(address, 2 * kMiB) == CUDA_ERROR_INVALID_VALUE);
  CHECK(open.call().mem_unmap(address, 8 * kMiB) == CUDA_SUCCESS);  // both at once
  CHECK(open.call().mem_unmap(address, 4 * kMiB) == CUDA_ERROR_INVALID_VALUE);
}
