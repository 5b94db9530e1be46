// Runs one op on lists as several ops (split.cpp; split_rules.cpp has the operators).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "umadvise.h"

namespace um::hooks {

template <size_t size>
bool contains(const std::array<std::string_view, size>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

struct SplitRule {
  bool by_element = false;  // the result for an element does not depend on other elements
  bool to_numbers = false;  // each element's result is one number
  int32_t packed = -1;      // index of the argument that packs one number for each element into a tensor; -1: none
};
SplitRule split_rule(const c10::OperatorHandle& op);

struct OperatorInfo;
using RunPart = c10::function_ref<void(c10::DispatchKeySet, torch::jit::Stack*)>;

// Runs a call of an op by element as several calls, each on consecutive elements whose storages fit the limit
// (um_hooks_split_set). Returns false if that is unnecessary or impossible. `run` gets the stack of each call.
bool run_in_parts(um_device* device, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                  const OperatorInfo& info, RunPart run);
// Returns the present limit (um_hooks_split_limit).
uint64_t split_limit(um_device* device) noexcept;

}  // namespace um::hooks
