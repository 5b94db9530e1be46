// A device on tape: see tape.h.
#include "engine/device.h"
#include "memory/address_map.h"

using um::address_of;

void um_device::record(bool on) {
  const Lock lock = lock_alive();
  collect_device_events();
  settle_durations();
  if (!on) return tape_.stop();
  std::vector<um_recorded_allocation> present;
  allocations_->each_block([&](const um::Block& block) {
    const um::Record& record = block.record;
    present.push_back({record.serial, record.bytes, record.role, record.name, record.birth_module, record.seen});
  });
  std::sort(present.begin(), present.end(),
            [](const auto& one, const auto& other) { return one.allocation < other.allocation; });
  tape_.start(present);
  dropped_before_recording_ = backend_.hooks != nullptr ? backend_.hooks->dropped(backend_.ordinal) : 0;
}

uint64_t um_device::recorded_lost() {
  const Lock lock(mutex_);
  const bool asks = backend_.hooks != nullptr && allocations_ != nullptr;
  return tape_.lost() + (asks ? backend_.hooks->dropped(backend_.ordinal) - dropped_before_recording_ : 0);
}

void um_device::record_begin(um::RunningOp& op, const um_access* accesses, uint32_t count) {
  op.recorded = 0;
  if (!tape_.on()) return;
  const um::OpIdentity& identity = op.identity;
  um_recorded_op row{};
  row.op = identity.op;
  row.phase = identity.phase;
  row.module = identity.module;
  row.step = identity.step;
  row.creates = op.untouched;
  op.recorded = tape_.begin_op(row);
  if (op.recorded == 0) return;
  for (uint32_t i = 0; i < count; ++i) {
    const um::Block* block = own_block(accesses[i].address);
    if (block == nullptr) continue;
    tape_.seen(*block);
    tape_.access(*block, accesses[i]);
  }
}

void um_device::record_end(const um::RunningOp& op, int64_t end_ns, const void* const* outputs,
                           uint32_t count) noexcept {
  if (op.recorded == 0) return;
  try {
    std::vector<uint64_t> serials(count);
    for (uint32_t i = 0; i < count; ++i) {
      const um::Block* block = own_block(outputs[i]);
      serials[i] = block != nullptr ? block->record.serial : 0;
      if (block != nullptr) tape_.seen(*block);
    }
    // Fault services of several threads may add up to more than the op took.
    const int64_t serviced_ns = backend_.totals().fault_service_ns - op.serviced_ns;
    tape_.end_op(op.recorded, std::max<int64_t>(0, end_ns - op.start_ns - serviced_ns), serials);
  } catch (const std::bad_alloc&) {
    tape_.lose(1);
  }
}

// The emulated device's kernels run in the calling thread, so that the host's times are right; elsewhere the host only
// gives them out. What the op waits for was given to its stream before this.
void um_device::time_begin(um::RunningOp& op) noexcept {
  op.timed = 0;
  if (op.recorded == 0 || backend_.hooks != nullptr) return;
  const um::CurrentContext current(backend_);
  op.timed = durations_.begin(op.recorded, op.stream);
}

void um_device::time_end(const um::RunningOp& op) noexcept {
  if (op.timed == 0) return;
  const um::CurrentContext current(backend_);
  durations_.end(op.timed, op.stream);
}

// Ops that still run in other threads keep the host's times.
void um_device::settle_durations() noexcept {
  if (durations_.count() == 0) return;
  const um::CurrentContext current(backend_);
  if (!left_out(um::Wait::recording_settled) && backend_.call().ctx_synchronize() != um::driver::CUDA_SUCCESS) {
    return durations_.clear();
  }
  durations_.settle([this](uint64_t ticket, int64_t duration_ns) { tape_.ran(ticket, duration_ns); });
}

// Before the copy: what was served until now came first.
void um_device::record_copy(um_recorded_event_kind kind, const um::Block& block, const void* address,
                            uint64_t bytes) noexcept {
  if (!tape_.on()) return;
  collect_device_events();
  tape_.happened(kind, block, address_of(address), bytes, um::running_op != nullptr && um::running_op->device == this);
}

// Ordered counting: what the guard touched can be told from the accesses.
void um_device::record_service(const um::emulated::Event& event, bool inside) noexcept {
  if (!tape_.on() || event.kind != UM_EVENT_FAULT_GROUP) return;
  if (backend_.ordered() && !event.unordered) return;
  const um::Arena* arena = own_arena(event.address);
  const um::Block* block = arena != nullptr ? arena->nearest(event.address) : nullptr;
  if (block == nullptr) return;
  tape_.happened(event.write ? UM_RECORDED_SERVICE_WRITE : UM_RECORDED_SERVICE_READ, *block,
                 event.address / um::kBlockBytes * um::kBlockBytes, 0, inside);
}
