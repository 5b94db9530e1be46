// Traces, plans and links written down row by row, and a run of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "replay/swap_executor.h"
#include "umadvise.h"

namespace fixture {

// The one program that the device follows from now on.
inline um_status follow(um_device* device, const um_trace& trace, const um_plan* plan, const uint32_t* names,
                        const uint64_t* serials, const uint8_t* states = nullptr) {
  um_program program{};
  program.trace = &trace;
  program.plan = plan;
  program.op_name = names;
  program.first_serials = serials;
  program.state = states;
  uint32_t number = 0;
  const um_status dropped = um_program_drop(device, 0);
  return dropped != UM_OK ? dropped : um_program_add(device, &program, &number);
}

enum Flags : uint8_t { kR = 1, kW = 2, kRW = 3, kWholeWrite = 10 };

struct Trace {
  std::vector<int64_t> storage_bytes, op_duration_ns, access_offset_bytes, access_bytes, event_offset_bytes,
      event_bytes;
  std::vector<uint8_t> storage_role, op_phase, op_creates, op_host_touch, access_flags, event_kind, event_inside;
  std::vector<int32_t> storage_successor, op_step, op_zero, access_op, access_storage, event_op, event_storage;
  bool inside = false;

  int32_t allocate(int64_t bytes) {
    storage_bytes.push_back(bytes);
    storage_role.push_back(0);
    storage_successor.push_back(-1);
    const auto storage = static_cast<int32_t>(storage_bytes.size() - 1);
    event(0, storage);
    return storage;
  }
  void free(int32_t storage) { event(1, storage); }
  void event(uint8_t kind, int32_t storage, int64_t bytes = 0) {
    event_kind.push_back(kind);
    event_op.push_back(static_cast<int32_t>(op_duration_ns.size()) - 1);
    event_inside.push_back(inside);
    event_storage.push_back(storage);
    event_offset_bytes.push_back(0);
    event_bytes.push_back(bytes);
  }
  // What is allocated until `end` is inside the op.
  int32_t op(int64_t duration_ns, bool host_touch = false) {
    op_duration_ns.push_back(duration_ns);
    op_phase.push_back(1);
    op_step.push_back(1);
    op_zero.push_back(0);
    op_creates.push_back(0);
    op_host_touch.push_back(host_touch);
    inside = true;
    return static_cast<int32_t>(op_duration_ns.size() - 1);
  }
  void access(int32_t storage, uint8_t flags) {
    access_op.push_back(static_cast<int32_t>(op_duration_ns.size()) - 1);
    access_storage.push_back(storage);
    access_offset_bytes.push_back(0);
    access_bytes.push_back(storage_bytes[static_cast<size_t>(storage)]);
    access_flags.push_back(flags);
  }
  void end() { inside = false; }
  // An op that reads `read` and writes all of a new storage of `bytes`.
  int32_t make(int64_t duration_ns, int64_t bytes, const std::vector<int32_t>& read = {}) {
    op(duration_ns);
    for (const int32_t each : read) access(each, kR);
    const int32_t made = allocate(bytes);
    access(made, kWholeWrite);
    end();
    return made;
  }
  int32_t use(int64_t duration_ns, const std::vector<int32_t>& storages, uint8_t flags = kR) {
    const int32_t index = op(duration_ns);
    for (const int32_t each : storages) access(each, flags);
    end();
    return index;
  }

  um_trace columns() const {
    um_trace trace{};
    trace.storage_count = storage_bytes.size();
    trace.op_count = op_duration_ns.size();
    trace.access_count = access_op.size();
    trace.event_count = event_op.size();
    trace.storage_bytes = storage_bytes.data();
    trace.storage_role = storage_role.data();
    trace.storage_successor = storage_successor.data();
    trace.op_phase = op_phase.data();
    trace.op_step = op_step.data();
    trace.op_duration_ns = op_duration_ns.data();
    trace.op_creates = op_creates.data();
    trace.op_host_touch = op_host_touch.data();
    trace.op_window_pages = trace.op_run_pages = trace.op_faults_per_service = op_zero.data();
    trace.access_op = access_op.data();
    trace.access_storage = access_storage.data();
    trace.access_offset_bytes = access_offset_bytes.data();
    trace.access_bytes = access_bytes.data();
    trace.access_flags = access_flags.data();
    trace.event_kind = event_kind.data();
    trace.event_op = event_op.data();
    trace.event_inside = event_inside.data();
    trace.event_storage = event_storage.data();
    trace.event_offset_bytes = event_offset_bytes.data();
    trace.event_bytes = event_bytes.data();
    return trace;
  }
};

struct Plan {
  std::vector<uint8_t> kind, after;
  std::vector<int32_t> op, storage;
  std::vector<int64_t> offset_bytes, bytes, argument;
  const Trace& trace;

  explicit Plan(const Trace& of) : trace(of) {}
  Plan& add(um_plan_kind what, int32_t at, bool is_after, int32_t which, int64_t with = 0) {
    kind.push_back(static_cast<uint8_t>(what));
    after.push_back(is_after);
    op.push_back(at);
    storage.push_back(which);
    offset_bytes.push_back(0);
    bytes.push_back(trace.storage_bytes[static_cast<size_t>(which)]);
    argument.push_back(with);
    return *this;
  }
  Plan& before(int32_t at, um_plan_kind what, int32_t which, int64_t with = 0) {
    return add(what, at, false, which, with);
  }
  Plan& behind(int32_t at, um_plan_kind what, int32_t which, int64_t with = 0) {
    return add(what, at, true, which, with);
  }
  um_plan columns() const {
    return {kind.size(),    kind.data(),         after.data(), op.data(),
            storage.data(), offset_bytes.data(), bytes.data(), argument.data()};
  }
};

// One byte a nanosecond each way, no fixed cost, the directions do not disturb each other.
inline um_link plain_link() { return {{0, 0}, {1e9, 1e9}, {1e9, 1e9}, {1, 1}}; }

inline um_swap_options options(uint64_t budget_bytes, um_eviction eviction = UM_EVICT_NEVER, uint32_t iterations = 1) {
  return {budget_bytes, 2u << 20, 0,       0,      0, UM_ALLOCATOR_EXACT, static_cast<uint32_t>(eviction),
          iterations,   1,        nullptr, nullptr};
}

struct Run {
  um_swap_result result{};
  std::vector<um_span> spans;
  std::string error;  // empty when it went through

  int64_t step_ns() const {
    return result.compute_ns + result.recompute_ns + result.wait_copy_ns + result.wait_room_ns + result.map_ns +
           result.wait_host_ns;
  }
  const um_span* copy_of(int32_t storage, um_track track) const {
    for (const um_span& span : spans) {
      if (span.kind == UM_SPAN_COPY && span.storage == storage && span.track == track) return &span;
    }
    return nullptr;
  }
};

inline Run run(const Trace& trace, const Plan* plan, const um_swap_options& options,
               const um_link& link = plain_link()) {
  Run made;
  const um_trace columns = trace.columns();
  const um_plan actions = plan != nullptr ? plan->columns() : um_plan{};
  um_simulation* spans = nullptr;
  const um_status status =
      um_simulate_swap(&columns, plan != nullptr ? &actions : nullptr, &link, &options, &made.result, &spans);
  if (status != UM_OK) {
    made.error = um_last_error();
    return made;
  }
  made.spans.resize(um_simulation_spans(spans, nullptr, 0));
  um_simulation_spans(spans, made.spans.data(), made.spans.size());
  um_simulation_destroy(spans);
  return made;
}

}  // namespace fixture
