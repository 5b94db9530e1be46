// Functions of C++ extensions, which reach memory by `data_ptr<T>()`, in no op of torch's. What takes such a function's
// place is a builtin of Python's as well, as pybind11 looks at what it finds under a name, and as nothing of Python's
// may come between what holds tensors and what lets go of them.
//
// A call is told of as two ops, one before it and one behind it, that write all it is given, and the second one what it
// gives back too. In between all of that stays where it is. Ops of torch's that run inside are ops of their own.
#include <ATen/core/grad_mode.h>

#include <string>
#include <utility>
#include <vector>

#include "accesses.h"
#include "errors.h"
#include "hooks.h"
#include "interposer.h"
#include "python_tensors.h"

namespace um::hooks {
namespace {

// What a function is made of: a tuple in Python.
enum Part : ptrdiff_t { kOriginal, kName, kPrepare, kTensorsIn, kOutOfMemory };

// PyMethodDef, of Python's stable ABI.
struct MethodDefinition {
  const char* name;
  void* (*function)(void* self, void* arguments, void* named);
  int flags;
  const char* documentation;
};
constexpr int kWithKeywords = 0x0001 | 0x0002;  // METH_VARARGS | METH_KEYWORDS

// Owned.
class Reference {
 public:
  explicit Reference(void* object) : object_(object) {}
  ~Reference() {
    if (object_ != nullptr) Py_DecRef(object_);
  }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  void* get() const { return object_; }
  void* release() { return std::exchange(object_, nullptr); }

 private:
  void* object_;
};

// The error of Python's that is set, taken out meanwhile.
class PutAside {
 public:
  PutAside() { PyErr_Fetch(&type_, &value_, &trace_); }
  ~PutAside() { PyErr_Restore(type_, value_, trace_); }
  PutAside(const PutAside&) = delete;
  PutAside& operator=(const PutAside&) = delete;

 private:
  void *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
};

// What one call holds, from its first op to its second.
class Held {
 public:
  explicit Held(uint32_t name) : name_(name) {}
  ~Held() { release(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  void add(void* sequence) {
    each_tensor_of(sequence, [&](const c10::TensorImpl& tensor, uint32_t, bool) {
      auto* const shared = const_cast<c10::TensorImpl*>(&tensor);
      tensors_.push_back(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(shared));
    });
  }
  um_status begin() {
    const um_status status = tell(tensors_.size());
    return status == UM_OK ? guarded([&] { hold(); }) : status;
  }
  // With what was added since it has begun.
  um_status end(size_t given) { return tell(given); }
  size_t count() const { return tensors_.size(); }
  void release() noexcept {
    for (const void* const address : std::exchange(held_, {})) {
      if (um_owns(address) != 0) static_cast<void>(um_export_release(address));
    }
  }

 private:
  // All from `given` on was made.
  um_status tell(size_t given) {
    c10::SmallVector<RegionInput, 32> inputs;
    ShownList made;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      each_part(*tensors_[i], [&](const c10::TensorImpl& part) {
        inputs.push_back({&part, static_cast<uint32_t>(i), true});
        if (i >= given) add_output(part, made);
      });
    }
    um_device* device = nullptr;
    const um_status status = try_region({name_, inputs, at::GradMode::is_enabled()}, device);
    if (device != nullptr) end_region(device, made);
    return status;
  }

  // Throws CoreError.
  void hold() {
    for (const auto& tensor : tensors_) {
      each_part(*tensor, [&](const c10::TensorImpl& part) {
        c10::StorageImpl* const storage = storage_of_ours(part);
        if (storage == nullptr) return;
        held_.reserve(held_.size() + 1);
        const um_status status = um_export(address_of(*storage));
        if (status == UM_UNSUPPORTED) return;  // it does not move
        check_core(status);
        held_.push_back(address_of(*storage));
      });
    }
  }

  const uint32_t name_;
  std::vector<c10::intrusive_ptr<c10::TensorImpl>> tensors_;
  std::vector<const void*> held_;
};

void* raise(void* self, um_status status) {
  void* const type = status == UM_OUT_OF_DEVICE_MEMORY ? PyTuple_GetItem(self, kOutOfMemory) : PyExc_RuntimeError;
  PyErr_SetString(type, last_error.c_str());
  return nullptr;
}

void* call(void* self, void* arguments, void* named) {
  void* const original = PyTuple_GetItem(self, kOriginal);
  if (!interposing_outside_ops()) return PyObject_Call(original, arguments, named);
  const Reference prepared(PyObject_CallFunctionObjArgs(PyTuple_GetItem(self, kPrepare), arguments, named, nullptr));
  if (prepared.get() == nullptr) return nullptr;
  void* const given = PyTuple_GetItem(prepared.get(), 0);
  Held held(static_cast<uint32_t>(PyLong_AsUnsignedLong(PyTuple_GetItem(self, kName))));
  held.add(given);
  const size_t count = held.count();
  const auto without_python = [](const auto& work) {
    const WithoutPython meanwhile;
    return work();
  };
  if (count != 0) {
    if (const um_status status = without_python([&] { return held.begin(); }); status != UM_OK) {
      return raise(self, status);
    }
  }
  Reference result(PyObject_Call(original, PyTuple_GetItem(prepared.get(), 1), PyTuple_GetItem(prepared.get(), 2)));
  const Reference made(result.get() == nullptr
                           ? nullptr
                           : PyObject_CallFunctionObjArgs(PyTuple_GetItem(self, kTensorsIn), result.get(), nullptr));
  um_status status = UM_OK;
  {
    const PutAside error;
    if (made.get() != nullptr) held.add(made.get());
    if (held.count() != 0) status = without_python([&] { return held.end(count); });
    held.release();
  }
  if (made.get() == nullptr) return nullptr;
  return status == UM_OK ? result.release() : raise(self, status);
}

}  // namespace
}  // namespace um::hooks

void* um_hooks_extension_function(void* parts, void* module, const char* name, const char* documentation) {
  using namespace um::hooks;
  auto* const kept = new std::pair<std::string, std::string>(name, documentation);
  auto* const definition = new MethodDefinition{kept->first.c_str(), call, kWithKeywords, kept->second.c_str()};
  return PyCFunction_NewEx(definition, parts, module);
}
