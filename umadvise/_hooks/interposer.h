// The interposer: see interposer.cpp.
#pragma once

#include <c10/util/ArrayRef.h>

#include "accesses.h"

namespace um::hooks {

// True while this thread interposes and runs no op. Memory that torch makes then is the CPU's own, as it is with a GPU:
// the tensor that stands for a Python number, a storage that a file is read into.
bool interposing_outside_ops();
// Whether the guard sees ops of this thread, unless they are part of another one.
bool interposes();
// Whether an op of this thread's runs that the guard has seen.
bool inside_op();

// While it lives, ops of this thread are seen although one of its ops is beginning: those that a remedy runs for that
// op. Each carries the flag (um_op_flag).
class OpsOfRemedy {
 public:
  explicit OpsOfRemedy(uint32_t flag);
  ~OpsOfRemedy();
  OpsOfRemedy(const OpsOfRemedy&) = delete;
  OpsOfRemedy& operator=(const OpsOfRemedy&) = delete;

 private:
  const uint32_t outer_flag_;
};

// What a compiled region is given in one run; `index`: among what its graph is called with.
struct RegionInput {
  const c10::TensorImpl* tensor;
  uint32_t index;
  bool write;
};
struct RegionRun {
  uint32_t region;  // its name, interned
  c10::ArrayRef<RegionInput> inputs;
  bool gradients;  // autograd may take note of it

  uint32_t name() const { return region; }
  static bool creates() { return false; }
  bool records_gradients() const { return gradients; }
  void gather(AccessList& accesses) const {
    for (const RegionInput& input : inputs) add_access(*input.tensor, input.write, false, input.index, accesses);
  }
  template <class Visit>
  void each(const Visit& visit) const {
    for (const RegionInput& input : inputs) visit(*input.tensor);
  }
};
// From here to `end_region` everything in this thread belongs to one op. nullptr: nobody guards it, and nothing is to
// end. Throws what torch throws for an op that is refused.
um_device* begin_region(const RegionRun& run);
// The same with a status, and um_hooks_last_error's message.
um_status try_region(const RegionRun& run, um_device*& device);
void end_region(um_device* device, const ShownList& outputs);

}  // namespace um::hooks
