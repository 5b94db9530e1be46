"""What the driver's calls cost on this device while it is idle, by size: `python driver_costs.py cuda PART`.

Times are medians in nanoseconds of what a call keeps its thread busy; where a pair is given, the second one is until
its work was done. What this driver or device lacks has a reason in its place.
"""

import contextlib
import ctypes
import statistics
import sys
from collections.abc import Callable
from typing import Any

import parts
from driver import ADVICE, READ, DriverError, RawDriver
from memory import Managed, MappedChunks
from parts import MIB, Samples, medians
from sizes import by_kind

RANGES_MIB = by_kind(cuda=(2, 8, 32, 128), emulated=(2, 8))
CHUNKS_IN_GRANULES = by_kind(cuda=(1, 2, 5, 10, 16, 32), emulated=(1, 10))
CHUNKS = by_kind(cuda=32, emulated=4)
"""Of each size; all of them exist at once, so that none is made of what another gave back."""
ROUNDS = by_kind(cuda=7, emulated=2)


class CallCosts:
    """Measures on one device.

    Args:
        kind: "cuda", or "emulated" for the stand-in.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._driver = RawDriver(kind)
        self._managed, self._chunks = Managed(self._driver), MappedChunks(self._driver)

    def of_nothing_ns(self) -> float:
        """Of calling a function that does nothing: part of every time here."""
        version = ctypes.c_int()
        return statistics.median(self._driver.timed("cuDriverGetVersion", ctypes.byref(version)) for _ in range(1000))

    # ---- managed memory ---------------------------------------------------------------------------------------------

    def ranges(self, measure: "Callable[[CallCosts, int, int], dict[str, int]]") -> Any:
        """Rounds of one kind of measurement over ranges of each size, each round with memory of its own."""
        rows = []
        for size_bytes in (size * MIB for size in RANGES_MIB[self._kind]):
            rounds = []
            for _ in range(ROUNDS[self._kind]):
                address = self._managed.allocate(size_bytes)
                try:
                    rounds.append(measure(self, address, size_bytes))
                finally:
                    self._driver.synchronize()
                    self._driver.call("cuMemFree", address)
            times = {name: [each[name] for each in rounds] for name in rounds[0]}
            rows.append({"bytes": size_bytes, "median_ns": medians(times)})
        return rows

    def prefetches(self, address: int, size_bytes: int) -> dict[str, int]:
        """Of memory that never was anywhere, to the host, back, and where it is already."""
        ways = (("first", False), ("to_host", True), ("to_device", False), ("of_resident", False))
        return _named({name: self._managed.prefetch(address, size_bytes, host=host) for name, host in ways})

    def advices(self, address: int, size_bytes: int) -> dict[str, int]:
        """Of memory that lies on the device: each advice given, and taken away."""
        self._managed.prefetch(address, size_bytes)
        times = {}
        for name, number in ADVICE.items():
            times[f"set_{name}"] = self._managed.advise(address, size_bytes, number)
            times[f"unset_{name}"] = self._managed.advise(address, size_bytes, number + 1)
        return times

    def discards(self, address: int, size_bytes: int) -> dict[str, int]:
        """Of memory that lies on the device; then its way to the host, which has nothing to copy; and both in one."""
        times = {}
        self._fill(address, size_bytes)
        times["discard"] = self._managed.discard(address, size_bytes)
        times["to_host_after_discard"] = self._managed.prefetch(address, size_bytes, host=True)
        self._fill(address, size_bytes)
        times["discard_and_prefetch"] = self._managed.discard(address, size_bytes, prefetch=True)
        return _named(times)

    def _fill(self, address: int, size_bytes: int) -> None:
        self._managed.prefetch(address, size_bytes)
        self._driver.call("cuMemsetD8Async", address, 1, size_bytes, self._driver.stream)
        self._driver.synchronize()

    # ---- chunks -----------------------------------------------------------------------------------------------------

    def chunks(self, *, host: bool = False) -> Any:
        """A chunk's life, for each size: it is made, mapped, opened, made read-only, unmapped and released."""
        granule = self._chunks.granularity(host=host)
        return [
            {"bytes": granule * granules, "median_ns": medians(self._of_chunks(granule * granules, host=host))}
            for granules in CHUNKS_IN_GRANULES[self._kind]
        ]

    def _of_chunks(self, size_bytes: int, *, host: bool) -> Samples:
        driver, chunks, count = self._driver, self._chunks, CHUNKS[self._kind]
        samples: Samples = {name: [] for name in ("create", "map", "set_access", "unmap", "release")}
        first = chunks.reserve(count * size_bytes)
        handles = []
        for address in range(first, first + count * size_bytes, size_bytes):
            handle, elapsed = chunks.create(size_bytes, host=host)
            handles.append(handle)
            samples["create"].append(elapsed)
            samples["map"].append(chunks.map(address, size_bytes, handle))
            samples["set_access"].append(chunks.set_access(address, size_bytes))
            driver.call("cuMemsetD8Async", address, 1, size_bytes, driver.stream)
            driver.synchronize()
            with contextlib.suppress(DriverError):  # a driver may refuse that: then it is missing among the times
                elapsed = chunks.set_access(address, size_bytes, READ)
                samples.setdefault("set_read_only", []).append(elapsed)
        for index, handle in enumerate(handles):
            samples["unmap"].append(chunks.unmap(first + index * size_bytes, size_bytes))
            samples["release"].append(driver.timed("cuMemRelease", handle))
        driver.call("cuMemAddressFree", first, count * size_bytes)
        return samples


def _named(pairs: dict[str, tuple[int, int]]) -> dict[str, int]:
    """Two times of each call by two names: until it returned, and until its work was done."""
    return {
        f"{name}_{what}": time
        for name, both in pairs.items()
        for what, time in zip(("call", "done"), both, strict=True)
    }


PARTS: dict[str, Callable[[str], Any]] = {
    "call_overhead_ns": lambda kind: CallCosts(kind).of_nothing_ns(),
    "prefetch": lambda kind: CallCosts(kind).ranges(CallCosts.prefetches),
    "advice": lambda kind: CallCosts(kind).ranges(CallCosts.advices),
    "discard": lambda kind: CallCosts(kind).ranges(CallCosts.discards),
    "chunks": lambda kind: CallCosts(kind).chunks(),
    "host_chunks": lambda kind: CallCosts(kind).chunks(host=True),
}
"""In order: making chunks of the host's memory kills some drivers before r595 (NVIDIA/nccl #2106); so it is last."""


if __name__ == "__main__":
    sys.exit(parts.main(PARTS))
