// Serves accesses that no op announced: on a device whose memory the CPU may use, they count against the budget, and
// swap in chunked memory.
#include <algorithm>
#include <cstdio>

#include "engine/device.h"
#include "memory/address_map.h"
#include "memory/names.h"

namespace {

constexpr const char* kRoles[UM_ROLE_COUNT] = {"a parameter", "an input",           "an intermediate",
                                               "a gradient",  "an optimizer state", "workspace"};

// Appends to a buffer, and cuts what does not fit.
class Text {
 public:
  Text(char* text, size_t bytes) : at_(text), end_(text + bytes) {}
  template <class... Values>
  void add(const char* format, Values... values) {
    const int written = std::snprintf(at_, static_cast<size_t>(end_ - at_), format, values...);
    if (written > 0) at_ = std::min(at_ + written, end_ - 1);
  }

 private:
  char* at_;
  char* const end_;
};

}  // namespace

// Runs in a thread of the emulated device while the accessing thread waits. The accessing thread holds none of our
// locks, because no code touches the memory of tensors while it holds one.
bool um_device::serve_stray_access(uint64_t address, bool write) noexcept {
  try {
    const Found found = find(address, false);
    if (found.device == nullptr || !found.device->has_parts()) return false;
    um_device& device = *found.device;
    const um::Arena* const arena = device.own_arena(address);
    if (arena != nullptr &&
        arena->heap->placement.memory == UM_MEMORY_MANAGED) {  // the device serves this fault in any case
      device.budget.count_fault(address, write);
      return true;
    }
    const um::RequiredContext current(device.backend);
    um::Movable* movable = found.block != nullptr ? notes(*found.block).movable : nullptr;
    if (found.block == nullptr) {  // the allocation may be evicted while code outside of ops has its address
      movable = device.swapping.reserved_at(address);
      if (movable == nullptr || !device.swapping.return_to_reserved(movable, write)) return false;
    }
    if (movable == nullptr) return false;
    device.swapping.mover().transfers.serve(movable, write);
    return true;
  } catch (const std::exception&) {
    return false;  // the access is then fatal, and reported
  }
}

// Runs in the signal handler. It waits for no lock, because this thread may hold it, and reports less if the lock is
// taken.
void um_device::tell_stray_access(uint64_t address, char* text, size_t bytes) noexcept {
  Text line(text, bytes);
  um::Arena* arena = um::address_map().find(address);
  um_device* device = arena == nullptr ? nullptr : arena->device.load(std::memory_order_acquire);
  if (device != nullptr) {
    const Lock lock = device->try_lock();
    arena = lock.owns_lock() ? device->own_arena(address) : nullptr;
    const um::Block* block = arena == nullptr ? nullptr : arena->containing(address);
    if (block != nullptr) {
      const um::Record& record = block->record;
      const char* name = um::name_of(record.name);
      line.add("byte %llu of %s", static_cast<unsigned long long>(address - block->address),
               record.role < UM_ROLE_COUNT ? kRoles[record.role] : "memory");
      line.add(*name == '\0' ? "%s" : " %s", name);
      line.add(" of %llu bytes, ", static_cast<unsigned long long>(record.bytes));
    }
  }
  const um::RunningOp* op = um::running_op;
  if (op == nullptr) return line.add("outside of ops");
  const char* module = um::name_of(op->identity.module);
  line.add("in %s", um::name_of(op->identity.op));
  line.add(*module == '\0' ? "%s" : " of %s", module);
  line.add(", step %u, op %u", op->identity.step, op->identity.index);
}
