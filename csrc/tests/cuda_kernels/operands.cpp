#include "operands.h"

namespace cuda_kernels {
namespace {

at::Tensor twin(const at::Tensor& tensor, c10::Storage storage, c10::DispatchKey key) {
  at::Tensor made =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), tensor.dtype());
  c10::TensorImpl* const impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (tensor.is_conj()) impl->_set_conj(true);
  if (tensor.is_neg()) impl->_set_neg(true);
  return made;
}

c10::Storage storage_at(void* address, size_t bytes, c10::DeviceType device) {
  return {c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(address, c10::Device(device)), nullptr, false};
}

}  // namespace

at::Tensor Aliases::of(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (!tensor.is_cuda()) {
    at::Tensor copied = tensor.clone();
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) copied.unsafeGetTensorImpl()->set_wrapped_number(true);
    return copied;
  }
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  auto found = storages_.find(storage);
  if (found == storages_.end()) {
    const c10::Storage made = storage_at(storage->mutable_data(), storage->nbytes(), c10::kCPU);
    found = storages_.emplace(storage, made).first;
  }
  return twin(tensor, found->second, c10::DispatchKey::CPU);
}

at::Tensor without_bytes(const at::Tensor& tensor) {
  if (!tensor.defined() || (tensor.is_cpu() && tensor.dim() == 0)) return tensor;
  return twin(tensor, storage_at(nullptr, 0, c10::kMeta), c10::DispatchKey::Meta);
}

}  // namespace cuda_kernels
