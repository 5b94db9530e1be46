#include "boxed_kernel.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "dry_run.h"
#include "launch.h"
#include "operands.h"
#include "random.h"

namespace cuda_kernels {
namespace {

using c10::IValue;
using Stack = torch::jit::Stack;

// ---- what the CPU's kernel is given, and gives -----------------------------------------------------------------

void run_on_cpu(const c10::OperatorHandle& handle, Stack* stack) {
  handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

// Norms of bfloat16 and half: CUDA's kernels keep their statistics in float, the CPU's in what they are given.
bool computed_in_float(const c10::OperatorHandle& handle) {
  static const std::set<std::string> kNorms = {"aten::native_layer_norm", "aten::native_layer_norm_backward",
                                               "aten::native_group_norm", "aten::native_group_norm_backward",
                                               "aten::native_batch_norm_backward"};
  return kNorms.count(handle.schema().name()) != 0;
}

IValue in_float(const IValue& value) {
  return with_tensors(value, [](const at::Tensor& tensor) {
    return tensor.defined() && at::isReducedFloatingType(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
  });
}

IValue operand(const Op& op, size_t index, Aliases& aliases) {
  const IValue& given = op.arguments[index];
  if (op.random(index)) return generator_for_launch(given, op.device);
  if (given.isDevice()) return c10::Device(c10::kCPU);
  return with_tensors(given, [&](const at::Tensor& tensor) { return aliases.of(tensor); });
}

// A kernel's result goes where the caller expects it. The CPU gives no result that is not used, where CUDA gives memory
// without contents: a batch norm's statistics in evaluation, and the gradient of an input that needs none.
void deliver(const at::Tensor& computed, const at::Tensor& expected) {
  if (!expected.defined() || !computed.defined() || computed.numel() == 0) return;
  TORCH_CHECK(computed.sizes() == expected.sizes(), "the CPU's result is not of the shape that the dry run told");
  expected.copy_(computed);
}

void deliver(const IValue& computed, const IValue& expected) {
  if (expected.isTensor()) return deliver(computed.toTensor(), expected.toTensor());
  const std::vector<at::Tensor> from = computed.toTensorVector(), to = expected.toTensorVector();
  for (size_t i = 0; i < to.size(); ++i) deliver(from.at(i), to[i]);
}

// ---- launches --------------------------------------------------------------------------------------------------

// Without a dry run: the op gives nothing but its arguments, which are of the right size already.
bool works_in_place(const Op& op) {
  for (size_t i = 0; i < op.schema().returns().size(); ++i) {
    if (!argument_of(op.schema(), i)) return false;
  }
  bool sized = true;
  for (size_t i = 0; i < op.arguments.size(); ++i) {
    if (op.writes(i)) each_tensor(op.arguments[i], [&](const at::Tensor& out) { sized = sized && out.numel() > 0; });
  }
  return sized;
}

// `out=` tensors take the size that the dry run found.
void resize_outputs(const Op& op, const DryRun& run) {
  if (run.outcome != DryRun::told) return;
  for (size_t i = 0; i < op.arguments.size(); ++i) {
    if (!op.writes(i) || !op.arguments[i].isTensor()) continue;
    const at::Tensor& out = op.arguments[i].toTensor();
    const at::Tensor& found = run.arguments[i].toTensor();
    if (out.defined() && out.sizes() != found.sizes()) out.resize_(found.sizes());
  }
}

IValue allocated(const IValue& found, c10::Device device) {
  return with_tensors(found, [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device));
  });
}

Stack launch_on_cpu(const Op& op, const DryRun& run) {
  resize_outputs(op, run);
  Aliases aliases;
  Stack results;
  std::vector<std::pair<size_t, IValue>> made;
  const size_t count = op.schema().returns().size();
  for (size_t i = 0; i < count; ++i) {
    const std::optional<size_t> argument = argument_of(op.schema(), i);
    results.push_back(argument ? op.arguments[*argument] : allocated(run.results[i], op.device));
    if (argument) continue;
    made.emplace_back(i, with_tensors(results[i], [&](const at::Tensor& tensor) { return aliases.of(tensor); }));
  }
  Stack operands;
  for (size_t i = 0; i < op.arguments.size(); ++i) operands.push_back(operand(op, i, aliases));
  const auto kernel = [handle = op.handle, operands = std::move(operands), made = std::move(made)] {
    Stack stack = operands;
    if (computed_in_float(handle)) std::transform(stack.begin(), stack.end(), stack.begin(), in_float);
    run_on_cpu(handle, &stack);
    for (const auto& [result, expected] : made) deliver(stack[result], expected);
  };
  launch(op.device, op.name(), kernel);
  return results;
}

// ---- ops whose result only computing tells ---------------------------------------------------------------------

std::mutex waited_lock;
std::set<std::string> waited_ops;

// What the CPU made becomes the GPU's by a kernel that copies: memory is handed out in the order of the stream.
at::Tensor given_to(const at::Tensor& computed, const at::Tensor& target, const Op& op) {
  Aliases aliases;
  launch(op.device, op.name(), [computed, alias = aliases.of(target)] { alias.copy_(computed); });
  return target;
}

IValue moved_in(const IValue& computed, const Op& op) {
  return with_tensors(computed, [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    const auto options = tensor.options().device(op.device);
    return given_to(tensor, at::empty_strided(tensor.sizes(), tensor.strides(), options), op);
  });
}

Stack compute_now(const Op& op) {
  {
    const std::lock_guard<std::mutex> lock(waited_lock);
    waited_ops.insert(op.name());
  }
  current_stream(op.device).synchronize();
  Aliases aliases;
  Stack operands;
  std::vector<bool> resizes;
  for (size_t i = 0; i < op.arguments.size(); ++i) {
    const IValue& given = op.arguments[i];
    resizes.push_back(op.writes(i) && given.isTensor() && given.toTensor().defined() && given.toTensor().numel() == 0);
    operands.push_back(resizes[i] ? at::empty({0}, given.toTensor().options().device(c10::kCPU))
                                  : operand(op, i, aliases));
  }
  Stack stack = operands, results;
  run_on_cpu(op.handle, &stack);
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!resizes[i]) continue;
    const at::Tensor& computed = operands[i].toTensor();
    given_to(computed, op.arguments[i].toTensor().resize_(computed.sizes()), op);
  }
  for (size_t i = 0; i < stack.size(); ++i) {
    const std::optional<size_t> argument = argument_of(op.schema(), i);
    results.push_back(argument ? op.arguments[*argument] : moved_in(stack[i], op));
  }
  return results;
}

// Of these the CPU's kernel gives results of other shapes than CUDA's.
bool shaped_otherwise(const Op& op) {
  static const std::set<std::string> kNames = {"aten::_embedding_bag", "aten::_embedding_bag_forward_only"};
  return kNames.count(op.schema().name()) != 0;
}

// torch's own way across devices: copies by the runtime, and events between streams.
bool copies_across(const Op& op) {
  static const c10::OperatorName kCopy("aten::copy_", "");
  return op.handle.operator_name() == kCopy &&
         op.arguments[0].toTensor().device() != op.arguments[1].toTensor().device();
}

}  // namespace

void boxed_kernel(const c10::OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
  const c10::FunctionSchema& schema = handle.schema();
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(schema.arguments().size());
  Op op{handle, Stack(first, stack->end()), {c10::kCUDA, 0}};
  if (copies_across(op)) return run_on_cpu(handle, stack);  // where it is one kernel for all devices
  stack->erase(first, stack->end());
  op.device = device_of(schema, op.arguments);
  const c10::DeviceGuard guard(op.device);
  const KernelsOnly kernels_only;
  const DryRun run = dry_run(op);
  const bool launched =
      !shaped_otherwise(op) && (run.outcome == DryRun::told || (run.outcome == DryRun::absent && works_in_place(op)));
  const Stack results = launched ? launch_on_cpu(op, run) : compute_now(op);
  stack->insert(stack->end(), results.begin(), results.end());
}

std::string waited() {
  const std::lock_guard<std::mutex> lock(waited_lock);
  std::string names;
  for (const std::string& name : waited_ops) names += (names.empty() ? "" : ",") + name;
  return names;
}

}  // namespace cuda_kernels
