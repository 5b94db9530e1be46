// Converts exceptions to codes, and the core's codes to torch's exceptions.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string>

#include "umadvise.h"

namespace um::hooks {

// The message of um_hooks_last_error for this thread.
inline thread_local std::string last_error;

// A failed call of the core, with its message.
struct CoreError {
  um_status status;
  std::string message;
};
inline void check_core(um_status status) {
  if (status != UM_OK) throw CoreError{status, um_last_error()};
}

// Runs a function behind the C ABI, and returns its exceptions as codes.
template <class Body>
um_status guarded(Body&& body) noexcept {
  try {
    body();
    return UM_OK;
  } catch (const CoreError& error) {
    last_error = error.message;
    return error.status;
  } catch (const std::bad_alloc&) {
    last_error = "out of host memory";
    return UM_OUT_OF_HOST_MEMORY;
  } catch (const c10::Error& error) {
    last_error = error.what_without_backtrace();
    return UM_BAD_STATE;
  } catch (const std::exception& error) {
    last_error = error.what();
    return UM_BAD_STATE;
  }
}

// Throws the exception that torch's users expect: torch.OutOfMemoryError with the words by which programs recognize
// that they should try with less (umadvise/torch_seam/out_of_memory.py), or RuntimeError.
inline void throw_as_torch(um_status status, const std::string& message) {
  if (status == UM_OK) return;
  const bool out_of_memory = status == UM_OUT_OF_DEVICE_MEMORY || status == UM_OUT_OF_HOST_MEMORY;
  TORCH_CHECK_WITH(OutOfMemoryError, !out_of_memory, "CUDA out of memory. umadvise: ", message);
  TORCH_CHECK(false, message);
}
// The message is read here, after the call: a caller's arguments would be evaluated in any order.
inline void throw_as_torch(um_status status, const char* (*message)() = um_last_error) {
  if (status != UM_OK) throw_as_torch(status, std::string(message()));
}

}  // namespace um::hooks
