"""Managed memory: whether prefetches wait, what a discard takes away, and whether CUPTI counts faults."""

import ctypes
import os
import time
from typing import Any

from driver import LEGACY_STREAM, DriverError, RawDriver
from kernels import WORD_BYTES, Kernels, word_at
from memory import Managed
from parts import MIB, or_reason
from sizes import by_kind

from umadvise.devices import discard_proof

RANGE_BYTES = by_kind(cuda=64 * MIB, emulated=8 * MIB)
KERNEL_MS = by_kind(cuda=50.0, emulated=5.0)
ROUNDS = by_kind(cuda=3, emulated=1)
_OLD, _NEW = 0x11111111, 0x22222222


# ---- prefetches ------------------------------------------------------------------------------------------------------


def prefetches(kind: str) -> Any:
    """How long the call takes and until all is done: idle, behind a kernel of its stream, and beside one of another.

    Where a call idle takes as long as its work, it waits for the work; where it takes as long behind a kernel, too.
    """
    driver = RawDriver(kind)
    kernels, managed = Kernels(driver), Managed(driver)
    size, other = RANGE_BYTES[kind], driver.new_stream()
    address = managed.allocate(size)

    def timed(stream: int, busy: int | None, *, host: bool, moves: bool) -> dict[str, Any]:
        there = managed.prefetch(address, size, host=host != moves)
        if moves and host:  # what the device wrote must be copied
            kernels.fill(driver.stream, address, size, _OLD)
            driver.synchronize()
        if busy is not None:
            kernels.spin(busy, KERNEL_MS[kind])
            time.sleep(0.001)  # until it runs
        started = time.perf_counter_ns()
        driver.call("cuMemPrefetchAsync", address, size, driver.location(host=host), 0, stream)
        called = time.perf_counter_ns() - started
        still = None if busy is None else driver.busy(busy)
        driver.synchronize()
        done = time.perf_counter_ns() - started
        return {"call_ns": called, "done_ns": done, "kernel_still_ran": still, "before_ns": there[1]}

    rows = []
    for way, host, moves in (
        ("to_host", True, True),
        ("to_device", False, True),
        ("to_host, already there", True, False),
        ("to_device, already there", False, False),
    ):
        for stream_name, stream in (("own", driver.stream), ("legacy", LEGACY_STREAM)):
            for when, busy in (("idle", None), ("behind a kernel", stream), ("beside a kernel", other)):
                rounds = [timed(stream, busy, host=host, moves=moves) for _ in range(ROUNDS[kind])]
                rows.append({"way": way, "stream": stream_name, "when": when, "rounds": rounds})
    return {"bytes": size, "kernel_ms": KERNEL_MS[kind], "rows": rows}


# ---- discards --------------------------------------------------------------------------------------------------------


def discards(kind: str) -> Any:
    """What was written after a discard, to a half of each page, and then sent to the host: it must all be there.

    cuda.h: a write undoes a discard. What was not written again may be anything. Sessions on this driver discard what
    is freed from now on where all of it was, and not otherwise.
    """
    driver = RawDriver(kind)
    kernels, managed = Kernels(driver), Managed(driver)
    size, other = RANGE_BYTES[kind], driver.new_stream()

    def kept(page_bytes: int, stream: int, *, prefetched: bool = False) -> dict[str, Any]:
        address = managed.allocate(size)
        managed.prefetch(address, size)
        kernels.fill(driver.stream, address, size, _OLD)
        driver.synchronize()
        managed.discard(address, size, prefetch=prefetched)
        if stream != driver.stream:
            driver.order(stream, driver.stream)
        kernels.fill(stream, address, size, _NEW, page_bytes=page_bytes, part=0.5)
        driver.synchronize()
        managed.prefetch(address, size, host=True)
        found = _words(address, size, page_bytes)
        driver.call("cuMemFree", address)
        return found

    def tried(page_bytes: int, stream: int = driver.stream, *, prefetched: bool = False) -> Any:
        return or_reason(lambda: kept(page_bytes, stream, prefetched=prefetched))

    found = {
        "half of each 2 MiB": tried(2 * MIB),
        "half of each 64 KiB": tried(64 << 10),
        "half of each 4 KiB": tried(4 << 10),
        "in another stream": tried(64 << 10, other),
        "in the legacy stream": tried(64 << 10, LEGACY_STREAM),
        "after a discard with a prefetch": tried(64 << 10, prefetched=True),
    }
    if kind == "cuda":  # a stand-in says nothing of a driver
        found["trusted"] = discard_proof.keep(all(each.get("all_written_kept", False) for each in found.values()))
    return found


def _words(address: int, size: int, page_bytes: int) -> dict[str, Any]:
    """Eight words of each half of each page: how many of those that were written are lost, and what the others are."""
    half, step = page_bytes // 2, page_bytes // 16
    lost, other = 0, {"old": 0, "new": 0, "zero": 0, "else": 0}
    for page in range(address, address + size, page_bytes):
        for offset in range(0, half, step):
            lost += word_at(page + offset) != _NEW
            value = word_at(page + half + offset + WORD_BYTES)
            other[{_OLD: "old", _NEW: "new", 0: "zero"}.get(value, "else")] += 1
    return {"all_written_kept": lost == 0, "written_words_lost": lost, "words_not_written": other}


# ---- CUPTI -----------------------------------------------------------------------------------------------------------


def counted(kind: str, *, allocated_first: bool) -> Any:
    """Faults of a sweep over memory that is asked for while counters are on, or was there before they were.

    Nobody documents that the latter works.
    """
    driver = RawDriver(kind)
    kernels = Kernels(driver)
    if cupti := os.environ.get("GPU_CHECK_CUPTI"):  # a stand-in too
        ctypes.CDLL(cupti)
    else:
        __import__("torch")  # brings the library of its CUDA version
    import msgspec

    from umadvise import _native
    from umadvise._native.abi import Memory, Placement
    from umadvise.errors import UmadviseError
    from umadvise.records.enums import Advice, Phase, Role

    size, where = RANGE_BYTES[kind], Placement(Memory.MANAGED, Role.PARAMETER, Advice.NONE)

    def written_by_host(device: _native.Device) -> int:
        """New memory whose pages lie with the host: a kernel that writes to it faults."""
        address = device.allocate(size, where)
        ctypes.memset(address, 1, size)
        Managed(driver).prefetch(address, size, host=True)
        return address

    try:
        device = _native.Device.open_cuda(0)
        address = written_by_host(device) if allocated_first else 0
        device.set_sampling(1)
        device.set_step(1)
        address = address or written_by_host(device)
        device.op_begin("aten::fill_", Phase.FORWARD, "", [(address, size, True)])
        kernels.fill(LEGACY_STREAM, address, size, _NEW)
        driver.synchronize()
        device.op_end([address])
        device.set_step(0)
        found, seen, library = device.counters(), device.sampling(), _native.cupti_library()
    except UmadviseError as error:
        raise DriverError(str(error)) from error
    return {
        "bytes": size,
        "library": f"{library.path}, API {library.version}",
        "sampled_steps": seen.steps,
        "reason_not_sampled": seen.reason or None,
        "fault_groups": found.fault_groups,
        "page_faults": seen.page_faults,
        "bytes_h2d": None if found.bytes_h2d is None else list(msgspec.structs.astuple(found.bytes_h2d)),
    }
