// Pins tensors that are exported through DLPack's exchange API for C (dlpack.h from 1.2 on): a table of functions that
// libraries such as TVM's foreign functions find on the class of tensors, and call without Python. So the functions are
// replaced in the table itself, for the life of the process. Tensors in other memory pass through.
#include <cstdint>

#include "accesses.h"
#include "errors.h"
#include "hooks.h"
#include "interposer.h"
#include "python_tensors.h"

namespace um::hooks {
namespace {

// The table of dlpack.h, in which returned tensors are void*.
struct ExchangeApi {
  struct {
    uint32_t major, minor;
  } version;
  ExchangeApi* previous;
  void* allocator;
  int (*managed_tensor_from_object)(void* object, void** out);
  void* managed_tensor_to_object;
  int (*tensor_from_object)(void* object, void* out);
};
constexpr uint32_t kMajor = 1;

ExchangeApi torchs_api{};

// Pins a tensor, whose address may be used at any time from now on. Returns false with an error of Python's. An op that
// already holds its tensors needs no pin.
bool pin(void* object) {
  if (!is_tensor(object) || inside_op()) return true;  // torch reports an error for other objects
  c10::StorageImpl* const storage = storage_of_ours(*implementation_of(object));
  if (storage == nullptr) return true;
  um_status status = UM_OK;
  {
    const WithoutPython meanwhile;
    status = um_export_lasting(address_of(*storage));
  }
  if (status == UM_OK || status == UM_UNSUPPORTED) return true;
  PyErr_SetString(PyExc_RuntimeError, um_last_error());
  return false;
}

int managed_tensor_from_object(void* object, void** out) {
  return pin(object) ? torchs_api.managed_tensor_from_object(object, out) : -1;
}

int tensor_from_object(void* object, void* out) {
  return pin(object) ? torchs_api.tensor_from_object(object, out) : -1;
}

}  // namespace
}  // namespace um::hooks

um_status um_hooks_exchange_guard(void* table) {
  using namespace um::hooks;
  auto* const api = static_cast<ExchangeApi*>(table);
  if (api->version.major != kMajor) return UM_UNSUPPORTED;
  if (api->tensor_from_object == tensor_from_object) return UM_OK;
  torchs_api = *api;
  api->managed_tensor_from_object = managed_tensor_from_object;
  api->tensor_from_object = tensor_from_object;
  return UM_OK;
}
