#include "driver/errors.h"

namespace um::driver {

namespace {

struct Words {
  const char *name, *message;
};

Words words_for(CUresult result) noexcept {
  switch (result) {
#define UM_DRIVER_WORDS(name, value, message) \
  case name:                                  \
    return {#name, message};
    UM_DRIVER_ERRORS(UM_DRIVER_WORDS)
#undef UM_DRIVER_WORDS
  }
  return {nullptr, nullptr};
}

}  // namespace

const char* error_name(CUresult result) noexcept { return words_for(result).name; }

const char* error_message(CUresult result) noexcept { return words_for(result).message; }

std::string describe(const Table& call, CUresult result) {
  const char* name = nullptr;
  const char* message = nullptr;
  if (call.get_error_name(result, &name) != CUDA_SUCCESS || name == nullptr) name = error_name(result);
  if (call.get_error_string(result, &message) != CUDA_SUCCESS || message == nullptr) message = error_message(result);
  std::string text = name != nullptr ? name : "CUDA error";
  text += " (" + std::to_string(static_cast<unsigned>(result)) + ")";
  if (message != nullptr) text += std::string(": ") + message;
  return text;
}

}  // namespace um::driver
