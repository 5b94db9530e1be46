// A device on tape: see tape.h. Its ops have the device's times where the host runs ahead of it.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/op_durations.h"
#include "engine/participant.h"
#include "engine/tape.h"

namespace um {

class Recording final : public Participant {
 public:
  explicit Recording(um_device& device) : Participant(device, kRecordTurns), durations(device, tape_) {}

  void set(bool on);
  bool on() const { return tape_.on(); }
  template <class Row>
  uint64_t read(std::vector<Row> Tape::Rows::* rows, Row* out, uint64_t capacity) {
    durations.settle();
    const std::vector<Row>& all = tape_.rows().*rows;
    std::copy_n(all.begin(), std::min<uint64_t>(all.size(), capacity), out);
    return all.size();
  }
  uint64_t lost() const;
  // A copy that begins, and what the device was seen to service, within an op or not.
  void copied(um_recorded_event_kind kind, const Block& block, uint64_t address, uint64_t bytes) noexcept;
  void serviced(const emulated::Event& event, bool inside) noexcept;

  void begin_op(RunningOp& op) override;
  void end_op(RunningOp& op) noexcept override;
  void end_step() override;
  void begin_step(uint32_t step) override { tape_.set_step(step); }
  void allocated(Block* block, const RunningOp* op) noexcept override {
    tape_.allocated(*block, op != nullptr && op->recorded != 0);  // not of a thread beside
  }
  void freed(Block* block) noexcept override;
  void labelled(const Block& block) noexcept override { tape_.labelled(block); }

 private:
  bool inside() const;  // of this thread an op runs that is recorded
  Tape tape_;
  uint64_t dropped_before_ = 0;

 public:
  OpDurations durations;  // where kernels do not run in the calling thread: there the host's times are right
};

}  // namespace um
