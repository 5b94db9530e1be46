// The properties of an operator that the interposer needs, derived once from its schema and its kernels.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <vector>

#include "nested_history.h"
#include "operator_lists.h"
#include "split.h"

namespace um::hooks {

enum class Kind : uint8_t {
  untouching,  // views, queries of shapes, ops without tensors: the guard is not called
  creation,    // allocates memory and touches no byte
  operation,   // reads and writes
};

struct TensorArgument {
  uint32_t index;
  Write write;
  bool whole_storage;  // includes bytes that no element of the tensor reaches
};

struct OperatorInfo {
  uint32_t name;  // interned
  Kind kind;
  bool composite_on_cpu, composite_on_cuda;  // its only kernel there calls other operators
  uint32_t argument_count, return_count;
  uint32_t training_argument;  // meaningful if an argument is written when_training
  bool in_place;               // it overwrites an argument that autograd may need, other than `out=`
  SplitRule split;
  std::vector<TensorArgument> tensors;  // arguments that may hold tensors or lists of tensors
  std::vector<uint32_t> shapes;         // such arguments of which only the shape is read
  mutable NestedHistory nested;         // learned while the operator runs

  bool composite(c10::DispatchKeySet keys) const {
    return keys.has_backend(c10::BackendComponent::CUDABit) ? composite_on_cuda : composite_on_cpu;
  }
};

// The reference is valid while the operator is registered. After a thread's first call this takes a few instructions.
const OperatorInfo& operator_info(const c10::OperatorHandle& op);

}  // namespace um::hooks
