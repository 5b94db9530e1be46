// What every function of the C ABI shares: exceptions turned into codes, messages kept for the thread that failed.
#pragma once

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "base/error.h"
#include "umadvise.h"

namespace um::capi {

// Plain memory, because frees and failures come after thread-local objects are gone.
inline thread_local char last_error[2048] = "";

inline um_status failed(um_status status, const char* message) noexcept {
  std::snprintf(last_error, sizeof(last_error), "%s", message);
  return status;
}

template <class Work>
um_status caught(const Work& work) noexcept {
  try {
    work();
    return UM_OK;
  } catch (const Error& error) {
    return failed(error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return failed(UM_OUT_OF_HOST_MEMORY, "no host memory for the library's own tables");
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) return failed(UM_BAD_STATE, error.what());
    return failed(
        UM_BAD_STATE,
        "the system refuses another thread: raise the limit on processes (ulimit -u, or the container's limit "
        "on pids)");
  } catch (const std::exception& error) {
    return failed(UM_BAD_STATE, error.what());
  }
}

template <class Pointer>
Pointer* given(Pointer* pointer, const char* what) {
  if (pointer == nullptr) throw Error(UM_INVALID_ARGUMENT, std::string(what) + " is NULL");
  return pointer;
}

}  // namespace um::capi
