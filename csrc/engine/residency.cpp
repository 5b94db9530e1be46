#include "engine/residency.h"

#include <algorithm>
#include <new>

namespace um {

bool Residency::Tensor::operator<(const Tensor& other) const {
  return std::tie(bytes, role, name, birth_op, birth_module) <
         std::tie(other.bytes, other.role, other.name, other.birth_op, other.birth_module);
}

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

template <class Note>
void Residency::keep(const Note& note) noexcept {
  if (!known_) return;
  try {
    note();
  } catch (const std::bad_alloc&) {
    give_up();
  }
}

// Changes the bytes of every allocation that counts, by its part in the block at `address`.
void Residency::change(uint64_t address, const Arena* arena, int64_t sign) noexcept {
  const uint64_t end = address + kBlockBytes;
  for (const Block* block = arena != nullptr ? arena->nearest(address) : nullptr;
       block != nullptr && block->address < end; block = block->next) {
    if (block->free || notes(*block).tracked == 0) continue;
    const uint64_t from = std::max(address, block->address);
    const uint64_t to = std::min(end, block->address + block->record.bytes);
    if (from < to) change(notes(*block).tracked - 1, sign * static_cast<int64_t>(to - from));
  }
}

void Residency::change(uint32_t tracked, int64_t bytes) noexcept {
  if (bytes == 0) return;
  keep([&] { changes_.push_back({tracked, bytes}); });
  if (changes_.size() >= kMostChanges) sum_up();
}

void Residency::arrived(uint64_t address, const Arena* arena, bool shows_chunks) noexcept {
  bool is_new = false;
  keep([&] { is_new = on_device_.insert(address / kBlockBytes).second; });
  if (!is_new) return;
  if (!shows_chunks) counted_bytes_ += kBlockBytes;
  change(address, arena, 1);
}

void Residency::left(uint64_t address, const Arena* arena, bool shows_chunks) noexcept {
  if (!known_ || on_device_.erase(address / kBlockBytes) == 0) return;
  if (!shows_chunks) counted_bytes_ -= kBlockBytes;
  change(address, arena, -1);
}

void Residency::add(Block* block) noexcept {
  keep([&] {
    if (!unused_.empty()) return;
    tracked_.push_back({});
    unused_.reserve(tracked_.capacity());  // so that remove() needs no memory
    unused_.push_back(static_cast<uint32_t>(tracked_.size() - 1));
  });
  if (!known_) return;
  const uint32_t index = unused_.back();
  unused_.pop_back();
  tracked_[index] = {tensor_of(block->record), 0, true};
  notes(*block).tracked = index + 1;
  change(index, static_cast<int64_t>(resident_bytes(*block)));
}

void Residency::remove(Block* block) noexcept {
  const uint32_t tracked = notes(*block).tracked;
  notes(*block).tracked = 0;
  if (!known_ || tracked == 0) return;
  change(tracked - 1, -static_cast<int64_t>(resident_bytes(*block)));
  if (known_) tracked_[tracked - 1].live = false;
}

void Residency::relabelled(const Block& block) noexcept {
  if (known_ && notes(block).tracked != 0) tracked_[notes(block).tracked - 1].label = tensor_of(block.record);
}

// Sums up under the present labels. Ended allocations are forgotten: their indices are reused, and the last ones are
// dropped. Otherwise a million ops between two steps would make every later edge visit as many indices.
void Residency::sum_up() noexcept {
  keep([&] { add_up(); });
}

void Residency::add_up() {
  std::vector<Level*> levels(tracked_.size());
  for (auto& [tensor, level] : tensors_) level.now = 0;
  for (Level& role : roles_) role.now = 0;
  std::vector<bool> unused(tracked_.size());
  for (const uint32_t index : unused_) unused[index] = true;
  for (size_t index = 0; index < tracked_.size(); ++index) {
    if (unused[index]) continue;
    const Tracked& each = tracked_[index];
    levels[index] = &tensors_[each.label];
    levels[index]->now += each.bytes;
    roles_[each.label.role].now += each.bytes;
  }
  if (tensors_.size() > kMostSubjects) return give_up();
  for (auto& [tensor, level] : tensors_) level.set(level.now);
  for (Level& role : roles_) role.set(role.now);
  for (const Change& each : changes_) {  // unsigned, because each subtraction follows an addition
    const auto bytes = static_cast<uint64_t>(each.bytes);
    Tracked& tracked = tracked_[each.tracked];
    tracked.bytes += bytes;
    levels[each.tracked]->add(bytes);
    roles_[tracked.label.role].add(bytes);
  }
  changes_.clear();
  while (!tracked_.empty() && !tracked_.back().live) tracked_.pop_back();
  unused_.clear();
  for (size_t index = tracked_.size(); index-- > 0;) {  // so that the smallest indices are taken first
    if (!tracked_[index].live) unused_.push_back(static_cast<uint32_t>(index));
  }
}

void Residency::note(const OpIdentity& op, uint64_t chunk_bytes) noexcept {
  keep([&] {
    uint64_t& peak_bytes = ops_[{op.op, op.module, op.phase}].peak_bytes;
    peak_bytes = std::max(peak_bytes, counted_bytes_ + chunk_bytes);
    if (ops_.size() > kMostSubjects) give_up();
  });
}

void Residency::ran(const OpIdentity& op, int64_t compute_ns) noexcept {
  if (compute_ns > 0) keep([&] { ops_[{op.op, op.module, op.phase}].compute_ns += compute_ns; });
}

void Residency::reset_peaks() noexcept {
  sum_up();
  tensors_.clear();
  for (Level& role : roles_) role = {};
  ops_.clear();
}

void Residency::clear() noexcept { *this = Residency{}; }

Residency Residency::unknown() noexcept {
  Residency made;
  made.known_ = false;
  return made;
}

void Residency::give_up() noexcept { *this = unknown(); }

uint64_t Residency::read(um_residency* out, uint64_t capacity) noexcept {
  sum_up();
  if (!known_) return 0;
  uint64_t count = 0;
  const auto put = [&](const um_residency& row) {
    if (count < capacity) out[count] = row;
    ++count;
  };
  for (uint32_t role = 0; role < UM_ROLE_COUNT; ++role) {
    put({roles_[role].peak, 0, UM_RESIDENCY_ROLE, role, 0, 0, 0, 0, 0, 0, 0});
  }
  for (const auto& [tensor, level] : tensors_) {
    put({level.peak, tensor.bytes, UM_RESIDENCY_TENSOR, tensor.role, tensor.name, tensor.birth_op, tensor.birth_module,
         0, 0, 0, 0});
  }
  for (const auto& [ran, sums] : ops_) {
    const auto [op, module, phase] = ran;
    put({sums.peak_bytes, 0, UM_RESIDENCY_OP, 0, 0, 0, 0, op, module, phase, sums.compute_ns});
  }
  return count;
}

}  // namespace um
