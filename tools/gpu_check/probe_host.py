"""Page-locked memory of the host, by size and by how it was asked for; and what events cost."""

import ctypes
import mmap
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from driver import NUMBER, RawDriver
from kernels import Kernels
from parts import MIB, or_reason
from probe_chunks import copied
from sizes import by_kind

SIZES_MIB = by_kind(cuda=(2, 4, 64, 256, 1024), emulated=(2, 64))
COPIED_BYTES = by_kind(cuda=512 * MIB, emulated=32 * MIB)
PIECE_BYTES = 4 * MIB
CALLS = by_kind(cuda=1000, emulated=50)
_BUSY_MS = by_kind(cuda=50.0, emulated=10.0)


def pinned(kind: str) -> Any:
    """CuMemHostAlloc and cuMemFreeHost by size; twice, as the first one may have pages to clear."""
    driver = RawDriver(kind)

    def times(size_bytes: int) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {"allocate_ns": [], "free_ns": []}
        for _ in range(2):
            started = time.perf_counter_ns()
            address = driver.pinned(size_bytes)
            found["allocate_ns"].append(time.perf_counter_ns() - started)
            found["free_ns"].append(driver.timed("cuMemFreeHost", address))
        return found

    return [{"bytes": size * MIB, **times(size * MIB)} for size in SIZES_MIB[kind]]


def registered(kind: str) -> Any:
    """Memory of the process that is page-locked when it has been written, in pages of 4 KiB and in huge ones."""
    driver = RawDriver(kind)

    def times(advice: int, size_bytes: int) -> dict[str, int]:
        with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory.madvise(advice)
            first = ctypes.c_char.from_buffer(memory)
            address = ctypes.addressof(first)
            try:
                started = time.perf_counter_ns()
                ctypes.memset(address, 1, size_bytes)
                written_ns = time.perf_counter_ns() - started
                register_ns = driver.timed("cuMemHostRegister", address, size_bytes, 0)
                return {
                    "write_ns": written_ns,
                    "register_ns": register_ns,
                    "unregister_ns": driver.timed("cuMemHostUnregister", address),
                }
            finally:
                del first  # a mapping that is referred to cannot be closed

    pages = {"4 KiB": mmap.MADV_NOHUGEPAGE, "huge": mmap.MADV_HUGEPAGE}
    sizes = [size * MIB for size in SIZES_MIB[kind]]
    return {name: or_reason(partial(_each, sizes, partial(times, advice))) for name, advice in pages.items()}


def _each(sizes: list[int], measure: Callable[[int], dict[str, int]]) -> list[dict[str, int]]:
    return [measure(size) for size in sizes]


def bandwidth(kind: str) -> Any:
    """Copies from one slab as a whole, from it in pieces, and from pieces that were asked for one by one."""
    driver = RawDriver(kind)
    total = COPIED_BYTES[kind]
    plain, slab = driver.plain(total), driver.pinned(total)
    starts = range(0, total, PIECE_BYTES)
    return {
        "slab": or_reason(lambda: copied(driver, [(slab, total)], plain)),
        "slab in pieces": or_reason(lambda: copied(driver, [(slab + at, PIECE_BYTES) for at in starts], plain)),
        "pieces": or_reason(lambda: copied(driver, [(driver.pinned(PIECE_BYTES), PIECE_BYTES) for _ in starts], plain)),
    }


def events(kind: str) -> Any:
    """Nanoseconds of one call, the mean of many: events made, recorded, asked, waited for and destroyed."""
    driver = RawDriver(kind)
    kernels = Kernels(driver)
    count, other = CALLS[kind], driver.new_stream()
    made: list[int] = []

    def mean_ns(call: Callable[[int], object]) -> int:
        started = time.perf_counter_ns()
        for index in range(count):
            call(index)
        return (time.perf_counter_ns() - started) // count

    found = {
        "of_the_loop": mean_ns(lambda _: driver.result),
        "cuDriverGetVersion": mean_ns(lambda _: driver.made(NUMBER, "cuDriverGetVersion")),
        "cuEventCreate": mean_ns(lambda _: made.append(driver.new_event())),
        "cuEventRecord": mean_ns(lambda index: driver.call("cuEventRecord", made[index], driver.stream)),
        "cuStreamWaitEvent": mean_ns(lambda index: driver.call("cuStreamWaitEvent", other, made[index], 0)),
    }
    driver.synchronize()
    found["cuEventQuery, passed"] = mean_ns(lambda index: driver.result("cuEventQuery", made[index]))
    found["cuStreamQuery, idle"] = mean_ns(lambda _: driver.busy(other))
    kernels.spin(driver.stream, _BUSY_MS[kind])
    driver.call("cuEventRecord", made[0], driver.stream)
    found["cuEventQuery, not yet"] = mean_ns(lambda _: driver.result("cuEventQuery", made[0]))
    found["cuStreamQuery, busy"] = mean_ns(lambda _: driver.busy(driver.stream))
    driver.synchronize()
    found["cuEventDestroy"] = mean_ns(lambda index: driver.call("cuEventDestroy", made[index]))
    return {"calls": count, "ns": found}
