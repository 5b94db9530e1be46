// From an operator's arguments to the bytes of ours that it touches.
#pragma once

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/stack.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include "operator_info.h"
#include "umadvise.h"

namespace um::hooks {

using AccessList = c10::SmallVector<um_access, 12>;
using AddressList = c10::SmallVector<const void*, 8>;

// The storage's first byte; null for tensors without one (undefined, sparse, opaque, meta). Asked without torch's
// checks, which throw for fake tensors.
inline const char* storage_address(const c10::TensorImpl& tensor) {
  if (!tensor.has_storage()) return nullptr;
  c10::StorageImpl& storage = *tensor.unsafe_storage().unsafeGetStorageImpl();
  return static_cast<const char*>(storage._mutable_data_ptr_no_checks().get());
}

// Bytes from the first to the last element that a view of strides can reach.
inline uint64_t span_bytes(const c10::TensorImpl& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return static_cast<uint64_t>(tensor.numel()) * tensor.itemsize();
  int64_t last = 0;
  for (int64_t dimension = 0; dimension < tensor.dim(); ++dimension) {
    last += (tensor.size(dimension) - 1) * tensor.stride(dimension);
  }
  return static_cast<uint64_t>(last + 1) * tensor.itemsize();
}

// `index`: the argument's in the schema.
inline void add_access(const c10::TensorImpl& tensor, bool write, bool whole_storage, uint32_t index,
                       AccessList& accesses) {
  const char* const storage = storage_address(tensor);
  if (storage == nullptr || um_owns(storage) == 0) return;
  if (whole_storage || tensor.is_nested()) {  // a nested tensor's sizes are a tensor of their own
    accesses.push_back({storage, tensor.unsafe_storage().nbytes(), write, 2 * index + 1});
  } else if (tensor.numel() != 0) {
    const char* const first = storage + tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
    const uint64_t bytes = span_bytes(tensor);
    const bool has_gaps = bytes != static_cast<uint64_t>(tensor.numel()) * tensor.itemsize();
    accesses.push_back({first, bytes, write, 2 * index + has_gaps});
  }
}

// Calls `visit(const c10::TensorImpl&)` for the tensors that have a tensor's bytes: itself, or what it consists of
// where it is sparse. A wrapper of a sparse tensor has its layout, but is none.
template <class Visit>
void each_part(const c10::TensorImpl& tensor, const Visit& visit) {
  const auto visit_all = [&](const auto&... parts) { (visit(*parts.unsafeGetTensorImpl()), ...); };
  if (tensor.is_sparse()) {
    if (const auto* found = dynamic_cast<const at::SparseTensorImpl*>(&tensor)) {
      visit_all(found->indices(), found->values());
    }
  } else if (tensor.is_sparse_compressed()) {
    if (const auto* found = dynamic_cast<const at::SparseCsrTensorImpl*>(&tensor)) {
      visit_all(found->compressed_indices(), found->plain_indices(), found->values());
    }
  } else {
    visit(tensor);
  }
}

// Calls `visit(const c10::TensorImpl&)` for the tensors in a value: one, none, or those of a list, or of a list of
// lists.
template <class Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    each_part(*value.unsafeToTensorImpl(), visit);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) each_tensor(element, visit);
  }
}

// Calls `visit` for the tensors that an operator is given.
template <class Visit>
void each_operand(const OperatorInfo& info, const torch::jit::Stack& stack, Visit&& visit) {
  const c10::IValue* const arguments = stack.data() + (stack.size() - info.argument_count);
  for (const TensorArgument& argument : info.tensors) each_tensor(arguments[argument.index], visit);
}

// Torch's fallback for conjugated and negated views copies a tensor also where only its shape is asked for.
inline bool is_copied_first(const c10::TensorImpl& tensor) {
  return tensor.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}));
}

// In the order of the schema; what is copied first comes last.
inline void gather_accesses(const OperatorInfo& info, const torch::jit::Stack& stack, AccessList& accesses) {
  const c10::IValue* const arguments = stack.data() + (stack.size() - info.argument_count);
  for (const TensorArgument& argument : info.tensors) {
    const bool write = argument.write == Write::always ||
                       (argument.write == Write::when_training && arguments[info.training_argument].toBool());
    each_tensor(arguments[argument.index], [&](const c10::TensorImpl& tensor) {
      add_access(tensor, write, argument.whole_storage, argument.index, accesses);
    });
  }
  for (const uint32_t index : info.shapes) {
    each_tensor(arguments[index], [&](const c10::TensorImpl& tensor) {
      if (is_copied_first(tensor)) add_access(tensor, false, false, index, accesses);
    });
  }
}

inline void gather_outputs(const OperatorInfo& info, const torch::jit::Stack& stack, AddressList& outputs) {
  const c10::IValue* const results = stack.data() + (stack.size() - info.return_count);
  for (uint32_t index = 0; index < info.return_count; ++index) {
    each_tensor(results[index], [&](const c10::TensorImpl& tensor) {
      if (const char* const storage = storage_address(tensor); storage != nullptr) outputs.push_back(storage);
    });
  }
}

}  // namespace um::hooks
