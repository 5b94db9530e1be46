// What the interposer needs to know about an operator, derived once from its schema and its registered kernels.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <vector>

#include "nested_history.h"
#include "split.h"

namespace um::hooks {

enum class Kind : uint8_t {
  untouching,  // views, questions about shapes, no tensors at all: the guard never hears of it
  creation,    // makes memory and touches no byte
  operation,   // reads and writes
};

enum class Write : uint8_t { never, always, when_training };

struct TensorArgument {
  uint32_t index;
  Write write;
  bool whole_storage;  // also what no element of the tensor reaches
};

struct OperatorInfo {
  uint32_t name;  // interned
  Kind kind;
  bool composite_on_cpu, composite_on_cuda;  // its only kernel there is a sequence of other operators
  uint32_t argument_count, return_count;
  uint32_t training_argument;  // meaningful where an argument is written when_training
  bool in_place;               // it overwrites an argument that autograd may need: all but `out=`
  SplitRule split;
  std::vector<TensorArgument> tensors;  // those that may hold tensors or lists of tensors
  std::vector<uint32_t> shapes;         // likewise, but only their shapes are asked for
  mutable NestedHistory nested;         // learned while the operator runs

  bool composite(c10::DispatchKeySet keys) const {
    return keys.has_backend(c10::BackendComponent::CUDABit) ? composite_on_cuda : composite_on_cpu;
  }
};

// The reference stays valid as long as the operator is registered. A few instructions after the first call of a thread.
const OperatorInfo& operator_info(const c10::OperatorHandle& op);

}  // namespace um::hooks
