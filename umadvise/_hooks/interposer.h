// The interposer (interposer.cpp).
#pragma once

#include <c10/util/ArrayRef.h>

#include "accesses.h"

namespace um::hooks {

// Returns whether this thread interposes and runs no op. Memory that torch allocates then is the CPU's, as with a GPU:
// the tensor of a Python number, or a storage into which a file is read.
bool interposing_outside_ops();
// Returns whether the guard sees ops of this thread, unless they are part of another op.
bool interposes();
// Returns whether an op of this thread runs that the guard has seen.
bool inside_op();

// While this object lives, the guard sees ops of this thread although one of its ops is beginning: the ops that a
// remedy runs for that op. Each has the flag (um_op_flag).
class OpsOfRemedy {
 public:
  explicit OpsOfRemedy(uint32_t flag);
  ~OpsOfRemedy();
  OpsOfRemedy(const OpsOfRemedy&) = delete;
  OpsOfRemedy& operator=(const OpsOfRemedy&) = delete;

 private:
  const uint32_t outer_flag_;
};

// An input of one run of a compiled region. `index` is its index among the arguments of the graph.
struct RegionInput {
  const c10::TensorImpl* tensor;
  uint32_t index;
  bool write;
};
struct RegionRun {
  uint32_t region;  // the region's interned name
  c10::ArrayRef<RegionInput> inputs;
  bool gradients;  // autograd may record it

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
// All ops of this thread between this call and `end_region` are one op. nullptr: this thread is not guarded, and there
// is nothing to end. Throws as torch does for a refused op.
um_device* begin_region(const RegionRun& run);
// Returns a status instead, with the message of um_hooks_last_error.
um_status try_region(const RegionRun& run, um_device*& device);
void end_region(um_device* device, const ShownList& outputs);

}  // namespace um::hooks
