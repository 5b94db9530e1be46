"""Chunks of physical memory: several mappings in one call, one chunk under many ranges, and the host's own chunks."""

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from driver import RawDriver
from kernels import WORD_BYTES, Kernels, word_at
from memory import MappedChunks
from parts import MIB, or_reason
from sizes import by_kind

COUNTS = by_kind(cuda=(1, 8, 64, 512), emulated=(1, 8))
RANGES = 16
"""Under which one chunk lies at once."""
LAYOUT = by_kind(cuda=(256, 64, 1024), emulated=(8, 4, 16))
"""Chunks, chunks of a range, and ranges: mapped as a layout maps them, 65,536 times in all."""
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


def aliased(kind: str) -> Any:
    """One chunk under many ranges: what is written through any, another stream in order reads through all of them.

    Kernels write, and copies from the host; kernels read, and copies to the host.
    """
    driver = RawDriver(kind)
    kernels, chunks = Kernels(driver), MappedChunks(driver)
    size = chunks.granularity()
    one, two = driver.stream, driver.new_stream()
    (handle, _), ranges = chunks.create(size), [chunks.reserve(size) for _ in range(RANGES)]
    plain, host = driver.plain(size), driver.pinned(size)

    def mapped(address: int) -> int:
        return chunks.map(address, size, handle) + chunks.set_access(address, size)

    def write(address: int, value: int, *, copies: bool) -> None:
        if not copies:
            return kernels.fill(one, address, size, value)
        ctypes.memmove(host, value.to_bytes(WORD_BYTES, "little") * (size // WORD_BYTES), size)
        driver.call("cuMemcpyHtoDAsync", address, host, size, one)
        return driver.synchronize()  # the host's memory is read into next

    def read(address: int, value: int, *, copies: bool = False) -> bool:
        """Whether all of the chunk has a value, for stream `two` after `one`."""
        driver.order(two, one)
        source = address
        if not copies:
            kernels.copy(two, plain, address, size)
            source = plain
        driver.call("cuMemcpyDtoHAsync", host, source, size, two)
        driver.synchronize()
        return all(word_at(host + offset) == value for offset in range(0, size, size // 64))

    def wrong(*, copies: bool) -> list[tuple[int, int]]:
        """Writer and reader of each pair that disagrees."""
        pairs = []
        for index, writer in enumerate(ranges):
            write(writer, _VALUE + index, copies=copies)
            found = [read(reader, _VALUE + index, copies=copies) for reader in ranges]
            pairs += [(index, other) for other, right in enumerate(found) if not right]
        return pairs

    first, *others = ranges
    found: dict[str, Any] = {"ranges": RANGES, "map_first_ns": mapped(first)}
    kernels.spin(one, BUSY_MS[kind])
    kernels.fill(one, first, size, _VALUE)
    found["map_others_ns"] = [mapped(address) for address in others]
    found["kernel_still_ran"] = driver.busy(one)
    found["read_what_was_written_before"] = all(read(address, _VALUE) for address in others)
    found["wrong_kernels"], found["wrong_copies"] = wrong(copies=False), wrong(copies=True)
    found["read_through_all"] = not found["wrong_kernels"] and not found["wrong_copies"]
    kernels.spin(one, BUSY_MS[kind])
    kernels.fill(one, others[0], size, _VALUE)  # it runs while the other mapping goes
    found["unmap_first_ns"] = chunks.unmap(first, size)
    found["kernel_still_ran_after_unmap"] = driver.busy(one)
    found["read_after_unmap_of_first"] = read(others[0], _VALUE)
    return found


def layout(kind: str) -> Any:
    """As many mappings as a layout has: their time, the first and the last ranges', and what the device has less."""
    driver = RawDriver(kind)
    chunks, (count, length, ranges) = MappedChunks(driver), LAYOUT[kind]
    size = chunks.granularity()
    handles = [chunks.create(size)[0] for _ in range(count)]
    free_bytes = driver.free_bytes()
    maps, opens, addresses = list[int](), list[int](), list[int]()
    for index in range(ranges):
        addresses.append(chunks.reserve(length * size))
        under = [handles[(index * length + place) % count] for place in range(length)]
        maps.append(sum(chunks.map(addresses[-1] + at * size, size, handle) for at, handle in enumerate(under)))
        opens.append(chunks.set_access(addresses[-1], length * size))
    driver.call("cuMemsetD8Async", addresses[-1], 1, length * size, driver.stream)
    driver.synchronize()
    taken_bytes = free_bytes - driver.free_bytes()
    part = ranges // 8
    return {
        "mappings": ranges * length,
        "chunks_of_a_range": length,
        "map_range_ns": {"first": median(maps[:part]), "last": median(maps[-part:]), "all": sum(maps)},
        "set_access_range_ns": {"first": median(opens[:part]), "last": median(opens[-part:]), "all": sum(opens)},
        "unmap_range_ns": median(chunks.unmap(address, length * size) for address in addresses),
        "device_bytes_taken": taken_bytes,
    }


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
