// Storages that an op makes in nested calls of other operators, and that outlive the op without being among its
// results: autograd's clone of a value that an in-place op overwrites, a tensor that a saved-tensor hook packs, or one
// that a custom operator keeps. They are shown to the core like results, so they have an owner and can be evicted.
//
// Boxed fallbacks of two other keys observe nested calls. They make each nested call a boxed call, so a key is included
// only in ops that NestedHistory or a saved-tensor hook gives a reason to watch.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

#include "accesses.h"
#include "operator_info.h"

namespace um::hooks {

// Registers the fallback for the life of the process.
void register_nested_fallback();

// Watches the op that is about to run in this thread while it lives, if it is expected to keep something.
class NestedResults {
 public:
  NestedResults(const OperatorInfo& info, const torch::jit::Stack& arguments) noexcept;
  ~NestedResults();
  NestedResults(const NestedResults&) = delete;
  NestedResults& operator=(const NestedResults&) = delete;

  // The last values of the stack are the results of a nested call that has ended.
  void note(size_t result_count, const torch::jit::Stack& stack);
  // Appends the storages that are alive to the op's results, except those of its operands.
  void append_to(ShownList& outputs, const AccessList& operands);
  // `unseen`: how many allocations outlive the op for which no storage was shown.
  void end(uint32_t unseen) noexcept;

 private:
  struct Nested {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    void* owner;
  };

  NestedResults(const OperatorInfo& info, const torch::jit::Stack& arguments, bool differentiates) noexcept;

  NestedHistory& history_;
  const uint32_t situation_;
  const bool hooked_;  // a saved-tensor hook packs what autograd saves, and may keep any tensor
  const bool watched_;
  bool kept_ = false;
  const uint64_t allocations_before_;
  c10::SmallVector<Nested, 4> found_;
};

}  // namespace um::hooks
