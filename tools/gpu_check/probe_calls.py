"""Whether a call of the driver waits for what is running: its time idle, beside a kernel, and beside a copy.

cuda.h marks some calls as synchronizing (`note_sync`) and does not say with what. The kernel and the copy run in a
stream of their own on memory of their own; where nothing of them is left when the call returns, the call has waited.
"""

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from driver import LEGACY_STREAM, Driver, DriverError
from kernels import Kernels
from parts import MIB
from sizes import by_kind

KERNEL_MS = by_kind(cuda=50.0, emulated=5.0)
COPY_BYTES = by_kind(cuda=256 * MIB, emulated=16 * MIB)
COPIES = 6
"""One after the other: about 30 ms over a link of PCIe 5."""
ROUNDS = by_kind(cuda=3, emulated=1)
_SIZE_BYTES = 2 * MIB

Call = Callable[[], object]
Making = Callable[[Driver], AbstractContextManager[Call]]


@contextmanager
def _chunk(driver: Driver, *, mapped: bool = False) -> Iterator[tuple[int, int]]:
    """Address and handle of a chunk that need not be mapped yet, nor any more."""
    address, (handle, _) = driver.reserve(_SIZE_BYTES), driver.create(_SIZE_BYTES)
    if mapped:
        driver.map(address, _SIZE_BYTES, handle)
        driver.set_access(address, _SIZE_BYTES)
    yield address, handle
    driver.result("cuMemUnmap", address, _SIZE_BYTES)
    driver.call("cuMemRelease", handle)
    driver.call("cuMemAddressFree", address, _SIZE_BYTES)


@contextmanager
def _create(driver: Driver) -> Iterator[Call]:
    made: list[int] = []
    yield lambda: made.append(driver.create(_SIZE_BYTES)[0])
    driver.call("cuMemRelease", made[0])


@contextmanager
def _map(driver: Driver) -> Iterator[Call]:
    with _chunk(driver) as (address, handle):
        yield lambda: driver.map(address, _SIZE_BYTES, handle)


@contextmanager
def _set_access(driver: Driver) -> Iterator[Call]:
    with _chunk(driver) as (address, handle):
        driver.map(address, _SIZE_BYTES, handle)
        yield lambda: driver.set_access(address, _SIZE_BYTES)


@contextmanager
def _unmap(driver: Driver) -> Iterator[Call]:
    with _chunk(driver, mapped=True) as (address, _):
        yield lambda: driver.call("cuMemUnmap", address, _SIZE_BYTES)


@contextmanager
def _release(driver: Driver) -> Iterator[Call]:
    handle, _ = driver.create(_SIZE_BYTES)
    yield lambda: driver.call("cuMemRelease", handle)


def _freed(allocate: Callable[[Driver, int], int], free: str) -> tuple[Making, Making]:
    """Allocating, and freeing again."""

    @contextmanager
    def allocating(driver: Driver) -> Iterator[Call]:
        made: list[int] = []
        yield lambda: made.append(allocate(driver, _SIZE_BYTES))
        driver.call(free, made[0])

    @contextmanager
    def freeing(driver: Driver) -> Iterator[Call]:
        address = allocate(driver, _SIZE_BYTES)
        yield lambda: driver.call(free, address)

    return allocating, freeing


def _of_managed(work: Callable[[Driver, int], object]) -> Making:
    """A call about a range that lies on the device."""

    @contextmanager
    def calling(driver: Driver) -> Iterator[Call]:
        address = driver.managed(_SIZE_BYTES)
        driver.call("cuMemsetD8Async", address, 1, _SIZE_BYTES, driver.stream)
        driver.prefetch(address, _SIZE_BYTES)
        yield lambda: work(driver, address)
        driver.synchronize()
        driver.call("cuMemFree", address)

    return calling


def _prefetch(stream: int | None, *, host: bool) -> Making:
    def work(driver: Driver, address: int) -> None:
        on = driver.stream if stream is None else stream
        driver.call("cuMemPrefetchAsync", address, _SIZE_BYTES, driver.location(host=host), 0, on)

    return _of_managed(work)


def _discard(driver: Driver, address: int) -> None:
    addresses, sizes = (ctypes.c_uint64 * 1)(address), (ctypes.c_size_t * 1)(_SIZE_BYTES)
    driver.call("cuMemDiscardBatchAsync", addresses, sizes, 1, 0, driver.stream)


@contextmanager
def _memory_info(driver: Driver) -> Iterator[Call]:
    yield driver.free_bytes


@contextmanager
def _copy(driver: Driver) -> Iterator[Call]:
    host, address = driver.pinned(_SIZE_BYTES), driver.plain(_SIZE_BYTES)
    yield lambda: driver.call("cuMemcpyHtoDAsync", address, host, _SIZE_BYTES, driver.stream)
    driver.synchronize()
    driver.call("cuMemFreeHost", host)
    driver.call("cuMemFree", address)


def _of_event(work: Callable[[Driver, int], object]) -> Making:
    @contextmanager
    def calling(driver: Driver) -> Iterator[Call]:
        event = driver.new_event()
        driver.call("cuEventRecord", event, driver.stream)
        yield lambda: work(driver, event)
        driver.call("cuEventDestroy", event)

    return calling


@contextmanager
def _event_create(driver: Driver) -> Iterator[Call]:
    made: list[int] = []
    yield lambda: made.append(driver.new_event())
    driver.call("cuEventDestroy", made[0])


_ALLOCATE, _FREE = _freed(Driver.plain, "cuMemFree")
_ALLOCATE_MANAGED, _FREE_MANAGED = _freed(Driver.managed, "cuMemFree")
_ALLOCATE_PINNED, _FREE_PINNED = _freed(Driver.pinned, "cuMemFreeHost")
CALLS: dict[str, Making] = {
    "cuMemCreate": _create,
    "cuMemMap": _map,
    "cuMemSetAccess": _set_access,
    "cuMemUnmap": _unmap,
    "cuMemRelease": _release,
    "cuMemAlloc": _ALLOCATE,
    "cuMemFree": _FREE,
    "cuMemAllocManaged": _ALLOCATE_MANAGED,
    "cuMemFree of managed memory": _FREE_MANAGED,
    "cuMemHostAlloc": _ALLOCATE_PINNED,
    "cuMemFreeHost": _FREE_PINNED,
    "cuMemAdvise": _of_managed(lambda driver, address: driver.advise(address, _SIZE_BYTES, 3)),
    "cuMemPrefetchAsync to the host": _prefetch(None, host=True),
    "cuMemPrefetchAsync to the host, legacy stream": _prefetch(LEGACY_STREAM, host=True),
    "cuMemPrefetchAsync of what is there": _prefetch(None, host=False),
    "cuMemDiscardBatchAsync": _of_managed(_discard),
    "cuMemcpyHtoDAsync": _copy,
    "cuMemGetInfo": _memory_info,
    "cuEventCreate": _event_create,
    "cuEventRecord": _of_event(lambda driver, event: driver.call("cuEventRecord", event, driver.stream)),
    "cuEventQuery": _of_event(lambda driver, event: driver.result("cuEventQuery", event)),
    "cuStreamWaitEvent": _of_event(lambda driver, event: driver.call("cuStreamWaitEvent", driver.stream, event, 0)),
}
"""By name: what prepares a call, yields it, and takes away what it left."""


class BusyCalls:
    """Times calls while something else runs."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._driver = Driver(kind)
        self._kernels = Kernels(self._driver)
        self._other = self._driver.new_stream()
        self._to, self._from = self._driver.plain(COPY_BYTES[kind]), self._driver.pinned(COPY_BYTES[kind])

    def measured(self) -> dict[str, Any]:
        """Each call; one that fails has its reason."""
        occupations: dict[str, Call] = {"idle": lambda: None, "kernel": self._kernel, "copy": self._copies}
        rows: dict[str, Any] = {}
        for name, making in CALLS.items():
            row = rows[name] = {}
            try:
                self._sample(making, occupations["idle"])  # the first call of a kind may load something
                for busy, occupy in occupations.items():
                    rounds = [self._sample(making, occupy) for _ in range(ROUNDS[self._kind])]
                    row[f"{busy}_ns"] = int(statistics.median(elapsed for elapsed, _ in rounds))
                    if busy != "idle":
                        row[f"{busy}_still_ran"] = all(still for _, still in rounds)
            except DriverError as error:
                row["reason"] = str(error)
                self._driver.synchronize()
        return {"kernel_ms": KERNEL_MS[self._kind], "bytes": _SIZE_BYTES, "calls": rows}

    def _sample(self, making: Making, occupy: Call) -> tuple[int, bool]:
        """Nanoseconds of the call, and whether the other stream had work left then."""
        with making(self._driver) as call:
            self._driver.synchronize()
            occupy()
            time.sleep(0.001)  # until it runs
            started = time.perf_counter_ns()
            call()
            elapsed = time.perf_counter_ns() - started
            still = self._driver.busy(self._other)
            self._driver.synchronize()
        return elapsed, still

    def _kernel(self) -> None:
        self._kernels.spin(self._other, KERNEL_MS[self._kind])

    def _copies(self) -> None:
        for _ in range(COPIES):
            self._driver.call("cuMemcpyHtoDAsync", self._to, self._from, COPY_BYTES[self._kind], self._other)
