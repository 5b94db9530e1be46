// Calls of C++ extensions, which access memory through `data_ptr<T>()` and are no ops of torch. The replacement of such
// a function is a Python builtin too: pybind11 checks what it finds under a name, and no Python code may run between
// holding tensors and releasing them.
//
// A call is reported as two ops, one before it and one after it, that write all of its tensors, and as one more op for
// each tensor that it returns. In between its tensors are pinned. Ops of torch inside the call are ops of their own.
#include <ATen/core/grad_mode.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "accesses.h"
#include "errors.h"
#include "hooks.h"
#include "interposer.h"
#include "python_tensors.h"
#include "storage_exports.h"

namespace um::hooks {
namespace {

// The parts of a function: a tuple in Python.
enum Part : ptrdiff_t { kOriginal, kName, kPrepare, kTensorsIn, kOutOfMemory };

// PyMethodDef of Python's stable ABI.
struct MethodDefinition {
  const char* name;
  void* (*function)(void* self, void* arguments, void* named);
  int flags;
  const char* documentation;
};
constexpr int kWithKeywords = 0x0001 | 0x0002;  // METH_VARARGS | METH_KEYWORDS

// An owned reference.
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

// Sets the pending error of Python aside while it lives.
class PutAside {
 public:
  PutAside() { PyErr_Fetch(&type_, &value_, &trace_); }
  ~PutAside() { PyErr_Restore(type_, value_, trace_); }
  PutAside(const PutAside&) = delete;
  PutAside& operator=(const PutAside&) = delete;

 private:
  void *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
};

// Ends the region that has begun.
class OpenRegion {
 public:
  explicit OpenRegion(um_device* device) : device_(device) {}
  ~OpenRegion() {
    if (device_ != nullptr) end_region(device_, made);
  }
  OpenRegion(const OpenRegion&) = delete;
  OpenRegion& operator=(const OpenRegion&) = delete;

  ShownList made;

 private:
  um_device* const device_;
};

using Tensors = std::vector<c10::intrusive_ptr<c10::TensorImpl>>;

// Returns the tensors of a Python list.
Tensors tensors_of(void* list) {
  Tensors found;
  each_tensor_of(list, [&](const c10::TensorImpl& tensor, uint32_t, bool) {
    found.push_back(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<c10::TensorImpl*>(&tensor)));
  });
  return found;
}

// Holds the tensors of one call, from its first op to its second.
class HeldStorages {
 public:
  explicit HeldStorages(uint32_t name) : name_(name) {}
  HeldStorages(const HeldStorages&) = delete;
  HeldStorages& operator=(const HeldStorages&) = delete;

  // Holds nothing if it fails.
  um_status begin(const Tensors& given) {
    const um_status status = tell(given, Report::holds);
    if (status != UM_OK) exports_.end();
    return status;
  }
  // The call's tensors are on the device, so they are not refused. Its results need not fit at once, so each has an op
  // of its own. The call has succeeded even if that fails.
  um_status end(const Tensors& given, const Tensors& made) {
    const um_status status = tell(given, Report::given);
    for (const auto& each : made) static_cast<void>(tell({each}, Report::made));
    return status;
  }
  void release() noexcept { exports_.end(); }

 private:
  enum class Report { holds, given, made };

  // Reports an op that writes all tensors.
  um_status tell(const Tensors& tensors, Report what) noexcept {
    um_status status = UM_OK;
    const um_status failed = guarded([&] {
      try {
        std::vector<const c10::TensorImpl*> parts;
        for (const auto& tensor : tensors) {
          each_part(*tensor, [&](const c10::TensorImpl& part) { parts.push_back(&part); });
        }
        std::vector<RegionInput> inputs;
        for (const c10::TensorImpl* part : parts) inputs.push_back({part, static_cast<uint32_t>(inputs.size()), true});
        OpenRegion region(begin_region({name_, inputs, at::GradMode::is_enabled()}));
        for (const c10::TensorImpl* part : parts) {
          // While the op with this tensor runs, the tensor does not move.
          if (what == Report::holds) throw_as_torch(exports_.add(*part));
          if (what == Report::made) add_output(*part, region.made);
        }
      } catch (const c10::OutOfMemoryError& error) {
        last_error = error.what_without_backtrace();
        status = UM_OUT_OF_DEVICE_MEMORY;
      }
    });
    return failed != UM_OK ? failed : status;
  }

  const uint32_t name_;
  StorageExports exports_;
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
  const auto without_python = [](const auto& work) {
    const WithoutPython meanwhile;
    return work();
  };
  HeldStorages held(static_cast<uint32_t>(PyLong_AsUnsignedLong(PyTuple_GetItem(self, kName))));
  Tensors given, made;
  um_status status = guarded([&] { given = tensors_of(PyTuple_GetItem(prepared.get(), 0)); });
  if (status == UM_OK && !given.empty()) status = without_python([&] { return held.begin(given); });
  if (status != UM_OK) return raise(self, status);
  Reference result(PyObject_Call(original, PyTuple_GetItem(prepared.get(), 1), PyTuple_GetItem(prepared.get(), 2)));
  void* const tensors_in = PyTuple_GetItem(self, kTensorsIn);
  const Reference found(result.get() == nullptr ? nullptr
                                                : PyObject_CallFunctionObjArgs(tensors_in, result.get(), nullptr));
  {
    const PutAside error;
    if (found.get() != nullptr) status = guarded([&] { made = tensors_of(found.get()); });
    if (!given.empty() || !made.empty()) {
      const um_status ended = without_python([&] { return held.end(given, made); });
      if (status == UM_OK) status = ended;
    }
    held.release();
  }
  if (found.get() == nullptr) return nullptr;
  return status == UM_OK ? result.release() : raise(self, status);
}

// Builtins refer to their definition for life, which may be longer than the session that made them. So there is one
// definition for each name and documentation, however many sessions there are. Python's lock is held.
MethodDefinition* definition_of(const char* name, const char* documentation) {
  static auto* const all = new std::map<std::pair<std::string, std::string>, MethodDefinition>;
  const auto [place, is_new] = all->try_emplace({name, documentation});
  if (is_new) {
    place->second = {place->first.first.c_str(), call, kWithKeywords, place->first.second.c_str()};
  }
  return &place->second;
}

}  // namespace
}  // namespace um::hooks

void* um_hooks_extension_function(void* parts, void* module, const char* name, const char* documentation) {
  return PyCFunction_NewEx(um::hooks::definition_of(name, documentation), parts, module);
}
