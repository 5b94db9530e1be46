#include "operator_info.h"

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "hooks.h"
#include "umadvise.h"

namespace um::hooks {
namespace {

bool may_hold_tensors(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return true;
    case c10::TypeKind::OptionalType:
    case c10::TypeKind::ListType:
      return may_hold_tensors(*type.containedType(0));
    default:
      return false;
  }
}

bool any_may_hold_tensors(const std::vector<c10::Argument>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const c10::Argument& argument) { return may_hold_tensors(*argument.type()); });
}

bool returns_view(const c10::FunctionSchema& schema) {  // an alias that is not written
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

bool is_in(const c10::OperatorHandle& op, std::string_view library) {
  return op.operator_name().name.rfind(library, 0) == 0;
}

// Returns whether an operator's schema is complete about writes. torch's own kernels were searched for writes that
// their schemas omit (tools/find_silent_writes.py). Elsewhere a schema without aliases is no promise: it may have been
// written without thought, or inferred from a C++ function, as that of c10d::allreduce_. So other schemas need an
// alias, or the tag with which an author asserts that the schema is right, as torch.library.custom_op(mutates_args=...)
// sets it. A name that ends as those of writing ops do overrules the tag.
bool says_what_it_writes(const c10::OperatorHandle& op) {
  const auto annotated = [](const c10::Argument& argument) { return argument.alias_info() != nullptr; };
  const c10::FunctionSchema& schema = op.schema();
  return is_in(op, "aten::") || std::any_of(schema.arguments().begin(), schema.arguments().end(), annotated) ||
         std::any_of(schema.returns().begin(), schema.returns().end(), annotated) ||
         (op.hasTag(at::Tag::pt2_compliant_tag) && schema.name().back() != '_');
}

Kind kind_of(const c10::OperatorHandle& op) {
  const std::string_view name = op.operator_name().name;
  const c10::FunctionSchema& schema = op.schema();
  if (contains(kCreations, name)) return Kind::creation;
  if (contains(kResizes, name)) return Kind::operation;
  const bool has_tensors = any_may_hold_tensors(schema.arguments()) || any_may_hold_tensors(schema.returns());
  if (!has_tensors) return Kind::untouching;
  if (!is_in(op, "aten::")) return Kind::operation;  // an op that returns an alias may have read it first
  if (returns_view(schema) || op.hasTag(at::Tag::inplace_view)) return Kind::untouching;
  return contains(kUnannotatedBystanders, name) ? Kind::untouching : Kind::operation;
}

bool is_read_by_collective(std::string_view op, const c10::Argument& argument) {
  return contains(kReadingCollectives, op) || argument.name().rfind("input", 0) == 0;
}

Write write_of(std::string_view op, const c10::Argument& argument) {
  if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) return Write::always;
  for (const SilentWrite& silent : kSilentWrites) {
    if (silent.op == op && silent.argument == argument.name()) return silent.write;
  }
  return Write::never;
}

bool overwrites_operand(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite() && !argument.is_out();
  });
}

std::unique_ptr<OperatorInfo> derive(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  const c10::FunctionSchema& schema = op.schema();
  auto info = std::make_unique<OperatorInfo>();
  info->name = um_intern(c10::toString(op.operator_name()).c_str());
  info->kind = kind_of(op);
  const bool composite = op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
                         !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
                         !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
  info->composite_on_cpu = composite && !op.hasKernelForDispatchKey(DispatchKey::CPU);
  info->composite_on_cuda = composite && !op.hasKernelForDispatchKey(DispatchKey::CUDA);
  info->argument_count = static_cast<uint32_t>(schema.arguments().size());
  info->return_count = static_cast<uint32_t>(schema.returns().size());
  info->training_argument = 0;
  info->in_place = overwrites_operand(schema);
  info->split = split_rule(op);
  const bool believed = says_what_it_writes(op);
  for (uint32_t index = 0; index < info->argument_count; ++index) {
    const c10::Argument& argument = schema.arguments()[index];
    if (argument.name() == "training" || argument.name() == "train") info->training_argument = index;
    if (!may_hold_tensors(*argument.type())) continue;
    const bool resizes = contains(kResizes, op.operator_name().name);
    const bool reads_shape = index == 0 && contains(kShapeReaders, op.operator_name().name);
    if (info->kind == Kind::creation || reads_shape || (index == 1 && resizes)) {
      info->shapes.push_back(index);
      continue;
    }
    const std::string& name = op.operator_name().name;
    const bool only_reads = is_in(op, "c10d::") && is_read_by_collective(name, argument);
    const Write write = only_reads ? Write::never : believed ? write_of(name, argument) : Write::always;
    info->tensors.push_back({index, write, resizes});
  }
  return info;
}

// The key is the schema's address, which belongs to the operator until it is deregistered. A new `generation` then
// invalidates the threads' caches.
class Table {
 public:
  const OperatorInfo& find(const c10::OperatorHandle& op) {
    const std::lock_guard<std::mutex> lock(lock_);
    std::unique_ptr<OperatorInfo>& info = infos_[&op.schema()];
    if (info == nullptr) info = derive(op);
    return *info;
  }
  void forget(const c10::OperatorHandle& op) {
    const std::lock_guard<std::mutex> lock(lock_);
    infos_.erase(&op.schema());
    generation_.fetch_add(1, std::memory_order_release);
  }
  uint32_t generation() const { return generation_.load(std::memory_order_acquire); }

 private:
  std::mutex lock_;
  std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OperatorInfo>> infos_;
  std::atomic<uint32_t> generation_{1};
};

Table& table();

class Deregistrations final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    if (op.hasSchema()) table().forget(op);
  }
};

// The table and its listener are never destroyed, because ops may run while the process ends.
Table& table() {
  static auto* const infos = [] {
    static auto* const listening = new c10::RegistrationHandleRAII(
        c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Deregistrations>()));
    (void)listening;
    return new Table;
  }();
  return *infos;
}

struct CachedInfo {
  const c10::FunctionSchema* schema = nullptr;
  const OperatorInfo* info = nullptr;
};
constexpr int kCacheBits = 9;  // 512 entries; a training step uses under a hundred operators

size_t cache_index(const c10::FunctionSchema* schema) {  // Fibonacci hashing, because addresses share their low bits
  return (reinterpret_cast<uint64_t>(schema) * uint64_t{0x9E3779B97F4A7C15}) >> (64 - kCacheBits);
}

}  // namespace

const OperatorInfo& operator_info(const c10::OperatorHandle& op) {
  thread_local uint32_t generation = 0;
  thread_local std::array<CachedInfo, size_t{1} << kCacheBits> cache;
  if (const uint32_t now = table().generation(); generation != now) {
    cache.fill({});
    generation = now;
  }
  const c10::FunctionSchema* const schema = &op.schema();
  CachedInfo& cached = cache[cache_index(schema)];
  if (cached.schema != schema) cached = {schema, &table().find(op)};
  return *cached.info;
}

}  // namespace um::hooks

const char* um_hooks_operator(const char* name, const char* overload) {
  using um::hooks::OperatorInfo, um::hooks::TensorArgument;
  constexpr std::array<const char*, 3> kKinds = {"untouching", "creation", "operation"};
  constexpr std::array<const char*, 3> kWrites = {"read", "when_training", "write"};
  thread_local std::string text;
  const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!op) return nullptr;
  const OperatorInfo& info = um::hooks::operator_info(*op);
  std::vector<std::string> arguments(info.argument_count, "nothing");
  for (const uint32_t index : info.shapes) arguments[index] = "shape";
  for (const TensorArgument& each : info.tensors) arguments[each.index] = kWrites[static_cast<size_t>(each.write)];
  text = kKinds[static_cast<size_t>(info.kind)];
  if (info.composite_on_cpu) text += " cpu";
  if (info.composite_on_cuda) text += " cuda";
  for (const std::string& each : arguments) text += ": " + each;
  return text.c_str();
}
