// One action of a plan, and how to say that it is wrong.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "umadvise.h"

namespace um::simulator {

struct PlanAction {
  PlanAction(const um_plan& plan, uint64_t at)
      : row(at),
        op(plan.op[at]),
        storage(plan.storage[at]),
        kind(plan.kind[at]),
        after(plan.after[at] != 0),
        offset_bytes(plan.offset_bytes[at]),
        bytes(plan.bytes[at]),
        argument(plan.argument[at]) {}

  [[noreturn]] void wrong(const std::string& why) const {
    throw Error(UM_INVALID_ARGUMENT, "action " + std::to_string(row) + " of the plan, at op " + std::to_string(op) +
                                         ", storage " + std::to_string(storage) + ": " + why);
  }

  uint64_t row;
  int32_t op, storage;
  uint8_t kind;  // um_plan_kind
  bool after;    // else before the op
  int64_t offset_bytes, bytes, argument;
};

}  // namespace um::simulator
