#include "recording.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace um::hooks {

std::atomic<bool> recording{false};

namespace {

struct Stream {
  std::mutex lock;
  std::vector<um_hooks_op> ops;
  std::vector<um_hooks_access> accesses;
  std::vector<uint64_t> outputs;
};
Stream& stream() {
  static auto* const recorded = new Stream;
  return *recorded;
}

um_allocation allocation_at(const void* address) {
  um_allocation found{};
  if (um_allocation_at(address, &found) != UM_OK) return {};
  return found;
}

template <class Item>
uint64_t copy_out(const std::vector<Item>& items, Item* out, uint64_t capacity) {
  const std::lock_guard<std::mutex> lock(stream().lock);
  std::copy_n(items.begin(), std::min<uint64_t>(items.size(), capacity), out);
  return items.size();
}

}  // namespace

uint64_t record_op(const OpDescription& description, const um_access* accesses, uint64_t count) {
  const std::lock_guard<std::mutex> lock(stream().lock);
  um_hooks_op op{description.op,
                 description.phase,
                 description.module,
                 description.creates,
                 stream().accesses.size(),
                 count,
                 0,
                 0};
  for (uint64_t index = 0; index < count; ++index) {
    const um_access& access = accesses[index];
    const um_allocation allocation = allocation_at(access.address);
    const uint64_t offset_bytes = reinterpret_cast<uint64_t>(access.address) - allocation.address;
    stream().accesses.push_back({allocation.serial, offset_bytes, access.bytes, access.write, 0});
  }
  stream().ops.push_back(op);
  return stream().ops.size() - 1;
}

void record_outputs(uint64_t op, const void* const* outputs, uint64_t count) {
  const std::lock_guard<std::mutex> lock(stream().lock);
  if (op >= stream().ops.size()) return;  // a new recording began meanwhile
  stream().ops[op].first_output = stream().outputs.size();
  stream().ops[op].output_count = count;
  for (uint64_t index = 0; index < count; ++index) stream().outputs.push_back(allocation_at(outputs[index]).serial);
}

}  // namespace um::hooks

using um::hooks::copy_out;
using um::hooks::stream;

void um_hooks_record(int32_t on) {
  const std::lock_guard<std::mutex> lock(stream().lock);
  if (on != 0) {
    stream().ops.clear();
    stream().accesses.clear();
    stream().outputs.clear();
  }
  um::hooks::recording = on != 0;
}

uint64_t um_hooks_recorded_ops(um_hooks_op* out, uint64_t capacity) { return copy_out(stream().ops, out, capacity); }

uint64_t um_hooks_recorded_accesses(um_hooks_access* out, uint64_t capacity) {
  return copy_out(stream().accesses, out, capacity);
}

uint64_t um_hooks_recorded_outputs(uint64_t* out, uint64_t capacity) {
  return copy_out(stream().outputs, out, capacity);
}
