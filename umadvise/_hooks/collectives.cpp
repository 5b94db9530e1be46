// Collectives, sends and receives return at once, and then threads of the process group (gloo) or its own streams
// (NCCL) use the addresses of their tensors. So all tensors of a c10d op are exported, which pins them, resident and
// writable, from before the op begins until its work has ended.
//
// This is done in kernels above those of the backends, at the key BackendSelect: no op of c10d uses it, and torch keeps
// it when Python runs an op (a DTensor that is redistributed), which the interposer does not see.
#include "collectives.h"

#if __has_include(<torch/csrc/distributed/c10d/Work.hpp>)

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "accesses.h"
#include "errors.h"
#include "interposer.h"
#include "remedies.h"
#include "storage_exports.h"

namespace um::hooks {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

constexpr DispatchKey kCollectivesKey = DispatchKey::BackendSelect;
constexpr DispatchKeySet kBelowCollectives{DispatchKeySet::FULL_AFTER, kCollectivesKey};

using SharedExports = std::shared_ptr<StorageExports>;

// Returns nullptr if the work cannot notify when it ends, such as gloo's sends and receives.
FuturePtr future_of(c10d::Work& work) {
  try {
    return work.getFuture();
  } catch (const c10::Error&) {
    return {};
  }
}

// The work that is running: `notifying_` reports its end, and `polled_` must be asked.
class Going {
 public:
  void follow(const WorkPtr& work, const SharedExports& exports) {
    const FuturePtr future = future_of(*work);
    {
      const std::lock_guard<std::mutex> lock(lock_);
      if (future) notifying_.push_back(future);
      if (!future) polled_.emplace_back(work, exports);
      polled_count_ = polled_.size();
    }
    if (!future) return;
    future->addCallback([this, exports](c10::ivalue::Future& ended) {
      if (!interposes()) um_hooks_beside(1);  // the rest of this thread's callback may be the user's code
      static_cast<void>(guarded([&] { exports->note_current_streams(); }));
      exports->end();
      const std::lock_guard<std::mutex> lock(lock_);
      ++ended_work;
      const auto is_it = [&](const FuturePtr& each) { return each.get() == &ended; };
      notifying_.erase(std::remove_if(notifying_.begin(), notifying_.end(), is_it), notifying_.end());
      some_ended_.notify_all();
    });
  }

  // Forgets polled work that has completed, or that its user has dropped.
  void ask() {
    if (polled_count_.load(std::memory_order_relaxed) == 0) return;
    std::vector<std::pair<WorkPtr, SharedExports>> ended;  // destroyed after the lock is released
    const std::lock_guard<std::mutex> lock(lock_);
    const auto goes_on = [](const auto& each) { return !each.first->isCompleted() && each.first.use_count() > 1; };
    const auto first = std::stable_partition(polled_.begin(), polled_.end(), goes_on);
    std::move(first, polled_.end(), std::back_inserter(ended));
    polled_.erase(first, polled_.end());
    polled_count_ = polled_.size();
  }

  // Waits until all notifying work that runs now has ended.
  bool wait() {
    std::unique_lock<std::mutex> lock(lock_);
    const std::vector<FuturePtr> all = notifying_;
    const auto goes_on = [&](const FuturePtr& each) {
      return std::find(notifying_.begin(), notifying_.end(), each) != notifying_.end();
    };
    some_ended_.wait(lock, [&] { return std::none_of(all.begin(), all.end(), goes_on); });
    return !all.empty();
  }

 private:
  std::mutex lock_;
  std::condition_variable some_ended_;
  std::vector<FuturePtr> notifying_;
  std::vector<std::pair<WorkPtr, SharedExports>> polled_;
  std::atomic<size_t> polled_count_{0};
};

Going& going() {
  static auto* const all = new Going;  // threads of process groups may outlive static objects
  return *all;
}

// Returns whether the guard pins the tensor until the running op has ended, because it lies in chunks.
bool is_held_by_op(const c10::TensorImpl& tensor) {
  um_allocation found{};
  return inside_op() && um_allocation_at(address_of(*storage_of_ours(tensor)), &found) == UM_OK &&
         found.memory == UM_MEMORY_CHUNKED;
}

// Returns false if some tensors do not fit; the others remain pinned until the op has ended.
bool take_all(const c10::OperatorHandle& op, const torch::jit::Stack& stack, StorageExports& exports) {
  bool all = true;
  const auto take = [&](const c10::TensorImpl& tensor) {
    const um_status status = request_with_remedies({kCollectiveOperand, nullptr}, [&] { return exports.add(tensor); });
    if (status == UM_OUT_OF_DEVICE_MEMORY && is_held_by_op(tensor)) {
      all = false;
    } else {
      throw_as_torch(status, um_hooks_last_error);
    }
  };
  const size_t count = op.schema().arguments().size();
  for (size_t index = stack.size() - count; index < stack.size(); ++index) each_tensor(stack[index], take);
  return all;
}

void hold(const c10::OperatorHandle& op, DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto exports = std::make_shared<StorageExports>();
  const bool all = take_all(op, *stack, *exports);
  op.redispatchBoxed(keys & kBelowCollectives, stack);
  if ((exports->empty() && all) || !stack->back().isObject()) return;
  const WorkPtr work = stack->back().toCustomClass<c10d::Work>();
  if (!all) work->wait();
  if (!exports->empty()) going().follow(work, exports);
}

}  // namespace

void hold_for_collectives() {
  static const auto* const registrations = [] {
    auto* const all = new std::vector<c10::RegistrationHandleRAII>;
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findSchema(name);
      if (name.name.rfind("c10d::", 0) != 0 || !op || op->schema().returns().empty()) continue;
      if (op->schema().returns().back().type()->kind() != c10::TypeKind::ClassType) continue;  // it returns no work
      all->push_back(dispatcher.registerImpl(name, kCollectivesKey, c10::KernelFunction::makeFromBoxedFunction<&hold>(),
                                             std::nullopt, nullptr, "umadvise"));
    }
    return all;
  }();
  static_cast<void>(registrations);
}

void ask_for_ended_work() { going().ask(); }
bool wait_for_work() { return going().wait(); }

}  // namespace um::hooks

#else  // a torch without torch.distributed

namespace um::hooks {
void hold_for_collectives() {}
void ask_for_ended_work() {}
bool wait_for_work() { return false; }
}  // namespace um::hooks

#endif
