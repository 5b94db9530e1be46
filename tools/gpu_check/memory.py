"""Managed memory and chunks of physical memory of one driver: the calls that the probes time."""

import ctypes
import time

from driver import DEVICE, HOST_NUMA, READ_AND_WRITE, CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, RawDriver

_PINNED, _GLOBAL = 1, 1  # CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_ATTACH_GLOBAL


class Managed:
    """Memory that the driver pages between device and host.

    Where two times are given, they are the nanoseconds until the call returned, and until the device's work was done.
    """

    def __init__(self, driver: RawDriver) -> None:
        self._driver = driver

    def allocate(self, size_bytes: int) -> int:
        """Address of new managed memory."""
        return int(self._driver.made(ctypes.c_uint64, "cuMemAllocManaged", size_bytes, _GLOBAL))

    def advise(self, address: int, size_bytes: int, advice: int) -> int:
        """Gives or takes away an advice about the device; nanoseconds of the call."""
        return self._driver.timed("cuMemAdvise", address, size_bytes, advice, self._driver.location())

    def prefetch(self, address: int, size_bytes: int, *, host: bool = False) -> tuple[int, int]:
        """The two times of a prefetch to the device, or to the host."""
        where = self._driver.location(host=host)
        return self._awaited("cuMemPrefetchAsync", address, size_bytes, where, 0, self._driver.stream)

    def discard(self, address: int, size_bytes: int, *, prefetch: bool = False) -> tuple[int, int]:
        """The two times of a discard, or of one together with a prefetch to the device."""
        ranges = (ctypes.c_uint64 * 1)(address), (ctypes.c_size_t * 1)(size_bytes), 1
        if not prefetch:
            return self._awaited("cuMemDiscardBatchAsync", *ranges, 0, self._driver.stream)
        places = (CUmemLocation * 1)(self._driver.location()), (ctypes.c_size_t * 1)(0), 1
        return self._awaited("cuMemDiscardAndPrefetchBatchAsync", *ranges, *places, 0, self._driver.stream)

    def _awaited(self, name: str, *arguments: object) -> tuple[int, int]:
        started = time.perf_counter_ns()
        self._driver.call(name, *arguments)
        returned = time.perf_counter_ns()
        self._driver.synchronize()
        return returned - started, time.perf_counter_ns() - started


class MappedChunks:
    """Physical memory that is mapped by hand, of the device or of the host."""

    def __init__(self, driver: RawDriver) -> None:
        self._driver = driver

    def _place(self, *, host: bool) -> CUmemLocation:
        return CUmemLocation(HOST_NUMA, self._driver.numa_node) if host else CUmemLocation(DEVICE, 0)

    def granularity(self, *, host: bool = False) -> int:
        """What the sizes of chunks are multiples of, in bytes."""
        properties = CUmemAllocationProp(_PINNED, 0, self._place(host=host))
        return int(self._driver.made(ctypes.c_size_t, "cuMemGetAllocationGranularity", ctypes.byref(properties), 0))

    def reserve(self, size_bytes: int) -> int:
        """First address of a new range of addresses."""
        return int(self._driver.made(ctypes.c_uint64, "cuMemAddressReserve", size_bytes, 0, 0, 0))

    def create(self, size_bytes: int, *, host: bool = False) -> tuple[int, int]:
        """A chunk's handle, and the nanoseconds that it took."""
        handle, properties = ctypes.c_uint64(), CUmemAllocationProp(_PINNED, 0, self._place(host=host))
        elapsed = self._driver.timed("cuMemCreate", ctypes.byref(handle), size_bytes, ctypes.byref(properties), 0)
        return handle.value, elapsed

    def map(self, address: int, size_bytes: int, handle: int) -> int:
        """Maps a whole chunk; nanoseconds of the call."""
        return self._driver.timed("cuMemMap", address, size_bytes, 0, handle, 0)

    def unmap(self, address: int, size_bytes: int) -> int:
        """Takes mappings away; nanoseconds of the call."""
        return self._driver.timed("cuMemUnmap", address, size_bytes)

    def set_access(self, address: int, size_bytes: int, flags: int = READ_AND_WRITE, *, host: bool = False) -> int:
        """Gives the device, or the host, access to mappings; nanoseconds of the call."""
        access = CUmemAccessDesc(self._place(host=host), flags)
        return self._driver.timed("cuMemSetAccess", address, size_bytes, ctypes.byref(access), 1)
