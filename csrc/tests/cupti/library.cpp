// Finding CUPTI: by name, what is no whole one, and that nothing is loaded beside one that is there. This executable is
// not linked to the stand-ins: ctest runs it with their folders in LD_LIBRARY_PATH, where a toolkit's would be.
#include "cupti/library.h"

#include <dlfcn.h>

#include "fake_cupti/fake_cupti.h"
#include "tests/check.h"

using namespace um::cupti;

namespace {

std::string refusal(const std::string& name) {
  std::string reason;
  CHECK(open_library(name, &reason) == nullptr);
  return reason;
}

// The control of a stand-in that is loaded by path.
FakeCupti& control(const char* path) {
  void* const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  CHECK(handle != nullptr);
  return *reinterpret_cast<FakeCupti* (*)()>(dlsym(handle, "fake_cupti"))();
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

// The first test: nothing is loaded yet.
TEST(by_the_name_of_the_drivers_version_then_the_one_that_is_there) {
  CHECK_EQ(loaded_library(), "");
  std::string reason;
  const Library* const found = library(13020, &reason);
  CHECK(found != nullptr);
  CHECK_EQ(found->path, "libcupti.so.13");
  CHECK_EQ(found->version, FakeCupti::kCuda132);
  CHECK_EQ(loaded_library(), CUPTI13);
  CHECK(library(12020, &reason) == found);
}

TEST(what_is_not_there_says_what_to_do) {
  std::string reason;
  CHECK(open_one_of("libcupti-absent.so.13", "libcupti-absent.so.12", &reason) == nullptr);
  CHECK_EQ(reason,
           "no CUPTI found (libcupti-absent.so.13: cannot open shared object file: No such file or directory; "
           "libcupti-absent.so.12: cannot open shared object file: No such file or directory): install the package "
           "nvidia-cuda-cupti of torch's CUDA version, or put CUDA's extras/CUPTI/lib64 into LD_LIBRARY_PATH");
  CHECK(open_one_of("libcupti-absent.so.13", CUPTI12, &reason) != nullptr);
}

TEST(missing_symbols_are_named) {
  CHECK_EQ(refusal(PARTIAL_CUPTI), PARTIAL_CUPTI " lacks cuptiGetResultString: CUPTI of CUDA 12.0 or newer is needed");
}

TEST(each_version_from_cuda_12_on_is_taken) {
  for (const char* path : {CUPTI12, CUPTI13}) {
    FakeCupti& fake = control(path);
    for (const uint32_t version : {um::cupti::kOldestVersion, FakeCupti::kCuda122, FakeCupti::kCuda126,
                                   FakeCupti::kCuda128, FakeCupti::kCuda130, FakeCupti::kCuda132}) {
      fake.version = version;
      std::string reason;
      const auto found = open_library(path, &reason);
      CHECK_EQ(reason, "");
      CHECK_EQ(found->version, version);
    }
    fake.reset();
  }
}

TEST(too_old_or_silent) {
  FakeCupti& fake = control(CUPTI12);
  fake.version = 18;
  CHECK_EQ(refusal(CUPTI12), CUPTI12 " is too old (CUPTI API 18): CUDA 12.0's or newer is needed");
  fake.failing["cuptiGetVersion"] = CUPTI_ERROR_NOT_INITIALIZED;
  CHECK_EQ(refusal(CUPTI12), CUPTI12 " does not tell its version: CUPTI_ERROR_NOT_INITIALIZED (15)");
  fake.failing["cuptiGetResultString"] = CUPTI_ERROR_INVALID_PARAMETER;
  CHECK_EQ(refusal(CUPTI12), CUPTI12 " does not tell its version: CUPTI error (15)");
  fake.reset();
}

TEST(codes_in_words_with_what_helps) {
  std::string reason;
  const auto found = open_library(CUPTI12, &reason);
  const auto words = [&](CUptiResult result) { return describe(*found, result); };
  CHECK(contains(words(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED), "another profiler is active"));
  CHECK(contains(words(CUPTI_ERROR_INSUFFICIENT_PRIVILEGES), "NVreg_RestrictProfilingToAdminUsers=0"));
  CHECK(contains(words(CUPTI_ERROR_INSUFFICIENT_PRIVILEGES), "(35)"));
  CHECK(contains(words(CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES), "administrator"));
  CHECK(contains(words(CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED), "operating system"));
  CHECK(contains(words(CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_DEVICE), "compute capability"));
  CHECK(contains(words(CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_NON_P2P_DEVICES), "CUDA_VISIBLE_DEVICES"));
  CHECK(contains(words(CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_WITH_MPS), "MPS"));
  CHECK(contains(words(CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED), "virtual GPU"));
  CHECK(contains(words(CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED), "confidential"));
  CHECK(contains(words(CUPTI_ERROR_CMP_DEVICE_NOT_SUPPORTED), "CMP"));
  CHECK(contains(words(CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED), "MIG"));
  CHECK(contains(words(CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED), "SLI"));
  CHECK(contains(words(CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED), "WSL"));
  CHECK_EQ(words(CUPTI_ERROR_UNKNOWN), "CUPTI_ERROR_OF_SOME_KIND (999)");
}
