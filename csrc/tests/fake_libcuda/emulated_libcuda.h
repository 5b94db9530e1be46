// How tests steer the driver library behind which emulated devices work. Plain C, so that ctypes can too. Settings are
// made before the driver is initialised where they say so, else whenever.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Of the driver, e.g. 12020: functions and attributes that are newer are not there. Before it is loaded.
void emulated_libcuda_version(int version);
// The driver lacks this function, in all its forms. Before it is loaded; NULL: it lacks none again.
void emulated_libcuda_lacks(const char* symbol);
// How many devices it has, what each one holds, and up to how many microseconds of delay there are wherever the order
// of things is left open. Before it is initialised.
void emulated_libcuda_devices(int count, uint64_t capacity_bytes, uint32_t delay_us);
// Of the delays. Before it is initialised.
void emulated_libcuda_seed(uint64_t seed);
// Whether chunks have no bytes, so that devices may be larger than the machine's memory: copies of 64 KiB and more
// take a link's time and move nothing, and fills neither. Before it is initialised.
void emulated_libcuda_hollow(int on);
// What cuDeviceGetAttribute tells, for every device.
void emulated_libcuda_attribute(int attribute, int value);
// The calls number `first` (1: the next one) to `last` of a function fail with this code; NULL: of all functions, as
// they do when the driver is shutting down. The last setting counts; code 0 ends it.
void emulated_libcuda_fails(const char* symbol, unsigned code, uint64_t first, uint64_t last);
// Whether cuMemCreate dies of SIGSEGV when it is asked for memory of the host, as in some drivers below r595.
void emulated_libcuda_host_memory_crashes(int on);
// Whether what the legacy stream is given runs in a thread of its own, as on a GPU, or within the call, as torch's
// kernels for the CPU do that are given to it.
void emulated_libcuda_legacy_is_asynchronous(int on);
// A kernel: runs in the stream (of the current context) when its turn comes. What it touches faults as a GPU does.
unsigned emulated_libcuda_launch(void* stream, void (*kernel)(void*), void* argument);
// Which work runs only when the host waits in the driver and nothing else could go on: 1 kernels, 2 what copies, moves
// or discards memory, 0 none. For both 3: then what was given first goes first.
void emulated_libcuda_latest(unsigned kinds);
// A kernel of this device could not be computed: the device is lost, as on a GPU, and every call fails from now on.
void emulated_libcuda_kernel_failed(int device);
// The driver is as it was at the beginning, but for the devices.
void emulated_libcuda_reset(void);

#ifdef __cplusplus
}

namespace um::driver {
struct DeviceHooks;
}
// What a test may ask the devices behind the driver.
extern "C" const um::driver::DeviceHooks* emulated_libcuda_hooks(void);
#endif
