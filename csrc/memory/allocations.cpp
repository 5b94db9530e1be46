#include "memory/allocations.h"

#include <algorithm>

#include "base/error.h"
#include "memory/host_memory.h"

namespace um {
namespace {

void check(const um_placement& placement) {
  const bool known = placement.memory == UM_MEMORY_MANAGED || placement.memory == UM_MEMORY_DEVICE ||
                     placement.memory == UM_MEMORY_CHUNKED;
  if (!known || placement.role > UM_ROLE_INTERMEDIATE || placement.advice >= UM_ADVICE_COUNT) {
    throw Error(UM_INVALID_ARGUMENT,
                "no such placement: memory " + std::to_string(placement.memory) +
                    " (0 managed, 1 device, 2 device if there is room, 3 chunked), role " +
                    std::to_string(placement.role) + " (0 parameter, 1 input, 2 intermediate), advice " +
                    std::to_string(placement.advice) + " (0 to " + std::to_string(UM_ADVICE_COUNT - 1) + ")");
  }
}

}  // namespace

Allocations::~Allocations() {
  if (movable_ != nullptr) movable_->ranges.chunks.pool.count_in(nullptr);
}

void Allocations::set_chunked(MovableMemory* memory, ArenaSource& small_arenas) {
  const um_placement key{UM_MEMORY_CHUNKED, UM_ROLE_PARAMETER,
                         UM_ADVICE_NONE};  // one heap serves all placements, because there is one budget
  small_ = std::make_unique<ManagedHeap>(device_, key, small_arenas, pool_, memory->chunk_bytes());
  movable_ = memory;
  movable_->ranges.chunks.pool.count_in(&statistics.reserved_bytes);
}

ManagedHeap& Allocations::heap_of(const um_placement& placement) {
  check(placement);
  if (placement.memory == UM_MEMORY_CHUNKED) {
    if (small_ != nullptr) return *small_;
    throw Error(UM_BAD_STATE, "the device has no chunks for explicit swapping yet: call um_chunks_set first");
  }
  um_placement key = placement;
  const bool plain = key.memory == UM_MEMORY_DEVICE;
  if (plain) key.advice = UM_ADVICE_NONE;  // the driver takes no advice for plain memory
  auto& slot = heaps_[(key.memory * 3 + key.role) * UM_ADVICE_COUNT + key.advice];
  if (slot == nullptr) {
    if (!plain && backend_.managed_memory != 1) {
      throw Error(UM_UNSUPPORTED,
                  backend_.name + " has no managed memory (attribute 83): use policy \"resident\" or \"swap\"");
    }
    // A managed arena costs address space only. A plain one takes device memory at once, so on a small device the first
    // arena is small.
    uint64_t first_bytes = ManagedHeap::kFirstArenaBytes;
    if (plain) first_bytes = std::clamp(plain_.most_bytes / 32 / kBlockBytes * kBlockBytes, kBlockBytes, first_bytes);
    slot = std::make_unique<Heap>(device_, backend_, key, pool_, first_bytes, plain_);
  }
  return slot->heap;
}

Block* Allocations::allocate(uint64_t bytes, const um_placement& placement, const Birth& birth) {
  Block* const block = take(bytes, placement);
  enter(block, bytes, placement, birth);
  return block;
}

Block* Allocations::take(uint64_t bytes, const um_placement& placement) {
  ManagedHeap& heap = heap_of(placement);
  const uint64_t changes = arena_changes_;
  Block* const block = allocate_or_trim(heap, bytes);
  if (arena_changes_ != changes && statistics.reserved_bytes.now > room_bytes_) {
    trim(UM_MEMORY_MANAGED);
    trim(UM_MEMORY_DEVICE);
  }
  if (&heap == small_.get() && block->alone()) movable_->small_chunks.add(1);
  return block;
}

void Allocations::enter(Block* block, uint64_t bytes, const um_placement& placement, const Birth& birth) noexcept {
  block->owners = {};
  Record& record = block->record;
  record = {};  // the descriptor was another block's before
  record.serial = ++last_serial_;
  record.bytes = bytes;
  record.role = placement.role;
  record.birth_step = birth.step;
  record.birth_op_index = birth.op_index;
  record.birth_op = birth.op;
  record.birth_module = birth.module;
  ++statistics.allocation_count;
  statistics.live.add(1);
  statistics.requested_total_bytes += bytes;
  statistics.requested_bytes.add(bytes);
  statistics.by_role[record.role].add(bytes);
  *placed_bytes(*block) += bytes;
}

// Advice that the driver does not take counts as none.
uint64_t* Allocations::placed_bytes(const Block& block) noexcept {
  const um_placement& placement = block.arena->heap->placement;
  const uint32_t advice = backend_.why_no_migration() == nullptr ? placement.advice : uint32_t{UM_ADVICE_NONE};
  return &statistics.placed_bytes[block.record.role][placement.memory][advice];
}

// A request must not fail because heaps of other placements keep unused memory.
Block* Allocations::allocate_or_trim(ManagedHeap& heap, uint64_t bytes) {
  const auto allocate = [&] {
    const uint64_t reserved_before_bytes = heap.reserved_bytes();
    Block* const block = heap.allocate(bytes);
    if (heap.reserved_bytes() != reserved_before_bytes) count_arenas(heap, reserved_before_bytes);
    return block;
  };
  try {
    return allocate();
  } catch (const Error& error) {
    const bool out_of_memory = error.status() == UM_OUT_OF_DEVICE_MEMORY || error.status() == UM_OUT_OF_HOST_MEMORY;
    if (!out_of_memory) throw;
    const uint64_t changes = arena_changes_;
    // This frees nothing for small chunked blocks: their chunks are taken before this is tried.
    trim(static_cast<um_memory>(heap.placement.memory));
    if (changes == arena_changes_) throw Error(error.status(), diagnosis(heap.placement, bytes, error.what()));
  }
  try {
    return allocate();
  } catch (const Error& error) {
    throw Error(error.status(), diagnosis(heap.placement, bytes, error.what()));
  }
}

std::string Allocations::diagnosis(const um_placement& placement, uint64_t bytes, const char* reason) const {
  const bool managed = placement.memory == UM_MEMORY_MANAGED;
  const CurrentContext current(backend_);
  size_t free_bytes = 0, total_bytes = 0;
  static_cast<void>(backend_.call().mem_get_info(&free_bytes, &total_bytes));
  return std::string("out of ") + (managed ? "host memory for managed" : "device") + " memory: tried to allocate " +
         in_words(bytes) + " on " + backend_.name + "; " + reason +
         ". Live: " + in_words(statistics.requested_bytes.now) + " in " +
         std::to_string(statistics.live_allocations()) + " allocations, " + in_words(statistics.reserved_bytes.now) +
         " reserved; the device has " + in_words(backend_.total_bytes) + ", " + in_words(free_bytes) + " free. " +
         (managed                                 ? "Free host memory, or make the model or batch smaller"
          : placement.memory == UM_MEMORY_CHUNKED ? "Give a larger budget, or use unified memory (policy advise)"
                                                  : "Use unified memory (policy advise), or a larger budget or device");
}

void Allocations::count_arenas(const ManagedHeap& heap, uint64_t reserved_before_bytes) noexcept {
  ++arena_changes_;
  if (heap.placement.memory == UM_MEMORY_CHUNKED) return;  // its chunks count wherever they lie, not its addresses
  const uint64_t delta_bytes = heap.reserved_bytes() - reserved_before_bytes;  // modulo 2^64, so it may be negative
  statistics.reserved_bytes.set(statistics.reserved_bytes.now + delta_bytes);
  statistics.reserved_by_role[heap.placement.role] += delta_bytes;
  if (heap.placement.memory == UM_MEMORY_DEVICE) plain_.reserved_bytes += delta_bytes;
}

void Allocations::leave(const Block& block) noexcept {
  ++statistics.free_count;
  statistics.live.subtract(1);
  statistics.requested_bytes.subtract(block.record.bytes);
  statistics.by_role[block.record.role].subtract(block.record.bytes);
}

void Allocations::free(Block* block) noexcept {
  leave(*block);
  give(block);
}

void Allocations::give(Block* block) noexcept {
  const Arena* const arena = block->arena;
  ManagedHeap& heap = *arena->heap;
  const uint64_t reserved_before_bytes = heap.reserved_bytes();
  heap.free(block, &heap == small_.get() || statistics.reserved_bytes.now <= room_bytes_);
  if (&heap == small_.get() && arena->empty()) {  // an arena is kept for the next step until all are empty
    movable_->small_chunks.subtract(1);
    if (movable_->small_chunks.now == 0) heap.trim();
  }
  if (heap.reserved_bytes() != reserved_before_bytes) count_arenas(heap, reserved_before_bytes);
}

void Allocations::label(Block* block, uint32_t role, uint32_t name) {
  if (role >= UM_ROLE_COUNT) throw Error(UM_INVALID_ARGUMENT, "no such role: " + std::to_string(role));
  statistics.by_role[block->record.role].subtract(block->record.bytes);
  statistics.by_role[role].add(block->record.bytes);
  *placed_bytes(*block) -= block->record.bytes;
  block->record.role = role;
  *placed_bytes(*block) += block->record.bytes;
  if (name != 0) block->record.name = name;
}

bool Allocations::trim() noexcept {
  const bool managed = trim(UM_MEMORY_MANAGED);
  const bool plain = trim(UM_MEMORY_DEVICE);
  return trim_chunked() && plain && managed;
}

bool Allocations::takes_small(uint64_t bytes) const {
  const uint64_t most_bytes = MovableMemory::kMostSmallBytes / movable_->chunk_bytes() * movable_->chunk_bytes();
  return small_->has_room(bytes) || small_->reserved_bytes() < most_bytes;
}

bool Allocations::trim_small() noexcept {
  const uint64_t reserved_before_bytes = small_->reserved_bytes();
  small_->trim();
  return small_->reserved_bytes() != reserved_before_bytes;
}

bool Allocations::trim_chunked() noexcept {
  if (movable_ == nullptr) return true;
  const CurrentContext current(backend_);
  if (current.result() != driver::CUDA_SUCCESS) return false;
  static_cast<void>(small_->trim());
  ++arena_changes_;
  return movable_->give_back() && small_->reserved_bytes() == 0;
}

bool Allocations::trim(um_memory memory) noexcept {
  bool all = true;
  for (const auto& slot : heaps_) {
    if (slot == nullptr || slot->heap.placement.memory != memory) continue;
    const uint64_t reserved_before_bytes = slot->heap.reserved_bytes();
    all = slot->heap.trim() && all;
    all = slot->source.return_leftovers() && all;
    if (slot->heap.reserved_bytes() != reserved_before_bytes) count_arenas(slot->heap, reserved_before_bytes);
  }
  return all;
}

std::vector<const Arena*> Allocations::arenas_by_address() const {
  std::vector<const Arena*> arenas;
  each_arena([&](const Arena& arena) { arenas.push_back(&arena); });
  std::sort(arenas.begin(), arenas.end(), [](const Arena* a, const Arena* b) { return a->address() < b->address(); });
  return arenas;
}

}  // namespace um
