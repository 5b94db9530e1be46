// This code is alone in its file, because autograd's headers take as long to compile as everything else together.
#include "backward.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#if __has_include(<torch/csrc/autograd/node.h>)
#include <torch/csrc/autograd/node.h>
#else  // where torch keeps Node in older versions
#include <torch/csrc/autograd/function.h>
#endif

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "hooks.h"

namespace um::hooks {
namespace {

// Autograd numbers the nodes of a thread in the order in which forward makes them. One entry for each change of module
// is enough to find the module of any node, so forward ops cost nothing.
struct Change {
  uint64_t first_sequence;
  uint32_t module;
};
constexpr size_t kMostChanges = size_t{1} << 16;  // about 80 steps of BERT-Large; older nodes have no module

std::mutex changes_lock;
std::unordered_map<uint64_t, std::vector<Change>>& changes_by_thread() {
  static auto* const changes = new std::unordered_map<uint64_t, std::vector<Change>>;
  return *changes;
}

thread_local uint32_t current_module = 0;

void note_change(uint32_t module) {
  const uint64_t sequence = at::sequence_number::peek();
  const std::lock_guard<std::mutex> lock(changes_lock);
  std::vector<Change>& changes = changes_by_thread()[at::RecordFunction::currentThreadId()];
  if (!changes.empty() && changes.back().first_sequence == sequence) {
    changes.back().module = module;  // the previous module made no node
    return;
  }
  if (changes.size() == kMostChanges) changes.erase(changes.begin(), changes.begin() + kMostChanges / 2);
  changes.push_back({sequence, module});
}

uint32_t module_at(uint64_t thread, uint64_t sequence) {
  const std::lock_guard<std::mutex> lock(changes_lock);
  const auto found = changes_by_thread().find(thread);
  if (found == changes_by_thread().end()) return 0;
  const std::vector<Change>& changes = found->second;
  const auto after =
      std::upper_bound(changes.begin(), changes.end(), sequence,
                       [](uint64_t number, const Change& change) { return number < change.first_sequence; });
  return after == changes.begin() ? 0 : std::prev(after)->module;
}

}  // namespace

BackwardNode current_backward_node() {
  const auto node = torch::autograd::get_current_node();
  if (!node) return {false, 0};
  // A module that runs now (recomputation by activation checkpointing) is closer than the one that made the node.
  if (current_module != 0) return {true, current_module};
  thread_local struct {
    uint64_t thread = 0, sequence = 0;
    uint32_t module = 0;
  } last;
  const uint64_t thread = node->thread_id(), sequence = node->sequence_nr();
  if (last.thread != thread || last.sequence != sequence) last = {thread, sequence, module_at(thread, sequence)};
  return {true, last.module};
}

uint32_t set_forward_module(uint32_t module) {
  const uint32_t previous = current_module;
  if (module != previous) note_change(module);
  current_module = module;
  return previous;
}

uint32_t forward_module() { return current_module; }

void forget_forward_modules() {
  // A forked child calls this too, and its copy of the lock may be held by a thread of the parent.
  const std::unique_lock<std::mutex> lock(changes_lock, std::try_to_lock);
  if (lock.owns_lock()) changes_by_thread().clear();
}

}  // namespace um::hooks

uint32_t um_hooks_module_set(uint32_t module) { return um::hooks::set_forward_module(module); }
