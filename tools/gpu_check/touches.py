"""What touching managed memory costs on this device, by size, as JSON: `python touches.py cuda`.

Kernels touch it: for the first time, where it is, and where it is not. Times are medians in nanoseconds; the ratios are
to the copy of as many bytes that such a move cannot do without.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from parts import MIB, medians
from sizes import by_kind

import umadvise
from umadvise import _native
from umadvise._native.abi import Memory, Placement
from umadvise.records.enums import Advice, Role
from umadvise.torch_seam.runtime import HOST, address_of, current, placed, routed

SIZES_MIB = by_kind(cuda=(2, 16, 128), emulated=(2, 16))
ROUNDS = 5


class Touches:
    """Measures on one patched device."""

    def __init__(self, device: str) -> None:
        self._on_gpu = device == "cuda"
        umadvise.patch(device if self._on_gpu else umadvise.EmulatedDevice(capacity="2GiB"))

    def _empty(self, size_bytes: int, memory: Memory) -> torch.Tensor:
        with routed(placed(Placement(memory, Role.INTERMEDIATE, Advice.NONE))):
            return torch.empty(size_bytes, dtype=torch.uint8, device="cuda" if self._on_gpu else "cpu")

    def _time_ns(self, work: Callable[[], object]) -> int:
        self._synchronize()
        started = time.perf_counter_ns()
        work()
        self._synchronize()
        return time.perf_counter_ns() - started

    def _synchronize(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()

    def _round(self, plain: torch.Tensor, host: torch.Tensor, fresh: torch.Tensor) -> dict[str, int]:
        to_host = partial(_native.prefetch, address_of(fresh), fresh.nbytes, to_host=True)
        to_device = partial(_native.prefetch, address_of(fresh), fresh.nbytes)
        times = {
            "copy_h2d": self._time_ns(partial(plain.copy_, host, non_blocking=True)),
            "write_resident": self._time_ns(partial(plain.fill_, 2)),
            "first_touch": self._time_ns(partial(fresh.fill_, 2)),
            "prefetch_to_host": self._time_ns(to_host),
            "fault_and_write": self._time_ns(partial(fresh.fill_, 3)),
        }
        to_host()
        times["prefetch_to_device"] = self._time_ns(to_device)
        times["prefetch_of_resident"] = self._time_ns(to_device)
        return times

    def by_size(self, size_bytes: int) -> dict[str, Any]:
        """Times of each kind of move of so many bytes."""
        plain = self._empty(size_bytes, Memory.DEVICE).fill_(1)
        with routed(HOST):
            host = torch.ones(size_bytes, dtype=torch.uint8, pin_memory=self._on_gpu)
        fresh = [
            self._empty(size_bytes, Memory.MANAGED) for _ in range(ROUNDS)
        ]  # all at once: each has pages of its own
        rounds = [self._round(plain, host, tensor) for tensor in fresh]
        median = medians({name: [each[name] for each in rounds] for name in rounds[0]})
        ratios = {name: round(value / median["copy_h2d"], 3) for name, value in median.items()}
        return {"bytes": size_bytes, "median_ns": median, "ratio_to_copy": ratios}

    def arenas(self) -> dict[str, int]:
        """What the first allocation under each advice takes: memory from the driver, and one call to advise it."""
        device = current().device
        placements = {advice.name.lower(): Placement(Memory.MANAGED, Role.PARAMETER, advice) for advice in Advice}
        return {name: self._time_ns(partial(device.allocate, MIB, where)) for name, where in placements.items()}


if __name__ == "__main__":
    touches = Touches(sys.argv[1])
    seen = {"arena_ns": touches.arenas(), "by_size": [touches.by_size(size * MIB) for size in SIZES_MIB[sys.argv[1]]]}
    print(json.dumps({"rounds": ROUNDS, **seen}))
