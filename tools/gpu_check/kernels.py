"""Three kernels, as PTX that the driver compiles: one that takes its time, one that writes, one that copies.

On the stand-in each of them is a function of the host that runs where its stream is.
"""

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from driver import RawDriver

WORD_BYTES = 4
_BLOCK = 256
PTX = Path(__file__).with_name("kernels.ptx")


class Kernels:
    """The kernels of one driver."""

    def __init__(self, driver: RawDriver) -> None:
        """Has them compiled."""
        self._driver = driver
        self._kept: list[Any] = []  # what the stand-in's streams may still call
        self._functions: dict[str, int] = {}
        if not driver.stand_in:
            module = driver.made(ctypes.c_void_p, "cuModuleLoadData", PTX.read_bytes())
            for name in ("spin", "fill", "copy"):
                self._functions[name] = driver.made(ctypes.c_void_p, "cuModuleGetFunction", module, name.encode())
        self._load()

    def _load(self) -> None:
        """Runs each once: a driver loads a kernel at its first launch, and that may wait for what is running."""
        driver = self._driver
        address = driver.plain(4096)
        self.spin(driver.stream, 0.001)
        self.fill(driver.stream, address, 4096, 1)
        self.copy(driver.stream, address, address + 2048, 2048)
        driver.synchronize()
        driver.call("cuMemFree", address)

    def spin(self, stream: int, duration_ms: float) -> None:
        """Keeps a stream busy; it touches no memory."""
        duration_ns = int(duration_ms * 1e6)
        self._launch("spin", 1, stream, [ctypes.c_uint64(duration_ns)], lambda: time.sleep(duration_ns / 1e9))

    def fill(
        self, stream: int, address: int, size_bytes: int, value: int, *, page_bytes: int = 0, part: float = 1.0
    ) -> None:
        """Writes a word over a range, or over the first part of each of its pages."""
        period = (page_bytes or size_bytes) // WORD_BYTES
        run = int(period * part)
        words = size_bytes // WORD_BYTES // period * run
        numbers = [ctypes.c_uint64(number) for number in (address, words, run, period)]

        def on_host() -> None:
            pattern = value.to_bytes(WORD_BYTES, "little") * run
            for page in range(words // run):
                ctypes.memmove(address + page * period * WORD_BYTES, pattern, len(pattern))

        self._launch("fill", words, stream, [*numbers, ctypes.c_uint32(value)], on_host)

    def copy(self, stream: int, to: int, source: int, size_bytes: int) -> None:
        """Copies by loads and stores, not by a copy engine."""
        words = size_bytes // WORD_BYTES
        numbers = [ctypes.c_uint64(number) for number in (to, source, words)]
        self._launch("copy", words, stream, numbers, lambda: ctypes.memmove(to, source, size_bytes))

    def _launch(
        self, name: str, threads: int, stream: int, arguments: list[Any], on_host: Callable[[], object]
    ) -> None:
        if self._driver.stand_in:
            kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: on_host() and None)
            self._kept.append(kernel)
            launch = self._driver.library.emulated_libcuda_launch
            launch.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
            if launch(stream, kernel, None) != 0:
                raise RuntimeError("the stand-in could not launch a kernel")
            return
        addresses = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        shape = (-(-threads // _BLOCK), 1, 1, min(threads, _BLOCK), 1, 1)
        self._driver.call("cuLaunchKernel", self._functions[name], *shape, 0, stream, addresses, None)


def word_at(address: int) -> int:
    """A word of memory that the host can read."""
    return ctypes.c_uint32.from_address(address).value
