// Running one op on lists as several: see split.cpp, and split_rules.cpp for which.
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
  bool by_element = false;  // what the op does to one element of its lists has to do with no other element
  bool to_numbers = false;  // each element's result is one number
  int32_t packed = -1;      // index of the argument that packs one number for each element into a tensor; -1: none
};
SplitRule split_rule(const c10::OperatorHandle& op);

struct OperatorInfo;
using RunPart = c10::function_ref<void(c10::DispatchKeySet, torch::jit::Stack*)>;

// Runs a call of an op that goes by element as several, each on consecutive elements, so that each one's storages fit
// the limit (um_hooks_split_set); false where it need not or cannot be. `run` gets each call's own stack.
bool run_in_parts(um_device* device, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                  const OperatorInfo& info, RunPart run);
// The limit as it is now, see um_hooks_split_limit.
uint64_t split_limit(um_device* device) noexcept;

}  // namespace um::hooks
