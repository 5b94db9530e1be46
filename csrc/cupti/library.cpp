#include "cupti/library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <mutex>

namespace um::cupti {
namespace {

// dl_iterate_phdr's callback: ends at the first libcupti.so.<n>, however it came here.
int find_libcupti(dl_phdr_info* info, size_t, void* found) {
  const char* const path = info->dlpi_name;
  if (path == nullptr) return 0;
  const char* const slash = std::strrchr(path, '/');
  const char* const name = slash != nullptr ? slash + 1 : path;
  if (std::strncmp(name, "libcupti.so", std::strlen("libcupti.so")) != 0) return 0;
  *static_cast<std::string*>(found) = path;
  return 1;
}

// In words: what is wrong with this code, and what helps. Other codes need the library's own words.
constexpr struct {
  CUptiResult result;
  const char* words;
} kWords[] = {
    {CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED,
     "another profiler is active in this process (torch.profiler, Nsight, cuda-gdb or compute-sanitizer): "
     "counters are read while none is"},
    {CUPTI_ERROR_INSUFFICIENT_PRIVILEGES,
     "this user may not profile the GPU: an administrator can set the kernel module option "
     "NVreg_RestrictProfilingToAdminUsers=0 of nvidia, or give the process (container) CAP_SYS_ADMIN"},
    {CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES,
     "this virtual GPU may not be profiled: the host's administrator must enable profiling for it"},
    {CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED, "this operating system or architecture has no counters of unified memory"},
    {CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_DEVICE,
     "this GPU has no counters of unified memory (compute capability 6.0 or newer is needed)"},
    {CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_NON_P2P_DEVICES,
     "GPUs that cannot access each other's memory have no counters of unified memory: let the process see one, "
     "with CUDA_VISIBLE_DEVICES"},
    {CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_WITH_MPS,
     "under MPS there are no counters of unified memory: run without it"},
    {CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED, "this virtual GPU cannot be profiled"},
    {CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED, "a GPU in confidential computing mode cannot be profiled"},
    {CUPTI_ERROR_CMP_DEVICE_NOT_SUPPORTED, "this GPU (CMP) cannot be profiled"},
    {CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED, "a MIG instance cannot be profiled: use the whole GPU"},
    {CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED, "GPUs in SLI cannot be profiled"},
    {CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED, "under WSL this GPU cannot be profiled: run on Linux itself"},
};

template <class Pointer>
void fill(void* handle, const char* symbol, Pointer* slot, std::string* missing) {
  *slot = reinterpret_cast<Pointer>(dlsym(handle, symbol));
  if (*slot == nullptr && missing->empty()) *missing = symbol;
}

}  // namespace

std::string loaded_library() {
  std::string path;
  dl_iterate_phdr(find_libcupti, &path);
  return path;
}

std::unique_ptr<const Library> open_library(const std::string& name, std::string* reason) {
  void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const error = dlerror();  // NOLINT(concurrency-mt-unsafe): per thread in glibc and musl
    *reason = error != nullptr ? error : name;
    return nullptr;
  }
  auto library = std::make_unique<Library>();
  library->path = name;
  std::string missing;
#define UM_CUPTI_FILL(its_name, symbol, ...) fill(handle, #symbol, &library->its_name, &missing);
  UM_CUPTI_FUNCTIONS(UM_CUPTI_FILL)
#undef UM_CUPTI_FILL
  if (!missing.empty()) {
    *reason = name + " lacks " + missing + ": CUPTI of CUDA 12.0 or newer is needed";
    return nullptr;
  }
  if (const CUptiResult result = library->get_version(&library->version); result != CUPTI_SUCCESS) {
    *reason = name + " does not tell its version: " + describe(*library, result);
    return nullptr;
  }
  if (library->version < kOldestVersion) {
    *reason = name + " is too old (CUPTI API " + std::to_string(library->version) + "): CUDA 12.0's or newer is needed";
    return nullptr;
  }
  return library;
}

std::unique_ptr<const Library> open_one_of(const std::string& name, const std::string& other, std::string* reason) {
  std::string reasons[2];
  if (auto first = open_library(name, &reasons[0])) return first;
  if (auto second = open_library(other, &reasons[1])) return second;
  *reason = "no CUPTI found (" + reasons[0] + "; " + reasons[1] +
            "): install the package nvidia-cuda-cupti of torch's CUDA version, or put CUDA's extras/CUPTI/lib64 into "
            "LD_LIBRARY_PATH";
  return nullptr;
}

const Library* library(int driver_version, std::string* reason) {
  static std::mutex mutex;
  static const Library* found = nullptr;  // never unloaded: its threads may still call back while the process ends
  const std::lock_guard<std::mutex> lock(mutex);
  if (found != nullptr) return found;
  const std::string path = loaded_library();
  const bool newer = driver_version >= 13000;
  found = (!path.empty() ? open_library(path, reason)
           : newer       ? open_one_of("libcupti.so.13", "libcupti.so.12", reason)
                         : open_one_of("libcupti.so.12", "libcupti.so.13", reason))
              .release();
  return found;
}

std::string describe(const Library& library, CUptiResult result) {
  const auto* const known =
      std::find_if(std::begin(kWords), std::end(kWords), [&](const auto& each) { return each.result == result; });
  const char* text = known != std::end(kWords) ? known->words : nullptr;
  if (text == nullptr && library.get_result_string(result, &text) != CUPTI_SUCCESS) text = nullptr;
  return std::string(text != nullptr ? text : "CUPTI error") + " (" + std::to_string(result) + ")";
}

}  // namespace um::cupti
