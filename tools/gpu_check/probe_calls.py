"""Whether a call of the driver waits for what is running: its time idle, beside a kernel or a copy, and behind one.

cuda.h marks some calls as synchronizing (`note_sync`) and does not say with what. The kernel and the copy work on
memory of their own, in another stream ("kernel", "copy") or in that of the call ("behind a kernel", "behind a copy");
where nothing of them is left when the call returns, the call has waited.
"""

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from driver import LEGACY_STREAM, NOT_READY, DriverError, RawDriver
from kernels import Kernels
from memory import Managed, MappedChunks
from parts import MIB
from sizes import by_kind

KERNEL_MS = by_kind(cuda=50.0, emulated=5.0)
COPY_BYTES = by_kind(cuda=256 * MIB, emulated=16 * MIB)
COPIES = 6
"""One after the other: about 30 ms over a link of PCIe 5."""
ROUNDS = 3
_SIZE_BYTES = 2 * MIB

Call = Callable[[], object]
Making = Callable[[RawDriver], AbstractContextManager[Call]]


def _pair(make: Callable[[RawDriver], int], free: str) -> tuple[Making, Making]:
    """A call that makes something, and the call that gives it back."""

    @contextmanager
    def making(driver: RawDriver) -> Iterator[Call]:
        made: list[int] = []
        yield lambda: made.append(make(driver))
        driver.call(free, made[0])

    @contextmanager
    def freeing(driver: RawDriver) -> Iterator[Call]:
        made = make(driver)
        yield lambda: driver.call(free, made)

    return making, freeing


def _of_chunk(work: Callable[[MappedChunks, int, int], object], *, mapped: bool, opened: bool = False) -> Making:
    """A call about a range of addresses, by its address, and a chunk, by its handle."""

    @contextmanager
    def calling(driver: RawDriver) -> Iterator[Call]:
        chunks = MappedChunks(driver)
        address, (handle, _) = chunks.reserve(_SIZE_BYTES), chunks.create(_SIZE_BYTES)
        if mapped:
            chunks.map(address, _SIZE_BYTES, handle)
        if opened:
            chunks.set_access(address, _SIZE_BYTES)
        yield lambda: work(chunks, address, handle)
        driver.result("cuMemUnmap", address, _SIZE_BYTES)  # which may have been the call
        driver.call("cuMemRelease", handle)
        driver.call("cuMemAddressFree", address, _SIZE_BYTES)

    return calling


def _of_managed(work: Callable[[RawDriver, int], object]) -> Making:
    """A call about a managed range that lies on the device."""

    @contextmanager
    def calling(driver: RawDriver) -> Iterator[Call]:
        managed = Managed(driver)
        address = managed.allocate(_SIZE_BYTES)
        driver.call("cuMemsetD8Async", address, 1, _SIZE_BYTES, driver.stream)
        managed.prefetch(address, _SIZE_BYTES)
        yield lambda: work(driver, address)
        driver.synchronize()
        driver.call("cuMemFree", address)

    return calling


def _prefetch(*, host: bool, legacy: bool = False) -> Making:
    def work(driver: RawDriver, address: int) -> None:
        stream = LEGACY_STREAM if legacy else driver.stream
        driver.call("cuMemPrefetchAsync", address, _SIZE_BYTES, driver.location(host=host), 0, stream)

    return _of_managed(work)


def _discard(driver: RawDriver, address: int) -> None:
    addresses, sizes = (ctypes.c_uint64 * 1)(address), (ctypes.c_size_t * 1)(_SIZE_BYTES)
    driver.call("cuMemDiscardBatchAsync", addresses, sizes, 1, 0, driver.stream)


@contextmanager
def _copy(driver: RawDriver) -> Iterator[Call]:
    host, address = driver.pinned(_SIZE_BYTES), driver.plain(_SIZE_BYTES)
    yield lambda: driver.call("cuMemcpyHtoDAsync", address, host, _SIZE_BYTES, driver.stream)
    driver.synchronize()
    driver.call("cuMemFreeHost", host)
    driver.call("cuMemFree", address)


def _of_event(work: Callable[[RawDriver, int], object]) -> Making:
    """A call about an event that has been recorded."""

    @contextmanager
    def calling(driver: RawDriver) -> Iterator[Call]:
        event = driver.new_event()
        driver.call("cuEventRecord", event, driver.stream)
        yield lambda: work(driver, event)
        driver.call("cuEventDestroy", event)

    return calling


_CREATE, _RELEASE = _pair(lambda driver: MappedChunks(driver).create(_SIZE_BYTES)[0], "cuMemRelease")
_ALLOCATE, _FREE = _pair(lambda driver: driver.plain(_SIZE_BYTES), "cuMemFree")
_ALLOCATE_MANAGED, _FREE_MANAGED = _pair(lambda driver: Managed(driver).allocate(_SIZE_BYTES), "cuMemFree")
_ALLOCATE_PINNED, _FREE_PINNED = _pair(lambda driver: driver.pinned(_SIZE_BYTES), "cuMemFreeHost")
_CREATE_EVENT, _ = _pair(RawDriver.new_event, "cuEventDestroy")
CALLS: dict[str, Making] = {
    "cuMemCreate": _CREATE,
    "cuMemMap": _of_chunk(lambda chunks, address, handle: chunks.map(address, _SIZE_BYTES, handle), mapped=False),
    "cuMemSetAccess": _of_chunk(lambda chunks, address, _: chunks.set_access(address, _SIZE_BYTES), mapped=True),
    "cuMemUnmap": _of_chunk(lambda chunks, address, _: chunks.unmap(address, _SIZE_BYTES), mapped=True, opened=True),
    "cuMemRelease": _RELEASE,
    "cuMemAlloc": _ALLOCATE,
    "cuMemFree": _FREE,
    "cuMemAllocManaged": _ALLOCATE_MANAGED,
    "cuMemFree of managed memory": _FREE_MANAGED,
    "cuMemHostAlloc": _ALLOCATE_PINNED,
    "cuMemFreeHost": _FREE_PINNED,
    "cuMemAdvise": _of_managed(lambda driver, address: Managed(driver).advise(address, _SIZE_BYTES, 3)),
    "cuMemPrefetchAsync to the host": _prefetch(host=True),
    "cuMemPrefetchAsync to the host, legacy stream": _prefetch(host=True, legacy=True),
    "cuMemPrefetchAsync of what is there": _prefetch(host=False),
    "cuMemDiscardBatchAsync": _of_managed(_discard),
    "cuMemcpyHtoDAsync": _copy,
    "cuMemGetInfo": lambda driver: nullcontext(driver.free_bytes),
    "cuEventCreate": _CREATE_EVENT,
    "cuEventRecord": _of_event(lambda driver, event: driver.call("cuEventRecord", event, driver.stream)),
    "cuEventQuery": _of_event(lambda driver, event: driver.result("cuEventQuery", event)),
    "cuStreamWaitEvent": _of_event(lambda driver, event: driver.call("cuStreamWaitEvent", driver.stream, event, 0)),
}
"""By name: what prepares a call, yields it, and takes away what it left."""


class BusyCalls:
    """Times calls while something else runs."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._driver = RawDriver(kind)
        self._kernels = Kernels(self._driver)
        self._other = self._driver.new_stream()
        self._to, self._from = self._driver.plain(COPY_BYTES[kind]), self._driver.pinned(COPY_BYTES[kind])

    def measured(self) -> dict[str, Any]:
        """Each call; one that fails has its reason."""
        beside, own = self._other, self._driver.stream
        occupations: dict[str, tuple[int, Callable[[int], object]]] = {
            "kernel": (beside, self._kernel),
            "copy": (beside, self._copies),
            "behind a kernel": (own, self._kernel),
            "behind a copy": (own, self._copies),
        }
        rows: dict[str, Any] = {}
        for name, making in CALLS.items():
            row = rows[name] = {}
            try:
                self._sample(making, beside, None)  # the first call of a kind may load something
                row["idle_ns"] = int(statistics.median(self._sample(making, beside, None)[0] for _ in range(ROUNDS)))
                for busy, (stream, occupy) in occupations.items():
                    rounds = [self._sample(making, stream, occupy) for _ in range(ROUNDS)]
                    row[f"{busy}_ns"] = int(statistics.median(elapsed for elapsed, _ in rounds))
                    # One round proves that it need not wait.
                    row[f"{busy}_still_ran"] = any(still for _, still in rounds)
            except DriverError as error:
                row["reason"] = str(error)
                self._driver.synchronize()
        return {"kernel_ms": KERNEL_MS[self._kind], "bytes": _SIZE_BYTES, "calls": rows}

    def _sample(self, making: Making, stream: int, occupy: Callable[[int], object] | None) -> tuple[int, bool]:
        """Nanoseconds of the call, and whether what occupied the stream still ran then."""
        with making(self._driver) as call:
            self._driver.synchronize()
            done = self._driver.new_event()
            if occupy is not None:
                occupy(stream)
            self._driver.call("cuEventRecord", done, stream)
            time.sleep(0.001)  # until it runs
            started = time.perf_counter_ns()
            call()
            elapsed = time.perf_counter_ns() - started
            still = self._driver.result("cuEventQuery", done) == NOT_READY
            self._driver.synchronize()
            self._driver.call("cuEventDestroy", done)
        return elapsed, still

    def _kernel(self, stream: int) -> None:
        self._kernels.spin(stream, KERNEL_MS[self._kind])

    def _copies(self, stream: int) -> None:
        for _ in range(COPIES):
            self._driver.call("cuMemcpyHtoDAsync", self._to, self._from, COPY_BYTES[self._kind], stream)
