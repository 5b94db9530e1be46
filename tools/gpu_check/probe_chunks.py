"""Chunks of physical memory: several mappings in one call, one chunk at two addresses, and the host's own chunks."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from driver import RawDriver
from kernels import Kernels, word_at
from memory import MappedChunks
from parts import MIB, or_reason
from sizes import by_kind

COUNTS = by_kind(cuda=(1, 8, 64), emulated=(1, 8))
BUSY_MS = by_kind(cuda=50.0, emulated=5.0)
HOST_CHUNKS = by_kind(cuda=64, emulated=4)
_VALUE = 0xA5A5A5A5


def several(kind: str) -> Any:
    """Opening and unmapping many mappings, one by one and all in one call."""
    driver = RawDriver(kind)
    size = MappedChunks(driver).granularity()
    return [
        {"chunks": count, "chunk_bytes": size, **or_reason(lambda count=count: _several(driver, size, count))}  # type: ignore[misc]
        for count in COUNTS[kind]
    ]


def _several(driver: RawDriver, size: int, count: int) -> dict[str, int]:
    chunks = MappedChunks(driver)
    first, times = chunks.reserve(count * size), {}
    handles = [chunks.create(size)[0] for _ in range(count)]
    for way in ("one_by_one", "in_one_call"):
        pieces = [(first + index * size, size) for index in range(count)]
        started = time.perf_counter_ns()
        for (address, _), handle in zip(pieces, handles, strict=True):
            chunks.map(address, size, handle)
        times[f"map_{way}_ns"] = time.perf_counter_ns() - started  # there is no call that maps several handles
        whole = pieces if way == "one_by_one" else [(first, count * size)]
        started = time.perf_counter_ns()
        for address, length in whole:
            chunks.set_access(address, length)
        times[f"set_access_{way}_ns"] = time.perf_counter_ns() - started
        driver.call("cuMemsetD8Async", first, 1, count * size, driver.stream)
        driver.synchronize()
        started = time.perf_counter_ns()
        for address, length in whole:
            chunks.unmap(address, length)
        times[f"unmap_{way}_ns"] = time.perf_counter_ns() - started
    for handle in handles:
        driver.call("cuMemRelease", handle)
    driver.call("cuMemAddressFree", first, count * size)
    return times


def twice(kind: str) -> Any:
    """One chunk at two addresses: what a kernel writes through one, another stream in order reads through the other."""
    driver = RawDriver(kind)
    kernels, chunks = Kernels(driver), MappedChunks(driver)
    size = chunks.granularity()
    one, two = driver.stream, driver.new_stream()
    (handle, _), first, second = chunks.create(size), chunks.reserve(size), chunks.reserve(size)
    plain, host = driver.plain(size), driver.pinned(size)

    def read(address: int, value: int) -> bool:
        """Whether all of the chunk has a value, for stream `two` after `one`."""
        driver.order(two, one)
        kernels.copy(two, plain, address, size)
        driver.call("cuMemcpyDtoHAsync", host, plain, size, two)
        driver.synchronize()
        return all(word_at(host + offset) == value for offset in range(0, size, size // 64))

    found: dict[str, Any] = {"map_ns": chunks.map(first, size, handle), "set_access_ns": chunks.set_access(first, size)}
    kernels.spin(one, BUSY_MS[kind])
    kernels.fill(one, first, size, _VALUE)
    found["map_again_ns"] = chunks.map(second, size, handle)
    found["set_access_again_ns"] = chunks.set_access(second, size)
    found["kernel_still_ran"] = driver.busy(one)
    found["read_through_second"] = read(second, _VALUE)
    kernels.fill(one, second, size, _VALUE + 1)
    found["read_through_first"] = read(first, _VALUE + 1)
    kernels.spin(one, BUSY_MS[kind])
    kernels.fill(one, second, size, _VALUE + 2)  # it runs while the other mapping goes
    found["unmap_first_ns"] = chunks.unmap(first, size)
    found["kernel_still_ran_after_unmap"] = driver.busy(one)
    found["read_after_unmap_of_first"] = read(second, _VALUE + 2)
    return found


@contextmanager
def _host_chunks(driver: RawDriver, count: int, *, host_access: bool) -> Iterator[tuple[int, int]]:
    """Address and size of chunks of the host's memory, side by side, which the device may use."""
    chunks = MappedChunks(driver)
    size = max(chunks.granularity(host=True), 2 * MIB)
    first = chunks.reserve(count * size)
    for index in range(count):
        handle, _ = chunks.create(size, host=True)
        chunks.map(first + index * size, size, handle)
        driver.call("cuMemRelease", handle)  # it lives as long as the mapping
    chunks.set_access(first, count * size)
    if host_access:
        chunks.set_access(first, count * size, host=True)
    yield first, count * size
    driver.synchronize()
    driver.call("cuMemUnmap", first, count * size)
    driver.call("cuMemAddressFree", first, count * size)


def host_numa(kind: str) -> Any:
    """Whether cuMemCreate makes chunks of the host's memory: some drivers before r595 die of it (NVIDIA/nccl #2106)."""
    driver = RawDriver(kind)
    kernels = Kernels(driver)
    with _host_chunks(driver, 1, host_access=True) as (address, size):
        kernels.fill(driver.stream, address, size, _VALUE)
        driver.synchronize()
        return {
            "numa_node": driver.numa_node,
            "bytes": size,
            "host_reads_what_kernel_wrote": word_at(address) == _VALUE,
        }


def host_numa_copies(kind: str) -> Any:
    """Copies from and to such chunks: where the driver takes them for pageable memory, the call waits for the copy."""
    driver = RawDriver(kind)
    with _host_chunks(driver, HOST_CHUNKS[kind], host_access=True) as (address, size):
        plain = driver.plain(size)
        return copied(driver, [(address, size)], plain)


def copied(driver: RawDriver, pieces: list[tuple[int, int]], plain: int) -> dict[str, Any]:
    """Copies pieces of the host's memory to the device and back: how long the calls take, and until all was there."""
    total = sum(size for _, size in pieces)
    found: dict[str, Any] = {"copies": len(pieces), "bytes": total}
    for round_index in range(2):  # the first one may prepare something
        for way, name in (("h2d", "cuMemcpyHtoDAsync"), ("d2h", "cuMemcpyDtoHAsync")):
            started, offset = time.perf_counter_ns(), 0
            for host, size in pieces:
                order = (plain + offset, host) if way == "h2d" else (host, plain + offset)
                driver.call(name, *order, size, driver.stream)
                offset += size
            called = time.perf_counter_ns() - started
            driver.synchronize()
            done = time.perf_counter_ns() - started
            if round_index > 0:
                found[way] = {"call_ns": called, "done_ns": done, "gb_per_s": round(total / done, 2)}
    return found
