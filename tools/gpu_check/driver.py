"""The CUDA driver by ctypes: what the probes call. It needs neither torch nor umadvise's core.

The core has a driver table of its own, and this is a second one on purpose: these programs measure the driver where the
core cannot be built, or dies. In a dry run libcuda.so.1 is the stand-in behind which the emulated device works.
"""

import ctypes
import time
from collections.abc import Callable
from typing import Any

from sizes import small

_ADDRESS, _SIZE, _FLAGS, _STREAM = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_ulonglong, ctypes.c_void_p
_POINTER, NUMBER, _ENUM, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p

DEVICE, HOST, HOST_NUMA = 1, 2, 3  # CUmemLocationType
READ, READ_AND_WRITE = 1, 3  # CUmemAccess_flags
ADVICE = {"read_mostly": 1, "preferred_location": 3, "accessed_by": 5}
"""CUmem_advise; each number + 1 takes it away again."""
NOT_READY = 600
_NON_BLOCKING, _NO_TIMING, _LEGACY = 1, 2, 1
LEGACY_STREAM = 0
_HOST_NUMA_ID = 134  # CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID
CAPACITY_BYTES = 512 << 20
"""Of the stand-in's device."""


class CUmemLocation(ctypes.Structure):
    """A place for memory, as cuda.h lays it out."""

    _fields_ = (("type", _ENUM), ("id", NUMBER))


class CUmemAllocationProp(ctypes.Structure):
    """What a chunk of physical memory is asked for by, as cuda.h lays it out."""

    _fields_ = (
        ("type", _ENUM),
        ("handle_types", _ENUM),
        ("location", CUmemLocation),
        ("win32", _POINTER),
        ("flags", ctypes.c_ubyte * 8),
    )


class CUmemAccessDesc(ctypes.Structure):
    """Who may use a mapping, as cuda.h lays it out."""

    _fields_ = (("location", CUmemLocation), ("flags", _ENUM))


FUNCTIONS: dict[str, tuple[int, tuple[Any, ...]]] = {
    "cuInit": (2000, (_ENUM,)),
    "cuDriverGetVersion": (2020, (_POINTER,)),
    "cuDeviceGet": (2000, (_POINTER, NUMBER)),
    "cuDeviceGetName": (2000, (_POINTER, NUMBER, NUMBER)),
    "cuDeviceGetAttribute": (2000, (_POINTER, NUMBER, NUMBER)),
    "cuDevicePrimaryCtxRetain": (7000, (_POINTER, NUMBER)),
    "cuCtxSetCurrent": (4000, (_POINTER,)),
    "cuCtxSynchronize": (2000, ()),
    "cuMemGetInfo": (3020, (_POINTER, _POINTER)),
    "cuMemAlloc": (3020, (_POINTER, _SIZE)),
    "cuMemFree": (3020, (_ADDRESS,)),
    "cuMemAllocManaged": (6000, (_POINTER, _SIZE, _ENUM)),
    "cuMemAdvise": (12020, (_ADDRESS, _SIZE, _ENUM, CUmemLocation)),
    "cuMemPrefetchAsync": (12020, (_ADDRESS, _SIZE, CUmemLocation, _ENUM, _STREAM)),
    "cuMemDiscardBatchAsync": (13000, (_POINTER, _POINTER, _SIZE, _FLAGS, _STREAM)),
    "cuMemDiscardAndPrefetchBatchAsync": (
        13000,
        (_POINTER, _POINTER, _SIZE, _POINTER, _POINTER, _SIZE, _FLAGS, _STREAM),
    ),
    "cuMemAddressReserve": (10020, (_POINTER, _SIZE, _SIZE, _ADDRESS, _FLAGS)),
    "cuMemAddressFree": (10020, (_ADDRESS, _SIZE)),
    "cuMemCreate": (10020, (_POINTER, _SIZE, _POINTER, _FLAGS)),
    "cuMemRelease": (10020, (_ADDRESS,)),
    "cuMemMap": (10020, (_ADDRESS, _SIZE, _SIZE, _ADDRESS, _FLAGS)),
    "cuMemUnmap": (10020, (_ADDRESS, _SIZE)),
    "cuMemSetAccess": (10020, (_ADDRESS, _SIZE, _POINTER, _SIZE)),
    "cuMemGetAllocationGranularity": (10020, (_POINTER, _POINTER, _ENUM)),
    "cuMemcpyHtoDAsync": (3020, (_ADDRESS, _POINTER, _SIZE, _STREAM)),
    "cuMemcpyDtoHAsync": (3020, (_POINTER, _ADDRESS, _SIZE, _STREAM)),
    "cuMemsetD8Async": (3020, (_ADDRESS, ctypes.c_ubyte, _SIZE, _STREAM)),
    "cuStreamCreate": (2000, (_POINTER, _ENUM)),
    "cuStreamQuery": (2000, (_STREAM,)),
    "cuStreamSynchronize": (2000, (_STREAM,)),
    "cuStreamWaitEvent": (3020, (_STREAM, _POINTER, _ENUM)),
    "cuEventCreate": (2000, (_POINTER, _ENUM)),
    "cuEventDestroy": (4000, (_POINTER,)),
    "cuEventRecord": (2000, (_POINTER, _STREAM)),
    "cuEventQuery": (2000, (_POINTER,)),
    "cuMemHostAlloc": (2020, (_POINTER, _SIZE, _ENUM)),
    "cuMemFreeHost": (2000, (_POINTER,)),
    "cuMemHostRegister": (6050, (_POINTER, _SIZE, _ENUM)),
    "cuMemHostUnregister": (4000, (_POINTER,)),
    "cuModuleLoadData": (2000, (_POINTER, _TEXT)),
    "cuModuleGetFunction": (2000, (_POINTER, _POINTER, _TEXT)),
    "cuLaunchKernel": (4000, (_POINTER, *[_ENUM] * 7, _STREAM, _POINTER, _POINTER)),
}
"""By CUDA's name: the version that brought this form, and its arguments (csrc/driver/table.h, cuda.h)."""


class DriverError(Exception):
    """A function that is missing, or that failed; the message says which, and why."""


class RawDriver:
    """The functions of the driver, and its first device, in the thread that made this and those that enter it.

    Attributes:
        stand_in: no GPU, but the emulated device.
        library: the loaded library.
        version: the version that the driver supports, as 13000 for CUDA 13.0.
        missing: functions that it lacks, with the reason.
        stream: one beside the legacy stream.
        numa_node: the host's memory that is next to the device.
    """

    def __init__(self, kind: str) -> None:
        """Opens the device.

        Args:
            kind: "cuda", or "emulated" for the stand-in.

        Raises:
            DriverError: there is no such driver, or no device.
        """
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverError(f"no driver: {error}") from error
        self.stand_in = hasattr(self.library, "emulated_libcuda_devices")
        if self.stand_in != (kind == "emulated") and not (self.stand_in and small()):
            raise DriverError(f"libcuda.so.1 is {'a stand-in' if self.stand_in else 'no stand-in'}: see {kind}")
        if self.stand_in:
            self.library.emulated_libcuda_devices(1, ctypes.c_uint64(CAPACITY_BYTES), 0)
        self.missing: dict[str, str] = {}
        self._functions: dict[str, Callable[..., int]] = {}
        self._find("cuDriverGetVersion", 2020)
        self.version = 2020
        self.version = int(self.made(NUMBER, "cuDriverGetVersion"))
        for name, (version, _) in FUNCTIONS.items():
            self._find(name, version)
        self.call("cuInit", 0)
        self.device = int(self.made(NUMBER, "cuDeviceGet", 0))
        self._context = self.made(_POINTER, "cuDevicePrimaryCtxRetain", self.device)
        self.enter_thread()
        self.stream = self.new_stream()
        self.numa_node = max(0, self.attribute(_HOST_NUMA_ID) or 0)

    def enter_thread(self) -> None:
        """Lets the calling thread use the device too."""
        self.call("cuCtxSetCurrent", self._context)

    def attribute(self, number: int) -> int | None:
        """An attribute of the device; None where the driver does not know it."""
        value = NUMBER()
        answered = self.result("cuDeviceGetAttribute", ctypes.byref(value), number, self.device) == 0
        return value.value if answered else None

    def _find(self, name: str, version: int) -> None:
        address = _POINTER()
        find = self.library.cuGetProcAddress_v2
        find.argtypes = (_TEXT, _POINTER, NUMBER, _FLAGS, _POINTER)
        if find(name.encode(), ctypes.byref(address), version, _LEGACY, None) != 0 or not address.value:
            wanted = f"CUDA {version // 1000}.{version % 1000 // 10}"
            self.missing[name] = f"this driver lacks {name} (of {wanted})"
            return
        self._functions[name] = ctypes.CFUNCTYPE(_ENUM, *FUNCTIONS[name][1])(address.value)

    def result(self, name: str, *arguments: Any) -> int:
        """The number that a function returns.

        Raises:
            DriverError: this driver lacks it.
        """
        if name not in self._functions:
            raise DriverError(self.missing.get(name, f"{name} is no function that is called here"))
        return self._functions[name](*arguments)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function by CUDA's name.

        Raises:
            DriverError: this driver lacks it, or it failed.
        """
        if (result := self.result(name, *arguments)) != 0:
            raise DriverError(f"{name} failed with {result}")

    def timed(self, name: str, *arguments: Any) -> int:
        """Calls it, and gives the nanoseconds until it returned."""
        started = time.perf_counter_ns()
        self.call(name, *arguments)
        return time.perf_counter_ns() - started

    def made(self, kind: Any, name: str, *arguments: Any) -> Any:
        """What a function writes to its first argument."""
        out = kind()
        self.call(name, ctypes.byref(out), *arguments)
        return out.value

    # ---- streams and events -----------------------------------------------------------------------------------------

    def new_stream(self) -> int:
        """A stream that does not wait for the legacy one."""
        return int(self.made(_STREAM, "cuStreamCreate", _NON_BLOCKING))

    def new_event(self) -> int:
        """An event without a clock."""
        return int(self.made(_POINTER, "cuEventCreate", _NO_TIMING))

    def order(self, later: int, earlier: int) -> None:
        """Makes one stream wait for what another one has been given until now."""
        event = self.new_event()
        self.call("cuEventRecord", event, earlier)
        self.call("cuStreamWaitEvent", later, event, 0)
        self.call("cuEventDestroy", event)

    def busy(self, stream: int) -> bool:
        """Whether a stream has work left."""
        return self.result("cuStreamQuery", stream) == NOT_READY

    def synchronize(self) -> None:
        """Waits for all work of the device."""
        self.call("cuCtxSynchronize")

    # ---- memory -----------------------------------------------------------------------------------------------------

    def free_bytes(self) -> int:
        """Of the device's memory."""
        free, total = _SIZE(), _SIZE()
        self.call("cuMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def plain(self, size_bytes: int) -> int:
        """Address of new memory of the device."""
        return int(self.made(_ADDRESS, "cuMemAlloc", size_bytes))

    def pinned(self, size_bytes: int) -> int:
        """Address of new page-locked memory of the host."""
        return int(self.made(_POINTER, "cuMemHostAlloc", size_bytes, 0))

    def location(self, *, host: bool = False) -> CUmemLocation:
        """The device, or the host."""
        return CUmemLocation(HOST, 0) if host else CUmemLocation(DEVICE, 0)
