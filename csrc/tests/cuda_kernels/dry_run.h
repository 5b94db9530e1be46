// What an op gives, without its work: the op on the device "meta", whose tensors have no bytes.
#pragma once

#include "op.h"

namespace cuda_kernels {

struct DryRun {
  enum {
    told,
    untold,
    absent
  } outcome = told;  // untold: it depends on values; absent: torch has no dry run of this op
  torch::jit::Stack arguments, results;
};

DryRun dry_run(const Op& op);

}  // namespace cuda_kernels
