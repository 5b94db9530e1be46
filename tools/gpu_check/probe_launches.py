"""What calls of the driver do to a thread beside them that launches kernels: whether its launches, or kernels, wait.

One thread makes a call many times in a row, each time about memory of its own that was prepared before; another one
launches small kernels in a stream of its own meanwhile, and waits for each. Calls that nobody waits for take as long as
they do beside "cuDriverGetVersion", which does nothing.
"""

import statistics
import threading
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

from driver import NUMBER, DriverError, RawDriver
from kernels import Kernels
from probe_calls import CALLS, KERNEL_MS, Making
from sizes import by_kind

TIMES = by_kind(cuda=48, emulated=3)
"""How often a call is made in a row."""
ROUNDS = by_kind(cuda=3, emulated=1)
BESIDE: dict[str, Making] = {
    "cuDriverGetVersion": lambda driver: nullcontext(lambda: driver.made(NUMBER, "cuDriverGetVersion")),
    **{
        name: CALLS[name]
        for name in (
            "cuMemUnmap",
            "cuMemSetAccess",
            "cuMemMap",
            "cuMemCreate",
            "cuMemRelease",
            "cuMemHostAlloc",
            "cuMemFreeHost",
            "cuEventCreate",
            "cuEventRecord",
            "cuMemPrefetchAsync to the host",
            "cuMemDiscardBatchAsync",
        )
    },
}


@dataclass(frozen=True)
class Launch:
    """One small kernel: when its launch was begun, returned, and its work was done."""

    begun_ns: int
    returned_ns: int
    done_ns: int


class Launcher:
    """A thread that launches small kernels until this ends."""

    def __init__(self, driver: RawDriver, kernels: Kernels, stream: int, address: int) -> None:
        self._driver, self._kernels = driver, kernels
        self._stream, self._address = stream, address
        self._over, self.launches = threading.Event(), list[Launch]()

    def __enter__(self) -> "Launcher":
        self._thread = threading.Thread(target=self._launch, daemon=True)
        self._thread.start()
        while not self.launches and self._thread.is_alive():
            time.sleep(0.0001)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _launch(self) -> None:
        self._driver.enter_thread()
        while not self._over.is_set():
            begun = time.perf_counter_ns()
            self._kernels.fill(self._stream, self._address, 4096, 1)
            returned = time.perf_counter_ns()
            self._driver.call("cuStreamSynchronize", self._stream)
            self.launches.append(Launch(begun, returned, time.perf_counter_ns()))


def beside(kind: str) -> Any:
    """For each call, idle and beside a kernel: its time, and the longest and usual times of launches next to it."""
    driver = RawDriver(kind)
    kernels = Kernels(driver)
    mine, busy, address = driver.new_stream(), driver.new_stream(), driver.plain(4096)

    def round_of(making: Making, *, kernel: bool) -> tuple[int, list[Launch]]:
        """Nanoseconds of all calls, and the launches that were under way meanwhile."""
        with ExitStack() as stack:
            calls = [stack.enter_context(making(driver)) for _ in range(TIMES[kind])]
            driver.synchronize()
            with Launcher(driver, kernels, mine, address) as launcher:
                if kernel:
                    kernels.spin(busy, KERNEL_MS[kind])
                    time.sleep(0.001)  # until it runs
                started = time.perf_counter_ns()
                for call in calls:
                    call()
                ended = time.perf_counter_ns()
            driver.synchronize()
        return ended - started, [each for each in launcher.launches if each.begun_ns < ended and each.done_ns > started]

    def row(making: Making, *, kernel: bool) -> dict[str, Any]:
        rounds = [round_of(making, kernel=kernel) for _ in range(ROUNDS[kind])]
        found: dict[str, Any] = {"call_ns": int(statistics.median(elapsed for elapsed, _ in rounds)) // TIMES[kind]}
        launches = [each for _, seen in rounds for each in seen]
        for name, times in (
            ("launch", [each.returned_ns - each.begun_ns for each in launches]),
            ("done", [each.done_ns - each.begun_ns for each in launches]),
        ):
            found[f"median_{name}_ns"] = int(statistics.median(times)) if times else None
            found[f"longest_{name}_ns"] = max(times, default=None)
        return {**found, "launches": len(launches)}

    rows: dict[str, Any] = {}
    for name, making in BESIDE.items():
        try:
            row(making, kernel=False)  # the first calls of a kind may load something
            rows[name] = {when: row(making, kernel=when == "kernel") for when in ("idle", "kernel")}
        except DriverError as error:
            rows[name] = {"reason": str(error)}
            driver.synchronize()
    return {"kernel_ms": KERNEL_MS[kind], "times": TIMES[kind], "beside": rows}
