// Puts the kernels in place of torch's own for CUDA; tests/torch_cuda loads this library when torch is imported.
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <set>

#include "boxed_kernel.h"
#include "own_kernels.h"
#include "sparse.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using c10::DispatchKey;

// What torch does itself, without a kernel: allocation, metadata, a value's way to the host.
bool torch_does(const std::string& name, const c10::FunctionSchema& schema) {
  static const std::set<std::string> kOwn = {
      "aten::set_",
      "aten::resize_",
      "aten::empty",
      "aten::empty_strided",
      "aten::empty_like",
      "aten::is_set_to",
      "aten::record_stream",
      "aten::_local_scalar_dense",
      "aten::is_pinned",
      "aten::_pin_memory",
      "aten::_efficientzerotensor",
  };
  if (kOwn.count(name) != 0) return true;
  for (const c10::Argument& result : schema.returns()) {  // views
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

bool computed_by_cpu(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::CPU) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
}

// The dispatcher warns when kernels are replaced, which is what is meant here.
struct Silent : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

// How many ops have a kernel now.
EXPORT int cuda_kernels_install() {
  static auto* const library = new torch::Library(torch::Library::IMPL, "aten", DispatchKey::CUDA, __FILE__, __LINE__);
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  int count = cuda_kernels::register_own_kernels(*library) + cuda_kernels::register_sparse_kernels();
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = name.name.rfind("aten::", 0) == 0 ? dispatcher.findSchema(name) : std::nullopt;
    const bool copy = name == c10::OperatorName("aten::copy_", "");  // one kernel for all devices
    if (!op || (!copy && !op->hasKernelForDispatchKey(DispatchKey::CUDA)) || !computed_by_cpu(*op)) continue;
    if (torch_does(name.name, op->schema()) || cuda_kernels::own_kernel(name)) continue;
    const std::string symbol = toString(name).substr(sizeof("aten::") - 1);
    library->impl(symbol.c_str(), torch::CppFunction::makeFromBoxedFunction<&cuda_kernels::boxed_kernel>());
    ++count;
  }
  return count;
}

// The names live as long as the process.
EXPORT const char* cuda_kernels_waited() {
  static std::string names;
  names = cuda_kernels::waited();
  return names.c_str();
}
