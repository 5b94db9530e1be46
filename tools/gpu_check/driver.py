"""The driver's functions of an open device, as the core's own table has them: of CUDA, or of the emulated device."""

import ctypes
import time
from collections.abc import Callable
from typing import Any

from umadvise._native import Device

_ADDRESS, _SIZE, _FLAGS, _STREAM = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_ulonglong, ctypes.c_void_p
_POINTER, _NUMBER, _ENUM = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint

DEVICE, HOST, HOST_NUMA = 1, 2, 3  # CUmemLocationType
READ, READ_AND_WRITE = 1, 3  # CUmemAccess_flags
ADVICE = {"read_mostly": 1, "preferred_location": 3, "accessed_by": 5}
"""CUmem_advise; each number + 1 takes it away again."""
_PINNED, _NON_BLOCKING, _GLOBAL = 1, 1, 1


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", _ENUM), ("id", _NUMBER))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", _ENUM),
        ("handle_types", _ENUM),
        ("location", Location),
        ("win32", _POINTER),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", _ENUM))


# The forms that csrc/driver/table.h names.
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "cuDriverGetVersion": (_POINTER,),
    "cuDevicePrimaryCtxRetain": (_POINTER, _NUMBER),
    "cuDeviceGet": (_POINTER, _NUMBER),
    "cuCtxSetCurrent": (_POINTER,),
    "cuCtxSynchronize": (),
    "cuMemAllocManaged": (_POINTER, _SIZE, _ENUM),
    "cuMemFree": (_ADDRESS,),
    "cuMemAdvise": (_ADDRESS, _SIZE, _ENUM, Location),
    "cuMemPrefetchAsync": (_ADDRESS, _SIZE, Location, _ENUM, _STREAM),
    "cuMemDiscardBatchAsync": (_POINTER, _POINTER, _SIZE, _FLAGS, _STREAM),
    "cuMemDiscardAndPrefetchBatchAsync": (_POINTER, _POINTER, _SIZE, _POINTER, _POINTER, _SIZE, _FLAGS, _STREAM),
    "cuMemAddressReserve": (_POINTER, _SIZE, _SIZE, _ADDRESS, _FLAGS),
    "cuMemAddressFree": (_ADDRESS, _SIZE),
    "cuMemCreate": (_POINTER, _SIZE, _POINTER, _FLAGS),
    "cuMemRelease": (_ADDRESS,),
    "cuMemMap": (_ADDRESS, _SIZE, _SIZE, _ADDRESS, _FLAGS),
    "cuMemUnmap": (_ADDRESS, _SIZE),
    "cuMemSetAccess": (_ADDRESS, _SIZE, _POINTER, _SIZE),
    "cuMemGetAllocationGranularity": (_POINTER, _POINTER, _ENUM),
    "cuMemsetD8Async": (_ADDRESS, ctypes.c_ubyte, _SIZE, _STREAM),
    "cuStreamCreate": (_POINTER, _ENUM),
}


class DriverError(Exception):
    """A function that is missing, or that failed; the message says which, and why."""


class Driver:
    """Calls the functions of one device's driver, from the thread that made this."""

    def __init__(self, device: Device) -> None:
        """Makes the device's context current in this thread."""
        self.missing = {name: reason for name, reason in device.driver_functions().items() if reason is not None}
        self._functions: dict[str, Callable[..., int]] = {
            name: ctypes.CFUNCTYPE(_ENUM, *_ARGUMENTS[name])(address)
            for name, address in device.driver_addresses().items()
            if name in _ARGUMENTS
        }
        self.ordinal = max(device.info().ordinal, 0)
        self._device = self._made(_NUMBER, "cuDeviceGet", self.ordinal)
        self.call("cuCtxSetCurrent", self._made(_POINTER, "cuDevicePrimaryCtxRetain", self._device))
        self.stream = self._made(_STREAM, "cuStreamCreate", _NON_BLOCKING)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function by CUDA's name.

        Raises:
            DriverError: this driver lacks it, or it failed.
        """
        if name not in self._functions:
            raise DriverError(self.missing.get(name, f"{name} is no function of the driver table"))
        result = self._functions[name](*arguments)
        if result != 0:
            raise DriverError(f"{name} failed with {result}")

    def timed(self, name: str, *arguments: Any) -> int:
        """Likewise; the nanoseconds until it returned."""
        started = time.perf_counter_ns()
        self.call(name, *arguments)
        return time.perf_counter_ns() - started

    def synchronize(self) -> None:
        """Waits for all work of the device."""
        self.call("cuCtxSynchronize")

    def _made(self, kind: Any, name: str, *arguments: Any) -> Any:
        out = kind()
        self.call(name, ctypes.byref(out), *arguments)
        return out.value

    # ---- managed memory ---------------------------------------------------------------------------------------------

    def location(self, *, host: bool = False) -> Location:
        """The device, or the host."""
        return Location(HOST, 0) if host else Location(DEVICE, self.ordinal)

    def managed(self, size_bytes: int) -> int:
        """Address of new managed memory."""
        return int(self._made(_ADDRESS, "cuMemAllocManaged", size_bytes, _GLOBAL))

    def advise(self, address: int, size_bytes: int, advice: int) -> int:
        """Gives or takes away an advice about the device; nanoseconds of the call."""
        return self.timed("cuMemAdvise", address, size_bytes, advice, self.location())

    def prefetch(self, address: int, size_bytes: int, *, host: bool = False) -> tuple[int, int]:
        """Nanoseconds until the call returned, and until all was there."""
        started = time.perf_counter_ns()
        self.call("cuMemPrefetchAsync", address, size_bytes, self.location(host=host), 0, self.stream)
        returned = time.perf_counter_ns()
        self.synchronize()
        return returned - started, time.perf_counter_ns() - started

    def discard(self, address: int, size_bytes: int, *, prefetch: bool = False) -> tuple[int, int]:
        """Likewise, of a discard, or of one together with a prefetch to the device."""
        addresses, sizes = (_ADDRESS * 1)(address), (_SIZE * 1)(size_bytes)
        locations, starts = (Location * 1)(self.location()), (_SIZE * 1)(0)
        started = time.perf_counter_ns()
        if prefetch:
            name = "cuMemDiscardAndPrefetchBatchAsync"
            self.call(name, addresses, sizes, 1, locations, starts, 1, 0, self.stream)
        else:
            self.call("cuMemDiscardBatchAsync", addresses, sizes, 1, 0, self.stream)
        returned = time.perf_counter_ns()
        self.synchronize()
        return returned - started, time.perf_counter_ns() - started

    # ---- virtual memory management ----------------------------------------------------------------------------------

    def _properties(self, *, host: bool) -> _Properties:
        return _Properties(_PINNED, 0, Location(HOST_NUMA, 0) if host else self.location())

    def granularity(self, *, host: bool = False) -> int:
        """What the sizes of chunks are multiples of, in bytes."""
        properties = self._properties(host=host)
        return int(self._made(_SIZE, "cuMemGetAllocationGranularity", ctypes.byref(properties), 0))

    def reserve(self, size_bytes: int) -> int:
        """A range of addresses."""
        return int(self._made(_ADDRESS, "cuMemAddressReserve", size_bytes, 0, 0, 0))

    def create(self, size_bytes: int, *, host: bool = False) -> tuple[int, int]:
        """A chunk's handle, and the nanoseconds that it took."""
        handle, properties = _ADDRESS(), self._properties(host=host)
        elapsed = self.timed("cuMemCreate", ctypes.byref(handle), size_bytes, ctypes.byref(properties), 0)
        return handle.value, elapsed

    def set_access(self, address: int, size_bytes: int, flags: int) -> int:
        """Gives the device access to a mapping; nanoseconds of the call."""
        access = _Access(self.location(), flags)
        return self.timed("cuMemSetAccess", address, size_bytes, ctypes.byref(access), 1)
