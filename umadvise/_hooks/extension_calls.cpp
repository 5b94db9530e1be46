// Functions of C++ extensions, which reach memory by `data_ptr<T>()`, in no op of torch's. What takes such a function's
// place is a builtin of Python's as well, as pybind11 looks at what it finds under a name, and as nothing of Python's
// may come between what holds tensors and what lets go of them.
//
// A call is told of as two ops, one before it and one behind it, that write all it is given, and one more for each
// tensor that it gives back. In between what it is given stays where it is. Ops of torch's inside are ops of their own.
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

// Ends the op that has begun.
class Region {
 public:
  explicit Region(um_device* device) : device_(device) {}
  ~Region() {
    if (device_ != nullptr) end_region(device_, made);
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  ShownList made;

 private:
  um_device* const device_;
};

using Tensors = std::vector<c10::intrusive_ptr<c10::TensorImpl>>;

// The tensors of a list of Python's.
Tensors tensors_of(void* list) {
  Tensors found;
  each_tensor_of(list, [&](const c10::TensorImpl& tensor, uint32_t, bool) {
    found.push_back(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<c10::TensorImpl*>(&tensor)));
  });
  return found;
}

// What one call holds, from its first op to its second.
class Held {
 public:
  explicit Held(uint32_t name) : name_(name) {}
  ~Held() { release(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  // Nothing is held where it fails.
  um_status begin(const Tensors& given) {
    const um_status status = tell(given, Told::holds);
    if (status != UM_OK) release();
    return status;
  }
  // What was given is on the device and is not refused. What was made need not fit at once, so each has an op of its
  // own, and the call has succeeded, whatever becomes of that.
  um_status end(const Tensors& given, const Tensors& made) {
    const um_status status = tell(given, Told::given);
    for (const auto& each : made) static_cast<void>(tell({each}, Told::made));
    return status;
  }
  void release() noexcept {
    for (const Export& each : std::exchange(exports_, {})) {
      // With other memory the old one's exports have ended.
      if (address_of(*each.storage.unsafeGetStorageImpl()) == each.address && um_owns(each.address) != 0) {
        static_cast<void>(um_export_release(each.address));
      }
    }
  }

 private:
  enum class Told { holds, given, made };
  struct Export {
    c10::Storage storage;
    const char* address;
  };

  // An op that writes all of them.
  um_status tell(const Tensors& tensors, Told what) noexcept {
    um_status status = UM_OK;
    const um_status failed = guarded([&] {
      try {
        std::vector<const c10::TensorImpl*> parts;
        for (const auto& tensor : tensors) {
          each_part(*tensor, [&](const c10::TensorImpl& part) { parts.push_back(&part); });
        }
        std::vector<RegionInput> inputs;
        for (const c10::TensorImpl* part : parts) inputs.push_back({part, static_cast<uint32_t>(inputs.size()), true});
        Region region(begin_region({name_, inputs, at::GradMode::is_enabled()}));
        for (const c10::TensorImpl* part : parts) {
          if (what == Told::holds) hold(*part);
          if (what == Told::made) add_output(*part, region.made);
        }
      } catch (const c10::OutOfMemoryError& error) {
        last_error = error.what_without_backtrace();
        status = UM_OUT_OF_DEVICE_MEMORY;
      }
    });
    return failed != UM_OK ? failed : status;
  }

  // While an op that was given it runs, so that nobody moves it meanwhile. Throws what torch throws.
  void hold(const c10::TensorImpl& tensor) {
    c10::StorageImpl* const storage = storage_of_ours(tensor);
    if (storage == nullptr) return;
    exports_.push_back({tensor.storage(), address_of(*storage)});
    const um_status status = um_export(exports_.back().address);
    if (status == UM_OK) return;
    exports_.pop_back();
    if (status != UM_UNSUPPORTED) throw_as_torch(status);  // else it does not move
  }

  const uint32_t name_;
  std::vector<Export> exports_;
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
  Held held(static_cast<uint32_t>(PyLong_AsUnsignedLong(PyTuple_GetItem(self, kName))));
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

// Builtins refer to it for as long as they live, which may be longer than the session that made them. So there is one
// for each name with its documentation, whatever the number of sessions. Python's lock is held.
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
