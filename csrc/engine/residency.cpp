#include "engine/residency.h"

#include <algorithm>
#include <new>
#include <tuple>

namespace um {
namespace {

size_t mix(size_t hash, uint64_t value) { return (hash ^ value) * 0x9e3779b97f4a7c15u; }

size_t spread(size_t hash) { return hash ^ (hash >> 32); }  // tables take the low bits

}  // namespace

bool Residency::Tensor::operator==(const Tensor& other) const {
  return std::tie(bytes, role, name, birth_op, birth_module) ==
         std::tie(other.bytes, other.role, other.name, other.birth_op, other.birth_module);
}

bool Residency::Op::operator==(const Op& other) const {
  return std::tie(op, module, phase) == std::tie(other.op, other.module, other.phase);
}

size_t Residency::Hash::operator()(const Tensor& tensor) const {
  return spread(
      mix(mix(mix(mix(mix(0, tensor.bytes), tensor.role), tensor.name), tensor.birth_op), tensor.birth_module));
}

size_t Residency::Hash::operator()(const Op& op) const { return spread(mix(mix(mix(0, op.op), op.module), op.phase)); }

Residency::Tensor Residency::tensor_of(const Record& record) {
  const bool named = record.name != 0;
  return {record.bytes, record.role, record.name, named ? 0 : record.birth_op, named ? 0 : record.birth_module};
}

uint64_t Residency::resident_bytes(const Block& block) const {
  const uint64_t end = block.address + block.record.bytes;
  uint64_t bytes = 0;
  for (uint64_t at = block.address; at < end;) {
    const uint64_t next = std::min(end, (at / kBlockBytes + 1) * kBlockBytes);
    if (on_device_.count(at / kBlockBytes) != 0) bytes += next - at;
    at = next;
  }
  return bytes;
}

// Calls each(tensor, role, bytes) for what every allocation that counts has in the block at `address`.
template <class Each>
void Residency::each_within(uint64_t address, const Arena* arena, const Each& each) {
  const uint64_t end = address + kBlockBytes;
  for (const Block* block = arena != nullptr ? arena->nearest(address) : nullptr;
       block != nullptr && block->address < end; block = block->next) {
    if (block->free || !block->record.counted) continue;
    const uint64_t from = std::max(address, block->address);
    const uint64_t to = std::min(end, block->address + block->record.bytes);
    if (from < to) each(tensors_.find(tensor_of(block->record))->second.bytes, roles_[block->record.role], to - from);
  }
}

void Residency::arrived(uint64_t address, const Arena* arena) noexcept {
  if (!known_) return;
  try {
    if (!on_device_.insert(address / kBlockBytes).second) return;
  } catch (const std::bad_alloc&) {
    return give_up();
  }
  each_within(address, arena, [](Level& tensor, Level& role, uint64_t bytes) {
    tensor.add(bytes);
    role.add(bytes);
  });
}

void Residency::left(uint64_t address, const Arena* arena) noexcept {
  if (!known_ || on_device_.erase(address / kBlockBytes) == 0) return;
  each_within(address, arena, [](Level& tensor, Level& role, uint64_t bytes) {
    tensor.subtract(bytes);
    role.subtract(bytes);
  });
}

void Residency::add(Block* block) noexcept {
  if (!known_) return;
  try {
    Held& held = tensors_[tensor_of(block->record)];
    if (tensors_.size() > kMostSubjects) return give_up();
    const uint64_t bytes = resident_bytes(*block);
    ++held.live;
    held.bytes.add(bytes);
    roles_[block->record.role].add(bytes);
    block->record.counted = true;
  } catch (const std::bad_alloc&) {
    give_up();
  }
}

void Residency::remove(Block* block) noexcept {
  if (!known_) return;
  Held& held = tensors_.find(tensor_of(block->record))->second;
  const uint64_t bytes = resident_bytes(*block);
  --held.live;
  held.bytes.subtract(bytes);
  roles_[block->record.role].subtract(bytes);
  block->record.counted = false;
}

void Residency::note(const OpIdentity& op) noexcept {
  if (!known_) return;
  try {
    uint64_t& peak_bytes = ops_[{op.op, op.module, op.phase}];
    peak_bytes = std::max(peak_bytes, total_bytes());
    if (ops_.size() > kMostSubjects) give_up();
  } catch (const std::bad_alloc&) {
    give_up();
  }
}

void Residency::reset_peaks() noexcept {
  for (Level& role : roles_) role.reset_peak();
  for (auto each = tensors_.begin(); each != tensors_.end();) {
    each->second.bytes.reset_peak();
    each = each->second.live == 0 ? tensors_.erase(each) : std::next(each);
  }
  ops_.clear();
}

void Residency::clear() noexcept {
  on_device_.clear();
  for (Level& role : roles_) role = {};
  tensors_.clear();
  ops_.clear();
  known_ = true;
}

void Residency::give_up() noexcept {
  clear();
  known_ = false;
}

uint64_t Residency::read(um_residency* out, uint64_t capacity) const noexcept {
  if (!known_) return 0;
  uint64_t count = 0;
  const auto put = [&](const um_residency& row) {
    if (count < capacity) out[count] = row;
    ++count;
  };
  for (uint32_t role = 0; role < UM_ROLE_COUNT; ++role) {
    put({roles_[role].peak, 0, UM_RESIDENCY_ROLE, role, 0, 0, 0, 0, 0, 0});
  }
  for (const auto& [tensor, held] : tensors_) {
    put({held.bytes.peak, tensor.bytes, UM_RESIDENCY_TENSOR, tensor.role, tensor.name, tensor.birth_op,
         tensor.birth_module, 0, 0, 0});
  }
  for (const auto& [op, peak_bytes] : ops_) {
    put({peak_bytes, 0, UM_RESIDENCY_OP, 0, 0, 0, 0, op.op, op.module, op.phase});
  }
  return count;
}

}  // namespace um
