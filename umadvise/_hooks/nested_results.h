// Storages that an op makes in nested calls of other operators, and that outlive the op without being among its
// results: autograd's clone of a value that an in-place op overwrites, what a saved-tensor hook packs, what a custom
// operator keeps. The core is shown them like results, so they have an owner and can be evicted.
//
// Boxed fallbacks of two other keys observe nested calls. They make each of those cost a boxed call, so a key is
// included only in the ops that NestedHistory or a saved-tensor hook gives a reason to watch.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

#include "accesses.h"
#include "operator_info.h"

namespace um::hooks {

// For the life of the process.
void register_nested_fallback();

// Watches the op that is about to run in this thread, from construction to the end of its life, where that is expected
// to find something.
class NestedResults {
 public:
  NestedResults(const OperatorInfo& info, const torch::jit::Stack& arguments) noexcept;
  ~NestedResults();
  NestedResults(const NestedResults&) = delete;
  NestedResults& operator=(const NestedResults&) = delete;

  // The last values of the stack are the results of a nested call that has ended.
  void note(size_t result_count, const torch::jit::Stack& stack);
  // Appends the storages that are alive to the op's results, but for those of its operands.
  void append_to(ShownList& outputs, const AccessList& operands);
  // `unseen`: allocations that outlive the op, and that no storage was shown for.
  void end(uint32_t unseen) noexcept;

 private:
  struct Nested {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    void* owner;
  };

  NestedResults(const OperatorInfo& info, const torch::jit::Stack& arguments, bool differentiates) noexcept;

  NestedHistory& history_;
  const uint32_t situation_;
  const bool hooked_;  // a saved-tensor hook packs what autograd saves: it may keep anything
  const bool watched_;
  bool kept_ = false;
  const uint64_t allocations_before_;
  c10::SmallVector<Nested, 4> found_;
};

}  // namespace um::hooks
