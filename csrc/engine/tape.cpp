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
  rows_ = {};
  by_serial_.clear();
  rows_.allocations = present;
  for (uint64_t row = 0; row < rows_.allocations.size(); ++row) {
    by_serial_[rows_.allocations[row].allocation] = row;
    rows_.events.push_back({rows_.allocations[row].allocation, 0, 0, -1, UM_RECORDED_ALLOCATE, 0});
  }
  on_ = true;
}

um_recorded_allocation* Tape::row_of(const Block& block) {
  const auto found = by_serial_.find(block.record.serial);
  return found == by_serial_.end() ? nullptr : &rows_.allocations[found->second];
}

// Returns nullptr if the op did not begin in this recording.
um_recorded_op* Tape::op_of(uint64_t ticket) {
  if (ticket >> kIndexBits != recording_) return nullptr;
  return &rows_.ops[(ticket & ((uint64_t{1} << kIndexBits) - 1)) - 1];
}

void Tape::allocated(const Block& block, bool inside) noexcept {
  keep([&] {
    const Record& record = block.record;
    rows_.allocations.push_back({record.serial, record.bytes, record.role, record.name, record.birth_module, 0});
    by_serial_[record.serial] = rows_.allocations.size() - 1;
    happened(UM_RECORDED_ALLOCATE, block, block.address, 0, inside);
  });
}

void Tape::freed(const Block& block, bool inside) noexcept {
  keep([&] {
    happened(UM_RECORDED_FREE, block, block.address, 0, inside);
    by_serial_.erase(block.record.serial);
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
    rows_.events.push_back({block.record.serial, static_cast<int64_t>(address - block.address), bytes, last_op(),
                            static_cast<uint16_t>(kind), static_cast<uint16_t>(inside && !rows_.ops.empty())});
  });
}

void Tape::set_step(uint32_t step) noexcept {
  keep([&] { rows_.edges.push_back({rows_.events.size(), step, 0}); });
}

uint64_t Tape::begin_op(um_recorded_op op) noexcept {
  uint64_t ticket = 0;
  keep([&] {
    op.duration_ns = UM_UNKNOWN;
    op.first_access = rows_.accesses.size();
    rows_.ops.push_back(op);
    ticket = uint64_t{recording_} << kIndexBits | rows_.ops.size();
  });
  return ticket;
}

void Tape::access(const Block& block, uint64_t offset_bytes, const um_access& access) noexcept {
  keep([&] {
    rows_.accesses.push_back({block.record.serial, offset_bytes, access.bytes, access.write, access.argument});
    ++rows_.ops.back().access_count;
  });
}

void Tape::end_op(uint64_t ticket, int64_t duration_ns, const std::vector<uint64_t>& outputs) noexcept {
  um_recorded_op* op = op_of(ticket);
  if (op == nullptr) return;
  keep([&] {
    op->duration_ns = duration_ns;
    op->first_output = rows_.outputs.size();
    rows_.outputs.insert(rows_.outputs.end(), outputs.begin(), outputs.end());
    op->output_count = outputs.size();
  });
}

void Tape::ran(uint64_t ticket, int64_t duration_ns) noexcept {
  um_recorded_op* op = op_of(ticket);
  if (op == nullptr) return;
  op->duration_ns = duration_ns;
  op->device_time = 1;
}

}  // namespace um
