#include "tangents.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/variable.h>

namespace um::hooks {

// A view's tangent is made from that of its base when it is requested.
const c10::TensorImpl* tangent_of(const c10::TensorImpl& tensor) {
  const auto* const own = static_cast<const torch::autograd::AutogradMeta*>(tensor.autograd_meta());
  if (own == nullptr || (own->fw_grad_ == nullptr && !own->is_view_)) return nullptr;
  constexpr uint64_t kOnlyLevel = 0;  // torch has only this level
  if (torch::autograd::ForwardADLevel::try_get_by_idx(kOnlyLevel) == nullptr) return nullptr;
  const at::Tensor self(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<c10::TensorImpl*>(&tensor)));
  const at::Tensor& found = self._fw_grad(kOnlyLevel);
  return found.defined() ? found.unsafeGetTensorImpl() : nullptr;
}

}  // namespace um::hooks
