#include "dry_run.h"

#include "operands.h"

namespace cuda_kernels {

DryRun dry_run(const Op& op) {
  DryRun run;
  for (size_t i = 0; i < op.arguments.size(); ++i) {
    const c10::IValue& given = op.arguments[i];
    run.arguments.push_back(op.random(i)       ? c10::IValue()
                            : given.isDevice() ? c10::IValue(c10::Device(c10::kMeta))
                                               : with_tensors(given, without_bytes));
  }
  run.results = run.arguments;
  try {
    op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &run.results);
  } catch (const c10::NotImplementedError&) {
    run.outcome = DryRun::absent;
    return run;
  } catch (const std::exception&) {
    run.outcome = DryRun::untold;  // it depends on values, or it is an error that the CPU's kernel words
    return run;
  }
  for (size_t i = 0; i < run.results.size(); ++i) {
    const bool tensors = run.results[i].isTensor() || run.results[i].isTensorList();
    if (!tensors && !argument_of(op.schema(), i)) run.outcome = DryRun::untold;
  }
  return run;
}

}  // namespace cuda_kernels
