#include "engine/tape.h"

#include <new>

namespace um {
namespace {

constexpr uint32_t kIndexBits = 40;

}  // namespace

template <class Change>
void Tape::keep(const Change& change) noexcept {
  if (!on_) return;
  try {
    change();
  } catch (const std::bad_alloc&) {
    ++lost_;
  }
}

void Tape::start(const std::vector<um_recorded_allocation>& present) {
  on_ = false;
  ++recording_;
  lost_ = 0;
  ops_.clear();
  accesses_.clear();
  outputs_.clear();
  events_.clear();
  edges_.clear();
  rows_.clear();
  allocations_ = present;
  for (uint64_t row = 0; row < allocations_.size(); ++row) {
    rows_[allocations_[row].allocation] = row;
    events_.push_back({allocations_[row].allocation, 0, 0, -1, UM_RECORDED_ALLOCATE, 0});
  }
  on_ = true;
}

um_recorded_allocation* Tape::row_of(const Block& block) {
  const auto found = rows_.find(block.record.serial);
  return found == rows_.end() ? nullptr : &allocations_[found->second];
}

void Tape::allocated(const Block& block, bool inside) noexcept {
  keep([&] {
    const Record& record = block.record;
    allocations_.push_back({record.serial, record.bytes, record.role, record.name, record.birth_module, 0});
    rows_[record.serial] = allocations_.size() - 1;
    happened(UM_RECORDED_ALLOCATE, block, block.address, 0, inside);
  });
}

void Tape::freed(const Block& block, bool inside) noexcept {
  keep([&] {
    happened(UM_RECORDED_FREE, block, block.address, 0, inside);
    rows_.erase(block.record.serial);
  });
}

void Tape::labelled(const Block& block) noexcept {
  keep([&] {
    um_recorded_allocation* row = row_of(block);
    if (row == nullptr) return;
    row->role = block.record.role;
    row->name = block.record.name;
  });
}

void Tape::seen(const Block& block) noexcept {
  keep([&] {
    if (um_recorded_allocation* row = row_of(block)) row->seen = 1;
  });
}

void Tape::happened(um_recorded_event_kind kind, const Block& block, uint64_t address, uint64_t bytes,
                    bool inside) noexcept {
  keep([&] {
    events_.push_back({block.record.serial, static_cast<int64_t>(address - block.address), bytes, last_op(),
                       static_cast<uint16_t>(kind), static_cast<uint16_t>(inside && !ops_.empty())});
  });
}

void Tape::set_step(uint32_t step) noexcept {
  keep([&] { edges_.push_back({events_.size(), step, 0}); });
}

uint64_t Tape::begin_op(um_recorded_op op) noexcept {
  uint64_t ticket = 0;
  keep([&] {
    op.duration_ns = UM_UNKNOWN;
    op.first_access = accesses_.size();
    ops_.push_back(op);
    ticket = uint64_t{recording_} << kIndexBits | ops_.size();
  });
  return ticket;
}

void Tape::access(const Block& block, const um_access& access) noexcept {
  keep([&] {
    const uint64_t offset_bytes = reinterpret_cast<uint64_t>(access.address) - block.address;
    accesses_.push_back({block.record.serial, offset_bytes, access.bytes, access.write, access.argument});
    ++ops_.back().access_count;
  });
}

void Tape::end_op(uint64_t ticket, int64_t duration_ns, const std::vector<uint64_t>& outputs) noexcept {
  if (ticket >> kIndexBits != recording_) return;  // it began in an earlier recording, or in none
  keep([&] {
    um_recorded_op& op = ops_[(ticket & ((uint64_t{1} << kIndexBits) - 1)) - 1];
    op.duration_ns = duration_ns;
    op.first_output = outputs_.size();
    outputs_.insert(outputs_.end(), outputs.begin(), outputs.end());
    op.output_count = outputs.size();
  });
}

}  // namespace um
