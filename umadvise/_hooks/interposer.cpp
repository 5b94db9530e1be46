// The interposer: a boxed fallback above all other keys of the dispatcher, which encloses every op in um_op_begin and
// um_op_end.
//
// One op is the first operator that is not merely a sequence of other operators. Composite operators, and calls that a
// mode above autograd will repeat (autocast, functorch), pass through with the key still included, so that their inner
// operators arrive here themselves. Everything inside of an op belongs to it, including what a handler of a Python mode
// or subclass runs, and what saved-tensor hooks run.
#include "interposer.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "accesses.h"
#include "backward.h"
#include "collectives.h"
#include "cuda_allocator.h"
#include "errors.h"
#include "fallbacks.h"
#include "hooks.h"
#include "nested_results.h"
#include "operator_info.h"
#include "remedies.h"
#include "split.h"

namespace um::hooks {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// No key is reserved for third parties. This is the only mode key that torch never includes, and for which it registers
// no kernel. It is above every key that changes the meaning of an op, and torch propagates it to autograd's threads.
constexpr DispatchKey kInterposerKey = DispatchKey::TESTING_ONLY_GenericMode;
constexpr DispatchKeySet kBelowInterposer{DispatchKeySet::FULL_AFTER, kInterposerKey};

// A kernel of one of these keys calls the op again through the dispatcher, from the top.
constexpr DispatchKeySet kReentering =
    c10::autocast_dispatch_keyset | c10::functorch_transforms_ks |
    DispatchKeySet({DispatchKey::FuncTorchDynamicLayerFrontMode, DispatchKey::FuncTorchDynamicLayerBackMode,
                    DispatchKey::Functionalize});

// Autograd decomposes composite operators. Without it (inference mode) they arrive at a Python mode or tensor subclass
// as a whole, and the ops that its handler calls are not seen here, because torch excludes all keys above Python for
// it.
bool comes_apart(const OperatorInfo& info, DispatchKeySet keys) {
  return info.composite(keys) && (!keys.has(DispatchKey::Python) || keys.has_any(c10::autograd_dispatch_keyset));
}

// A view of a tensor that consists of others may access them: a DTensor may be redistributed for it.
bool is_given_wrappers(const OperatorInfo& info, const torch::jit::Stack& stack) {
  const c10::IValue* const arguments = stack.data() + (stack.size() - info.argument_count);
  return std::any_of(arguments, arguments + info.argument_count, [](const c10::IValue& value) {
    return value.isTensor() && is_wrapper(*value.unsafeToTensorImpl());
  });
}

// There is one device for the process, because autograd's threads work for any thread that interposes.
std::atomic<um_device*> interposed_device{nullptr};
std::mutex interposing_lock;
std::atomic<int> interposing_threads{0};

class Membership {  // of a thread in the set of threads that interpose
 public:
  ~Membership() { leave(); }  // the thread may end while it interposes
  void join(um_device* device) {
    const std::lock_guard<std::mutex> lock(interposing_lock);
    const int others = interposing_threads - counted_;
    if (others > 0 && interposed_device != device) {
      throw CoreError{UM_BAD_STATE, "another thread's session uses another device; one device at a time"};
    }
    interposed_device = device;
    interposing_threads = others + 1;
    counted_ = true;
  }
  void leave() {
    const std::lock_guard<std::mutex> lock(interposing_lock);
    if (counted_ && --interposing_threads == 0) forget_forward_modules();  // a process may open many sessions
    counted_ = false;
  }
  bool counted() const { return counted_; }

 private:
  bool counted_ = false;
};
thread_local Membership membership;

thread_local uint32_t thread_phase = UM_PHASE_NONE;
thread_local bool beside = false;       // this thread works beside threads that interpose
thread_local uint32_t remedy_flag = 0;  // the flag of ops that a remedy runs now

// The thread whose ops belong to the steps; 0: the ops of all threads that interpose do.
std::atomic<uint64_t> followed_thread{0};

class Followed {  // a thread that is followed, and may end meanwhile
 public:
  ~Followed() { end(); }
  void begin() { followed_thread = token(); }
  void end() {
    uint64_t own = token();
    followed_thread.compare_exchange_strong(own, 0);
  }
  uint64_t token() const { return reinterpret_cast<uint64_t>(this); }
};
thread_local Followed followed;

// Returns whether this thread's ops belong to no step. Autograd's own threads work for the followed thread.
bool is_beside() {
  const uint64_t thread = followed_thread.load(std::memory_order_relaxed);
  if (thread == 0) return beside;
  return (beside || membership.counted()) && thread != followed.token();
}

struct OpDescription {
  uint32_t op, phase, module, flags;  // names are interned
};

// A call of an operator, as describe() reads it.
struct Call {
  const OperatorInfo& info;
  const torch::jit::Stack& stack;

  uint32_t name() const { return info.name; }
  bool creates() const { return info.kind == Kind::creation; }
  static bool records_gradients() { return c10::GradMode::is_enabled(); }
  void gather(AccessList& accesses) const { gather_accesses(info, stack, accesses); }
  template <class Visit>
  void each(const Visit& visit) const {
    each_operand(info, stack, visit);
  }
};

// Returns whether autograd records an op outside of modules. This is only needed while steps are searched for.
template <class Op>
bool is_differentiated(const Op& op) {
  if (tell_of_edge.load(std::memory_order_relaxed) == nullptr) return false;
  if (forward_module() != 0 || !op.records_gradients()) return false;
  bool found = false;
  op.each([&](const c10::TensorImpl& tensor) { found = found || tensor.requires_grad(); });
  return found;
}

template <class Op>
OpDescription describe(const Op& op) {
  uint32_t flags = remedy_flag | (op.creates() ? UM_OP_CREATES : 0);
  if (is_beside()) flags |= UM_OP_BESIDE;
  if (is_differentiated(op)) flags |= UM_OP_DIFFERENTIATED;
  if (thread_phase != UM_PHASE_OPTIMIZER) {
    if (const BackwardNode node = current_backward_node(); node.running) {
      return {op.name(), UM_PHASE_BACKWARD, node.module, flags};
    }
  }
  return {op.name(), thread_phase, forward_module(), flags};
}

template <class Op>
void begin_or_throw(um_device* device, const Op& what, AccessList& accesses) {
  OpDescription op = describe(what);
  throw_as_torch(guarded([] { announce_stream(); }), um_hooks_last_error);
  begin_without_refusals();
  const auto begin = [&] {
    const um_status status =
        um_op_begin_gathered(device, op.op, op.phase, op.module, op.flags, &AccessList::locate, &accesses);
    op.flags |= UM_OP_RETRIED;
    return status;
  };
  throw_as_torch(request_with_remedies({kOpBegin, device}, begin), um_hooks_last_error);
}

// An op that has begun. Its destructor calls um_op_end, also if the kernel throws.
class RunningOp {
 public:
  RunningOp(um_device* device, NestedResults& nested) : device_(device), nested_(nested) {}
  ~RunningOp() { nested_.end(um_op_end(device_, outputs.data(), static_cast<uint32_t>(outputs.size()))); }
  RunningOp(const RunningOp&) = delete;
  RunningOp& operator=(const RunningOp&) = delete;

  ShownList outputs;

 private:
  um_device* device_;
  NestedResults& nested_;
};

void run_op(const c10::OperatorHandle& op, DispatchKeySet below, torch::jit::Stack* stack, const OperatorInfo& info) {
  ask_for_ended_work();
  const Call call{info, *stack};
  AccessList accesses;
  call.gather(accesses);
  if (accesses.empty() && um_route_device() == nullptr) return op.redispatchBoxed(below, stack);

  um_device* const device = interposed_device.load(std::memory_order_relaxed);
  begin_or_throw(device, call, accesses);
  NestedResults nested(info, *stack);
  RunningOp running(device, nested);
  op.redispatchBoxed(below, stack);
  end_despite_refusals(call.name());
  gather_outputs(info, *stack, running.outputs);
  nested.append_to(running.outputs, accesses);
}

void interpose(const c10::OperatorHandle& op, DispatchKeySet keys, torch::jit::Stack* stack) {
  const DispatchKeySet below = keys & kBelowInterposer;
  if (keys.has_any(kReentering)) return op.redispatchBoxed(below, stack);
  if (beside && interposing_threads.load(std::memory_order_relaxed) == 0) return op.redispatchBoxed(below, stack);
  const OperatorInfo& info = operator_info(op);
  if (comes_apart(info, keys)) return op.redispatchBoxed(below, stack);
  const c10::impl::ExcludeDispatchKeyGuard inside_an_op(kInterposerKey);
  if (info.kind == Kind::untouching && !(keys.has(DispatchKey::Python) && is_given_wrappers(info, *stack))) {
    return op.redispatchBoxed(below, stack);
  }
  if (info.split.by_element) {
    const auto run = [&](DispatchKeySet part_keys, torch::jit::Stack* part) { run_op(op, part_keys, part, info); };
    um_device* const device = interposed_device.load(std::memory_order_relaxed);
    if (run_in_parts(device, op, below, stack, info, run)) return;
  }
  run_op(op, below, stack, info);
}

// The fallback is registered for the life of the process. It is not called for threads whose key set lacks the key.
void register_fallback() {
  static auto* const registration = new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
      kInterposerKey, c10::KernelFunction::makeFromBoxedFunction<&interpose>(), "umadvise interposer"));
  (void)registration;
}

void interpose_thread(um_device* device) {
  if (device != nullptr) {
    register_fallback();
    register_nested_fallback();
    hold_for_collectives();
    membership.join(device);
  } else {
    membership.leave();
  }
  beside = false;
  c10::impl::tls_set_dispatch_key_included(kInterposerKey, device != nullptr);
}

void work_beside(bool on) {
  if (membership.counted()) return;
  register_fallback();
  register_nested_fallback();
  beside = on;
  c10::impl::tls_set_dispatch_key_included(kInterposerKey, on);
}

}  // namespace

OpsOfRemedy::OpsOfRemedy(uint32_t flag) : outer_flag_(std::exchange(remedy_flag, flag)) {
  c10::impl::tls_set_dispatch_key_excluded(kInterposerKey, false);
}
OpsOfRemedy::~OpsOfRemedy() {
  c10::impl::tls_set_dispatch_key_excluded(kInterposerKey, true);
  remedy_flag = outer_flag_;
}

bool interposes() { return c10::impl::tls_local_dispatch_key_set().included_.has(kInterposerKey); }
bool inside_op() { return interposes() && c10::impl::tls_local_dispatch_key_set().excluded_.has(kInterposerKey); }
bool interposing_outside_ops() { return interposes() && !inside_op(); }

um_device* begin_region(const RegionRun& run) {
  if (!interposing_outside_ops()) return nullptr;  // it is part of the running op, or this thread is not guarded
  if (beside && interposing_threads.load(std::memory_order_relaxed) == 0) return nullptr;
  AccessList accesses;
  run.gather(accesses);
  if (accesses.empty() && um_route_device() == nullptr) return nullptr;
  um_device* const device = interposed_device.load(std::memory_order_relaxed);
  c10::impl::tls_set_dispatch_key_excluded(kInterposerKey, true);
  try {
    begin_or_throw(device, run, accesses);
  } catch (...) {
    c10::impl::tls_set_dispatch_key_excluded(kInterposerKey, false);
    throw;
  }
  return device;
}

um_status try_region(const RegionRun& run, um_device*& device) {
  um_status status = UM_OK;
  const um_status failed = guarded([&] {
    try {
      device = begin_region(run);
    } catch (const c10::OutOfMemoryError& error) {
      last_error = error.what_without_backtrace();
      status = UM_OUT_OF_DEVICE_MEMORY;
    }
  });
  return failed != UM_OK ? failed : status;
}

void end_region(um_device* device, const ShownList& outputs) {
  um_op_end(device, outputs.data(), static_cast<uint32_t>(outputs.size()));
  c10::impl::tls_set_dispatch_key_excluded(kInterposerKey, false);
}

}  // namespace um::hooks

um_status um_hooks_interpose(um_device* device) {
  return um::hooks::guarded([&] { um::hooks::interpose_thread(device); });
}

void um_hooks_beside(int32_t on) {
  static_cast<void>(um::hooks::guarded([&] { um::hooks::work_beside(on != 0); }));
}

int32_t um_hooks_follow(int32_t on) {
  using namespace um::hooks;
  if (on != 0 && beside) {
    followed.begin();
    return 1;
  }
  if (on != 0 && !membership.counted()) return 0;
  followed_thread = 0;
  return 1;
}

void um_hooks_phase_set(uint32_t phase) { um::hooks::thread_phase = phase; }
