// Makes torch.device(0) and torch.device(device) mean what code written for a GPU expects.
//
// torch looks an index up for the accelerator of its build, and a CPU build has none. It also makes a new object for a
// given device, although Python distinguishes the emulated device from the CPU by the object's identity. The class
// itself cannot be replaced, because C++, TorchScript and annotations know it by identity. So its constructor is
// replaced: the slot tp_new.
#include "hooks.h"
#include "python_tensors.h"

extern "C" {  // Python's, as in python_tensors.h
extern char PyLong_Type[];
extern char PyBool_Type[];
int PyObject_IsInstance(void* object, void* type);
void* PyType_GetSlot(void* type, int slot);
ptrdiff_t PyTuple_Size(void* tuple);
ptrdiff_t PyDict_Size(void* dict);
void* PyDict_GetItemString(void* dict, const char* key);
void* Py_BuildValue(const char* format, ...);
void Py_IncRef(void* object);
}

namespace um::hooks {
namespace {

using Constructor = void* (*)(void* type, void* arguments, void* named);

constexpr int kTpNew = 65;     // Py_tp_new of CPython's typeslots.h, which is stable
constexpr size_t kWords = 64;  // more than precede tp_new in the type of any build of Python
Constructor torchs_constructor = nullptr;

bool is_index(void* object) {
  return PyObject_IsInstance(object, PyLong_Type) == 1 && PyObject_IsInstance(object, PyBool_Type) == 0;
}

void* make(void* type, void* arguments, void* named) {
  const ptrdiff_t given = PyTuple_Size(arguments);
  if (given + (named == nullptr ? 0 : PyDict_Size(named)) != 1) return torchs_constructor(type, arguments, named);
  void* const device = given == 1 ? PyTuple_GetItem(arguments, 0) : PyDict_GetItemString(named, "device");
  if (device == nullptr) return torchs_constructor(type, arguments, named);
  if (PyObject_IsInstance(device, type) == 1) {
    Py_IncRef(device);
    return device;
  }
  if (!is_index(device)) return torchs_constructor(type, arguments, named);
  void* const words = Py_BuildValue("(sO)", "cuda", device);
  if (words == nullptr) return nullptr;
  void* const made = torchs_constructor(type, words, nullptr);
  Py_DecRef(words);
  return made;
}

}  // namespace
}  // namespace um::hooks

um_status um_hooks_device_constructor_set(void* type, int32_t on) {
  using namespace um::hooks;
  const auto present = reinterpret_cast<Constructor>(PyType_GetSlot(type, kTpNew));
  if (on == (present == make)) return UM_OK;
  if (on != 0) torchs_constructor = present;
  auto* const words = static_cast<Constructor*>(type);
  for (size_t index = 0; index < kWords; ++index) {
    if (words[index] != present) continue;
    words[index] = on != 0 ? make : torchs_constructor;
    return UM_OK;
  }
  return UM_UNSUPPORTED;
}
