// What every emulated driver function begins with.
#pragma once

#include "devices/emulated/device.h"
#include "driver/table.h"

namespace um::emulated {

using namespace um::driver;  // NOLINT(google-build-using-namespace): all that includes this speaks of the driver's
                             // types

// The device of the calling thread's context, -1 for none.
extern thread_local int current_ordinal;

// Those that fail for want of memory where a test asks for a failure.
constexpr bool needs_memory(Function function) {
  return function == Function::mem_alloc || function == Function::mem_alloc_managed ||
         function == Function::mem_host_alloc || function == Function::mem_address_reserve ||
         function == Function::mem_create || function == Function::mem_map;
}

inline Device* device_of(CUdeviceptr address) { return device_at(place_of(address).device); }

// Counts the call, finds the device it is about, fails when a test asked for it.
struct Call {
  Call(Function function, Device* about, CUresult without_device) : device(about) {
    if (device == nullptr) {
      result = without_device;
    } else if (device->log.fails(function)) {
      result = needs_memory(function) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
    } else if (device->lost) {
      result = CUDA_ERROR_ILLEGAL_ADDRESS;
    }
  }
  // About the device of the current context, the one with that ordinal, or the one whose memory it is.
  explicit Call(Function function) : Call(function, device_at(current_ordinal), CUDA_ERROR_INVALID_CONTEXT) {}
  Call(Function function, CUdevice ordinal) : Call(function, device_at(ordinal), CUDA_ERROR_INVALID_DEVICE) {}
  Call(Function function, CUdeviceptr address) : Call(function, device_of(address), CUDA_ERROR_INVALID_VALUE) {}
  bool failed() const { return result != CUDA_SUCCESS; }
  // After work was waited for.
  CUresult outcome() const { return device->lost ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS; }

  Device* device;
  CUresult result = CUDA_SUCCESS;
};

// nullptr: the legacy stream, which is the calling thread. cuda.h gives that stream two names, 0 and CU_STREAM_LEGACY
// (1).
inline Stream* stream_of(CUstream stream) {
  return reinterpret_cast<uintptr_t>(stream) <= 1 ? nullptr : reinterpret_cast<Stream*>(stream);
}

inline CUresult done_if(bool holds) { return holds ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }
inline CUresult submitted(bool done) { return done ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }

// The table of an emulated device has every function; those of functions_*.cpp bear their slots' names.
namespace functions {
#define UM_EMULATED_FUNCTION(name, symbol, version, ...) CUresult name(__VA_ARGS__);
UM_DRIVER_FUNCTIONS(UM_EMULATED_FUNCTION)
#undef UM_EMULATED_FUNCTION
}  // namespace functions

}  // namespace um::emulated
