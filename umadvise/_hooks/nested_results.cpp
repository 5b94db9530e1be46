#include "nested_results.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "allocator.h"

namespace um::hooks {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

// Torch never includes this key, and registers no kernel for it. It is above autograd, which clones what an in-place op
// overwrites through the dispatcher. While the handler of a Python mode or subclass runs, torch excludes the key, so
// nested calls are not observed there.
constexpr DispatchKey kNestedResultsKey = DispatchKey::TESTING_ONLY_GenericWrapper;
constexpr DispatchKeySet kBelowNestedResults{DispatchKeySet::FULL_AFTER, kNestedResultsKey};

thread_local NestedResults* watching = nullptr;  // needs no destructor: it points to a local variable of `run_op`

void observe(const c10::OperatorHandle& op, DispatchKeySet keys, torch::jit::Stack* stack) {
  op.redispatchBoxed(keys & kBelowNestedResults, stack);
  if (watching != nullptr) watching->note(op.schema().returns().size(), *stack);
}

bool needs_gradient(const c10::IValue& value) {
  if (value.isTensor()) return value.unsafeToTensorImpl()->requires_grad();
  if (!value.isList()) return false;
  const c10::ArrayRef<c10::IValue> elements = value.toListRef();
  return std::any_of(elements.begin(), elements.end(), needs_gradient);
}

// Returns which operands need a gradient if autograd may clone one of them. The fourth bit stands for all later
// operands.
uint32_t situation_of(const OperatorInfo& info, const torch::jit::Stack& stack, bool differentiates) {
  if (!differentiates) return 0;
  if (!info.in_place) return 1;
  constexpr uint32_t kLastBit = 8;
  const c10::IValue* const arguments = stack.data() + (stack.size() - info.argument_count);
  uint32_t needed = 0, bit = 1;
  for (const TensorArgument& argument : info.tensors) {
    if (needs_gradient(arguments[argument.index])) needed |= bit;
    if (bit != kLastBit) bit <<= 1;
  }
  return 1 + needed;
}

}  // namespace

void register_nested_fallback() {
  static auto* const registration = new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
      kNestedResultsKey, c10::KernelFunction::makeFromBoxedFunction<&observe>(), "umadvise nested results"));
  (void)registration;
}

NestedResults::NestedResults(const OperatorInfo& info, const torch::jit::Stack& arguments) noexcept
    : NestedResults(info, arguments, c10::GradMode::is_enabled()) {}

NestedResults::NestedResults(const OperatorInfo& info, const torch::jit::Stack& arguments, bool differentiates) noexcept
    : history_(info.nested),
      situation_(situation_of(info, arguments, differentiates)),
      hooked_(differentiates && !at::SavedTensorDefaultHooks::get_tls_state().stack.empty()),
      watched_(hooked_ || history_.watches(situation_)),
      allocations_before_(allocations_made) {
  if (!watched_) return;
  watching = this;
  c10::impl::tls_set_dispatch_key_included(kNestedResultsKey, true);
}

NestedResults::~NestedResults() {
  if (!watched_) return;
  watching = nullptr;
  c10::impl::tls_set_dispatch_key_included(kNestedResultsKey, false);
}

void NestedResults::note(size_t result_count, const torch::jit::Stack& stack) {
  if (allocations_made == allocations_before_) return;
  for (size_t index = stack.size() - result_count; index < stack.size(); ++index) {
    each_tensor(stack[index], [&](const c10::TensorImpl& tensor) {
      c10::StorageImpl* const storage = storage_of_ours(tensor);
      const auto is_it = [&](const Nested& each) { return each.storage._unsafe_get_target() == storage; };
      if (storage == nullptr || std::any_of(found_.begin(), found_.end(), is_it)) return;
      found_.push_back({Weak::reclaim_copy(storage), owner_of(tensor, storage)});
    });
  }
}

// A storage that another thread frees meanwhile shows no address any more, and the core then finds no owner.
void NestedResults::append_to(ShownList& outputs, const AccessList& operands) {
  for (const Nested& each : found_) {
    c10::StorageImpl* const storage = each.storage._unsafe_get_target();
    if (each.storage.expired() || operands.has(storage)) continue;
    const char* const address = address_of(*storage);
    const auto is_it = [&](const um_shown& output) { return output.address == address; };
    if (address == nullptr || std::any_of(outputs.begin(), outputs.end(), is_it)) continue;
    outputs.push_back({address, each.owner});
    kept_ = true;
  }
}

void NestedResults::end(uint32_t unseen) noexcept {
  if (watched_ ? !hooked_ : unseen > 0) history_.note(situation_, kept_ || unseen > 0);
}

}  // namespace um::hooks
