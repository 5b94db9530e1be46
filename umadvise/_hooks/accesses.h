// Derives from an operator's arguments which of our memory it accesses.
#pragma once

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/stack.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <algorithm>

#include "operator_info.h"
#include "tangents.h"
#include "umadvise.h"
#include "wrappers.h"

namespace um::hooks {

using ShownList = c10::SmallVector<um_shown, 8>;

// Returns the address of a storage's first byte; nullptr for a meta storage. It bypasses torch's checks, which throw
// for fake tensors.
inline const char* address_of(c10::StorageImpl& storage) {
  return static_cast<const char*>(storage._mutable_data_ptr_no_checks().get());
}

// Returns nullptr for tensors without storage (undefined, sparse, opaque), and for those in memory that is not ours.
// Until the device's lock is held, another thread's allocation may move the bytes, but only to other memory of ours.
inline c10::StorageImpl* storage_of_ours(const c10::TensorImpl& tensor) {
  if (!tensor.has_storage()) return nullptr;
  c10::StorageImpl* const storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  return um_owns(address_of(*storage)) != 0 ? storage : nullptr;
}

// Returns the owner that the core gets for a storage; nullptr: its address must not change. Torch keeps the addresses
// of small tensors of indices from op to op (packed sequences, the buckets of DistributedDataParallel).
inline void* owner_of(const c10::TensorImpl& tensor, c10::StorageImpl* storage) {
  constexpr size_t kLeastBytes = size_t{1} << 16;
  const bool has_indices = c10::isIntegralType(c10::typeMetaToScalarType(tensor.dtype()), true);
  return has_indices && storage->nbytes() < kLeastBytes ? nullptr : storage;
}

// The accesses of an op. Until the device's lock is held only the offset of each range in its storage is known, because
// another thread's allocation may move storages.
class AccessList {
 public:
  bool empty() const { return accesses_.empty(); }
  void clear() {
    accesses_.clear();
    places_.clear();
  }
  void add(c10::StorageImpl* storage, uint64_t offset, const um_access& access) {
    accesses_.push_back(access);
    places_.push_back({storage, offset});
  }
  bool has(const c10::StorageImpl* storage) const {
    return std::any_of(places_.begin(), places_.end(), [&](const Place& each) { return each.storage == storage; });
  }
  // Fills in the addresses, with the lock held (um_gather).
  static void locate(void* list, const um_access** accesses, uint32_t* count) noexcept {
    auto& self = *static_cast<AccessList*>(list);
    for (size_t i = 0; i < self.places_.size(); ++i) {
      self.accesses_[i].address = address_of(*self.places_[i].storage) + self.places_[i].offset;
    }
    *accesses = self.accesses_.data();
    *count = static_cast<uint32_t>(self.accesses_.size());
  }

 private:
  struct Place {
    c10::StorageImpl* storage;
    uint64_t offset;
  };
  c10::SmallVector<um_access, 12> accesses_;
  c10::SmallVector<Place, 12> places_;
};

// Returns the bytes from the first to the last element that a strided view can reach.
inline uint64_t span_bytes(const c10::TensorImpl& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return static_cast<uint64_t>(tensor.numel()) * tensor.itemsize();
  int64_t last = 0;
  for (int64_t dimension = 0; dimension < tensor.dim(); ++dimension) {
    last += (tensor.size(dimension) - 1) * tensor.stride(dimension);
  }
  return static_cast<uint64_t>(last + 1) * tensor.itemsize();
}

// `index` is the argument's index in the schema.
inline void add_access(const c10::TensorImpl& tensor, bool write, bool whole_storage, uint32_t index,
                       AccessList& accesses) {
  c10::StorageImpl* const storage = storage_of_ours(tensor);
  if (storage == nullptr) return;
  if (whole_storage || tensor.is_nested()) {  // a nested tensor's sizes are a tensor of their own
    accesses.add(storage, 0, {nullptr, storage->nbytes(), write, 2 * index + 1, owner_of(tensor, storage)});
  } else if (tensor.numel() != 0) {
    const uint64_t offset = static_cast<uint64_t>(tensor.storage_offset()) * tensor.itemsize();
    const uint64_t bytes = span_bytes(tensor);
    const bool has_gaps = bytes != static_cast<uint64_t>(tensor.numel()) * tensor.itemsize();
    accesses.add(storage, offset, {nullptr, bytes, write, 2 * index + has_gaps, owner_of(tensor, storage)});
  }
}

// Returns whether a tensor is a Python object that consists of other tensors (a DTensor). Its ops run in Python, on
// those.
inline bool is_wrapper(const c10::TensorImpl& tensor) {
  if (!tensor.key_set().has(c10::DispatchKey::Python)) return false;
  return !tensor.has_storage() || address_of(*tensor.unsafe_storage().unsafeGetStorageImpl()) == nullptr;
}

// Calls `visit(const c10::TensorImpl&)` for the tensors that have the bytes of this one: itself, or its components if
// it is sparse or a wrapper, and its tangent. A wrapper of a sparse tensor has a sparse layout, but is not sparse.
template <class Visit>
void each_part(const c10::TensorImpl& tensor, const Visit& visit) {
  if (is_wrapper(tensor)) {
    for (const c10::TensorImpl* part : parts_of(tensor)) each_part(*part, visit);
    return;
  }
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
  if (const c10::TensorImpl* const tangent = tangent_of(tensor)) each_part(*tangent, visit);
}

// Calls `visit(const c10::TensorImpl&)` for the tensors in a value: a tensor, none, or those of a list, at any depth.
template <class Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    each_part(*value.unsafeToTensorImpl(), visit);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) each_tensor(element, visit);
  }
}

// Calls `visit` for the tensors among an operator's arguments.
template <class Visit>
void each_operand(const OperatorInfo& info, const torch::jit::Stack& stack, Visit&& visit) {
  const c10::IValue* const arguments = stack.data() + (stack.size() - info.argument_count);
  for (const TensorArgument& argument : info.tensors) each_tensor(arguments[argument.index], visit);
}

// Torch's fallback for conjugated and negated views copies a tensor even if only its shape is needed.
inline bool is_copied_first(const c10::TensorImpl& tensor) {
  return tensor.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}));
}

// Collects the accesses in the order of the schema. Tensors that are copied first are last.
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

inline void add_output(const c10::TensorImpl& tensor, ShownList& outputs) {
  if (c10::StorageImpl* const storage = storage_of_ours(tensor)) {
    outputs.push_back({address_of(*storage), owner_of(tensor, storage)});
  } else if (tensor.has_storage()) {
    const char* const foreign = address_of(*tensor.unsafe_storage().unsafeGetStorageImpl());
    if (foreign != nullptr) outputs.push_back({foreign, nullptr});
  }
}

// The addresses do not change until the op has ended: each result is an operand of it, or was made by it.
inline void gather_outputs(const OperatorInfo& info, const torch::jit::Stack& stack, ShownList& outputs) {
  const c10::IValue* const results = stack.data() + (stack.size() - info.return_count);
  for (uint32_t index = 0; index < info.return_count; ++index) {
    each_tensor(results[index], [&](const c10::TensorImpl& tensor) { add_output(tensor, outputs); });
  }
}

}  // namespace um::hooks
