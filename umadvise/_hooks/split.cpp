// Ops on whole models take lists of all parameters, gradients or states, and need all of them on the device at once. If
// these exceed the limit, the op runs as several, each on as many consecutive elements as fit. They are consecutive
// because a tensor that occurs twice in a list must be processed in the same order as before.
#include "split.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <unordered_set>
#include <vector>

#include "accesses.h"
#include "errors.h"
#include "hooks.h"
#include "operator_info.h"

namespace um::hooks {
namespace {

std::atomic<uint64_t> limit_bytes{0};
std::atomic<uint64_t> unit_bytes{1};

// Returns what a storage takes of the limit.
uint64_t in_units(uint64_t bytes) { return um_chunk_share(bytes, unit_bytes.load(std::memory_order_relaxed)); }

// A call whose lists have the same length.
class DividedCall {
 public:
  static std::optional<DividedCall> of(const OperatorInfo& info, const torch::jit::Stack& stack) {
    DividedCall call(info, stack);
    for (uint32_t index = 0; index < info.argument_count; ++index) {
      if (!call.take(index)) return std::nullopt;  // torch reports an error for that
    }
    return call.length_ > 1 ? std::optional(std::move(call)) : std::nullopt;
  }

  size_t length() const { return length_; }

  template <class Visit>
  void each_tensor_of(size_t element, Visit&& visit) const {
    for (const uint32_t index : lists_) {
      const c10::IValue& value = arguments_[index].toListRef()[element];
      if (value.isTensor()) visit(*value.unsafeToTensorImpl());
    }
  }
  template <class Visit>
  void each_shared_tensor(Visit&& visit) const {
    for (const c10::IValue& argument : arguments_) {
      if (argument.isTensor()) visit(*argument.unsafeToTensorImpl());
    }
  }

  // Returns the same call on the elements from `begin` to before `end`.
  torch::jit::Stack part(size_t begin, size_t end) const {
    torch::jit::Stack part(arguments_.begin(), arguments_.end());
    for (const uint32_t index : lists_) {
      const c10::ArrayRef<c10::IValue> all = arguments_[index].toListRef();
      c10::impl::GenericList some(arguments_[index].toList().elementType());
      some.reserve(end - begin);
      for (const c10::IValue& element : all.slice(begin, end - begin)) some.push_back(element);
      part[index] = std::move(some);
    }
    if (rule_.packed >= 0) part[rule_.packed] = part[rule_.packed].toTensor().slice(0, begin, end);
    return part;
  }

  // Returns an upper bound of the memory that the op allocates for an element. Integers may become floating-point
  // numbers.
  uint64_t made_bytes(size_t element) const {
    if (!makes_tensors_) return 0;
    uint64_t most = 0;
    each_tensor_of(element, [&](const c10::TensorImpl& tensor) {
      const bool integral = c10::isIntegralType(c10::typeMetaToScalarType(tensor.dtype()), true);
      most = std::max<uint64_t>(most, tensor.numel() * std::max<size_t>(tensor.itemsize(), integral ? 4 : 0));
    });
    return in_units(most);
  }

 private:
  DividedCall(const OperatorInfo& info, const torch::jit::Stack& stack)
      : arguments_(stack.data() + (stack.size() - info.argument_count), info.argument_count),
        rule_(info.split),
        makes_tensors_(info.return_count == 1 && !info.split.to_numbers) {}

  bool take(uint32_t index) {
    const c10::IValue& argument = arguments_[index];
    if (static_cast<int32_t>(index) == rule_.packed) {
      const at::Tensor& numbers = argument.toTensor();
      return numbers.dim() == 1 && static_cast<size_t>(numbers.size(0)) == length_;
    }
    if (!argument.isList()) return true;
    const size_t length = argument.toListRef().size();
    if (length == 0) return true;  // a state that this call does not have
    if (length_ == 0) length_ = length;
    lists_.push_back(index);
    return length == length_;
  }

  c10::ArrayRef<c10::IValue> arguments_;
  SplitRule rule_;
  bool makes_tensors_;
  c10::SmallVector<uint32_t, 8> lists_;
  size_t length_ = 0;
};

// Autograd makes one node for a list. Several nodes would sum gradients in another order.
bool autograd_records(const DividedCall& call) {
  if (!c10::GradMode::is_enabled()) return false;
  bool records = false;
  for (size_t element = 0; element < call.length() && !records; ++element) {
    call.each_tensor_of(element, [&](const c10::TensorImpl& tensor) { records |= tensor.requires_grad(); });
  }
  return records;
}

// The device memory that a part of a list needs. Tensors on one storage need it once.
class WorkingSet {
 public:
  explicit WorkingSet(const DividedCall& call) : call_(call) { clear(); }

  void clear() {
    storages_.clear();
    bytes_ = 0;
    call_.each_shared_tensor([this](const c10::TensorImpl& tensor) { add(tensor); });
  }
  void add(size_t element) {
    call_.each_tensor_of(element, [this](const c10::TensorImpl& tensor) { add(tensor); });
    bytes_ += call_.made_bytes(element);
  }
  uint64_t bytes() const { return bytes_; }

 private:
  void add(const c10::TensorImpl& tensor) {
    each_part(tensor, [this](const c10::TensorImpl& part) {
      const c10::StorageImpl* const storage = storage_of_ours(part);
      if (storage != nullptr && storages_.insert(storage).second) bytes_ += in_units(storage->nbytes());
    });
  }

  const DividedCall& call_;
  std::unordered_set<const c10::StorageImpl*> storages_;
  uint64_t bytes_ = 0;
};

// Returns the ends of the parts. Each part has as many elements as fit, and at least one.
std::vector<size_t> ends_of_parts(const DividedCall& call, uint64_t limit) {
  std::vector<size_t> ends;
  WorkingSet part(call);
  size_t begin = 0;
  for (size_t element = 0; element < call.length(); ++element) {
    part.add(element);
    if (part.bytes() <= limit || element == begin) continue;
    ends.push_back(begin = element);
    part.clear();
    part.add(element);
  }
  ends.push_back(call.length());
  return ends;
}

// Returns what torch checks, for all elements at once, to decide between its kernel for whole lists and one op for each
// tensor (ATen/native/ForeachUtils.h, can_use_fast_route).
bool alike(const DividedCall& call) {
  c10::SmallVector<const c10::TensorImpl*, 8> first, other;
  call.each_tensor_of(0, [&](const c10::TensorImpl& tensor) { first.push_back(&tensor); });
  const auto form = [](const c10::TensorImpl& tensor) {
    const bool strided = tensor.layout() == c10::kStrided;
    return std::tuple(tensor.device(), c10::typeMetaToScalarType(tensor.dtype()), tensor.layout(),
                      strided && tensor.is_non_overlapping_and_dense());
  };
  const auto placed_as_its_first = [](const auto& tensors, size_t index) {
    return tensors[index]->layout() == c10::kStrided && tensors[0]->layout() == c10::kStrided &&
           tensors[index]->sizes() == tensors[0]->sizes() && tensors[index]->strides() == tensors[0]->strides();
  };
  for (size_t element = 1; element < call.length(); ++element) {
    other.clear();
    call.each_tensor_of(element, [&](const c10::TensorImpl& tensor) { other.push_back(&tensor); });
    if (other.size() != first.size()) return false;
    for (size_t index = 0; index < first.size(); ++index) {
      if (form(*other[index]) != form(*first[index])) return false;
      if (placed_as_its_first(other, index) != placed_as_its_first(first, index)) return false;
    }
  }
  return true;
}

// If a list runs tensor by tensor, so must its parts, although a part may qualify for the other kernel: that kernel's
// last bits differ. Running tensor by tensor is the kernel without a backend.
c10::DispatchKeySet keys_for_parts(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const DividedCall& call) {
  const bool can_choose = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  return can_choose && !alike(call) ? c10::DispatchKeySet() : keys;
}

}  // namespace

bool run_in_parts(um_device* device, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                  const OperatorInfo& info, RunPart run) {
  if (limit_bytes.load(std::memory_order_relaxed) == 0) return false;
  const std::optional<DividedCall> call = DividedCall::of(info, *stack);
  if (!call || autograd_records(*call)) return false;
  const std::vector<size_t> ends = ends_of_parts(*call, split_limit(device));
  if (ends.size() == 1) return false;

  const c10::DispatchKeySet keys_of_parts = keys_for_parts(op, keys, *call);
  c10::List<at::Tensor> results;
  size_t begin = 0;
  for (const size_t end : ends) {
    torch::jit::Stack part = call->part(begin, end);
    run(keys_of_parts, &part);
    if (info.return_count != 0) {
      for (const c10::IValue& result : part.back().toListRef()) results.push_back(result.toTensor());
    }
    begin = end;
  }
  torch::jit::drop(*stack, info.argument_count);
  if (info.return_count != 0) stack->emplace_back(std::move(results));
  return true;
}

// If the limit exceeds two thirds of the available memory, it becomes half of that memory, so that an op has as much
// for temporary memory. It never grows again, so that steps are alike. Memory that the driver pages has units of one
// byte, and none of it is pinned.
uint64_t split_limit(um_device* device) noexcept {
  uint64_t limit = limit_bytes.load(std::memory_order_relaxed);
  um_swap_counters now{};
  if (limit == 0 || unit_bytes.load(std::memory_order_relaxed) == 1) return limit;
  if (um_swap_read(device, &now) != UM_OK || now.budget_bytes == 0) return limit;
  const uint64_t room = now.budget_bytes - std::min(now.budget_bytes, now.pinned_bytes);
  if (limit / 2 * 3 <= room) return limit;
  const uint64_t tighter = std::min(limit, std::max(room / 2, unit_bytes.load(std::memory_order_relaxed)));
  limit_bytes.compare_exchange_strong(limit, tighter, std::memory_order_relaxed);  // unless the limit was set meanwhile
  return tighter;
}

}  // namespace um::hooks

uint64_t um_hooks_split_limit(um_device* device) { return um::hooks::split_limit(device); }

um_status um_hooks_split_set(uint64_t limit, uint64_t unit) {
  return um::hooks::guarded([&] {
    if (unit == 0) throw um::hooks::CoreError{UM_INVALID_ARGUMENT, "a unit of 0 bytes; expected 1 or more"};
    um::hooks::unit_bytes.store(unit, std::memory_order_relaxed);
    um::hooks::limit_bytes.store(limit, std::memory_order_relaxed);
  });
}
