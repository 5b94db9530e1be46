// Reads Python's tensors. It declares the functions of Python's stable ABI, and knows where Python's tensors keep
// torch's. So one build serves every Python that has this torch, without Python's headers.
#pragma once

#include <c10/core/TensorImpl.h>

extern "C" {  // Python's, with PyObject* as void*
extern void* PyExc_RuntimeError;
void PyErr_SetString(void* type, const char* message);
void PyErr_Fetch(void** type, void** value, void** trace);
void PyErr_Restore(void* type, void* value, void* trace);
void* PyCFunction_NewEx(void* definition, void* self, void* module);
void* PyObject_Call(void* function, void* arguments, void* named);
void* PyObject_CallFunctionObjArgs(void* function, ...);
void* PyTuple_GetItem(void* tuple, ptrdiff_t index);
unsigned long PyLong_AsUnsignedLong(void* number);
ptrdiff_t PySequence_Size(void* sequence);
void* PySequence_GetItem(void* sequence, ptrdiff_t index);
void Py_DecRef(void* object);
int PyType_IsSubtype(void* type, void* base);
void* PyEval_SaveThread(void);
void PyEval_RestoreThread(void* state);
}

namespace um::hooks {

// Releases Python's lock while the core waits, because other threads may need Python for what the core waits for.
class WithoutPython {
 public:
  WithoutPython() : state_(PyEval_SaveThread()) {}
  ~WithoutPython() { PyEval_RestoreThread(state_); }
  WithoutPython(const WithoutPython&) = delete;
  WithoutPython& operator=(const WithoutPython&) = delete;

 private:
  void* state_;
};

// The arguments of um_hooks_python_set.
struct PythonsClasses {
  void* tensor_class;
  void* parameter_class;
  size_t header_bytes;
};
extern PythonsClasses python;

void* class_of(const void* object);
bool is_tensor(const void* object);
// Requires that the object is a tensor.
const c10::TensorImpl* implementation_of(const void* object);

// Calls `visit(const c10::TensorImpl&, uint32_t index, bool parameter)` for the tensors of a sequence, which keeps them
// alive.
template <class Visit>
void each_tensor_of(void* sequence, const Visit& visit) {
  const ptrdiff_t count = PySequence_Size(sequence);
  for (ptrdiff_t index = 0; index < count; ++index) {
    void* const object = PySequence_GetItem(sequence, index);
    if (object == nullptr) continue;
    if (is_tensor(object)) {
      visit(*implementation_of(object), static_cast<uint32_t>(index), class_of(object) == python.parameter_class);
    }
    Py_DecRef(object);
  }
}

}  // namespace um::hooks
