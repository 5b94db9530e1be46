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
from driver import ADVICE, READ, Driver, DriverError
from parts import MIB, Samples, medians
from sizes import by_kind

RANGES_MIB = by_kind(cuda=(2, 8, 32, 128), emulated=(2, 8))
CHUNKS_IN_GRANULES = by_kind(cuda=(1, 2, 5, 10, 16, 32), emulated=(1, 10))
CHUNKS = by_kind(cuda=32, emulated=4)
"""Of each size; all of them exist at once, so that none is made of what another gave back."""
ROUNDS = by_kind(cuda=7, emulated=2)


class DriverCosts:
    """Measures on one device."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.driver = Driver(device)

    def call_overhead_ns(self) -> float:
        """Of calling a function that does nothing: part of every time here."""
        version = ctypes.c_int()
        return statistics.median(self.driver.timed("cuDriverGetVersion", ctypes.byref(version)) for _ in range(1000))

    # ---- managed memory ---------------------------------------------------------------------------------------------

    def ranges(self, measure: "Callable[[DriverCosts, int, int, Samples], None]") -> Any:
        """Rounds of one kind of measurement over ranges of each size, each round with memory of its own."""
        rows = []
        for size_bytes in (size * MIB for size in RANGES_MIB[self._device]):
            samples: Samples = {}
            for _ in range(ROUNDS[self._device]):
                address = self.driver.managed(size_bytes)
                try:
                    measure(self, address, size_bytes, samples)
                finally:
                    self.driver.synchronize()
                    self.driver.call("cuMemFree", address)
            rows.append({"bytes": size_bytes, "median_ns": medians(samples)})
        return rows

    def prefetches(self, address: int, size_bytes: int, samples: Samples) -> None:
        """Of memory that never was anywhere, to the host, back, and where it is already."""
        for name, host in (("first", False), ("to_host", True), ("to_device", False), ("of_resident", False)):
            called, done = self.driver.prefetch(address, size_bytes, host=host)
            samples.setdefault(f"{name}_call", []).append(called)
            samples.setdefault(f"{name}_done", []).append(done)

    def advices(self, address: int, size_bytes: int, samples: Samples) -> None:
        """Of memory that lies on the device: each advice given, and taken away."""
        self.driver.prefetch(address, size_bytes)
        for name, number in ADVICE.items():
            samples.setdefault(f"set_{name}", []).append(self.driver.advise(address, size_bytes, number))
            samples.setdefault(f"unset_{name}", []).append(self.driver.advise(address, size_bytes, number + 1))

    def discards(self, address: int, size_bytes: int, samples: Samples) -> None:
        """Of memory that lies on the device; then its way to the host, which has nothing to copy; and both in one."""
        for name, work in (
            ("discard", self.driver.discard),
            ("to_host_after_discard", lambda *of: self.driver.prefetch(*of, host=True)),
            ("discard_and_prefetch", lambda *of: self.driver.discard(*of, prefetch=True)),
        ):
            if name != "to_host_after_discard":
                self._fill(address, size_bytes)
            called, done = work(address, size_bytes)
            samples.setdefault(f"{name}_call", []).append(called)
            samples.setdefault(f"{name}_done", []).append(done)

    def _fill(self, address: int, size_bytes: int) -> None:
        self.driver.prefetch(address, size_bytes)
        self.driver.call("cuMemsetD8Async", address, 1, size_bytes, self.driver.stream)
        self.driver.synchronize()

    # ---- chunks -----------------------------------------------------------------------------------------------------

    def chunks(self, *, host: bool = False) -> Any:
        """A chunk's life, for each size: it is made, mapped, opened, made read-only, unmapped and released."""
        granule = self.driver.granularity(host=host)
        return [
            {"bytes": granule * granules, "median_ns": medians(self._of_chunks(granule * granules, host=host))}
            for granules in CHUNKS_IN_GRANULES[self._device]
        ]

    def _of_chunks(self, size_bytes: int, *, host: bool) -> Samples:
        driver, count = self.driver, CHUNKS[self._device]
        samples: Samples = {name: [] for name in ("create", "map", "set_access", "unmap", "release")}
        first = driver.reserve(count * size_bytes)
        handles = []
        for index in range(count):
            address = first + index * size_bytes
            handle, elapsed = driver.create(size_bytes, host=host)
            handles.append(handle)
            samples["create"].append(elapsed)
            samples["map"].append(driver.map(address, size_bytes, handle))
            samples["set_access"].append(driver.set_access(address, size_bytes))
            driver.call("cuMemsetD8Async", address, 1, size_bytes, driver.stream)
            driver.synchronize()
            self._make_read_only(address, size_bytes, samples)
        for index, handle in enumerate(handles):
            samples["unmap"].append(driver.timed("cuMemUnmap", first + index * size_bytes, size_bytes))
            samples["release"].append(driver.timed("cuMemRelease", handle))
        driver.call("cuMemAddressFree", first, count * size_bytes)
        return samples

    def _make_read_only(self, address: int, size_bytes: int, samples: Samples) -> None:
        """A driver may refuse that: then it is missing among the times, and nothing else is."""
        with contextlib.suppress(DriverError):
            samples.setdefault("set_read_only", []).append(self.driver.set_access(address, size_bytes, READ))


PARTS: dict[str, Callable[[str], Any]] = {
    "call_overhead_ns": lambda kind: DriverCosts(kind).call_overhead_ns(),
    "prefetch": lambda kind: DriverCosts(kind).ranges(DriverCosts.prefetches),
    "advice": lambda kind: DriverCosts(kind).ranges(DriverCosts.advices),
    "discard": lambda kind: DriverCosts(kind).ranges(DriverCosts.discards),
    "chunks": lambda kind: DriverCosts(kind).chunks(),
    "host_chunks": lambda kind: DriverCosts(kind).chunks(host=True),
}
"""In order: making chunks of the host's memory kills some drivers before r595 (NVIDIA/nccl #2106); so it is last."""


if __name__ == "__main__":
    sys.exit(parts.main(PARTS))
