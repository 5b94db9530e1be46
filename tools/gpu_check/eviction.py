"""Whether prefetching a resident range again makes it leave later, as JSON: `python eviction.py cuda`.

The driver evicts in the order in which memory became resident. Two ranges come to the device, the first one is
prefetched again or is not, and plain memory is taken until some of the two must leave: who left is seen by touching
them. This fills the device with plain memory, once for each of the two; managed memory is 512 MiB at most.
"""

import json
import sys
import time
from typing import Any

import msgspec
import torch
from parts import MIB
from sizes import by_kind

import umadvise
from umadvise import _native
from umadvise._native.abi import Memory, Placement
from umadvise.records.counters import subtract
from umadvise.records.enums import Advice, Role
from umadvise.torch_seam.runtime import address_of, current, placed, routed

RANGE_BYTES = by_kind(cuda=256 * MIB, emulated=32 * MIB)
PIECE_BYTES = by_kind(cuda=1024 * MIB, emulated=16 * MIB)
CAPACITY = "256MiB"
"""Of the emulated device."""
DISTINCT = 1.5
"""One range that came back took so many times as long as the other one."""


class Ranges:
    """Two ranges on one patched device."""

    def __init__(self, device: str) -> None:
        self._on_gpu = device == "cuda"
        self._range_bytes, self._piece_bytes = RANGE_BYTES[device], PIECE_BYTES[device]
        umadvise.patch(device if self._on_gpu else umadvise.EmulatedDevice(capacity=CAPACITY))
        self._device = current().device
        self._made(MIB)  # kernels are loaded now, while there is room
        self._free_bytes = self._device.info().free_bytes

    def left(self, *, refreshed: bool) -> dict[str, Any]:
        """What touching the two takes after some of them had to leave."""
        tensors = [self._made(self._range_bytes) for _ in range(2)]
        order = [*tensors, tensors[0]] if refreshed else tensors
        for tensor in order:
            _native.prefetch(address_of(tensor), tensor.nbytes)
            self._synchronize()
        pieces = self._pressed(self._free_bytes - self._range_bytes * 2 + self._range_bytes * 3 // 4)
        for piece in pieces:
            _native.free(piece)
        touched = [self._touched(tensor) for tensor in tensors]
        return {"pressed_pieces": len(pieces), "first": touched[0], "second": touched[1]}

    def _made(self, size_bytes: int) -> torch.Tensor:
        with routed(placed(Placement(Memory.MANAGED, Role.INTERMEDIATE, Advice.NONE))):
            made = torch.empty(size_bytes, dtype=torch.uint8, device="cuda" if self._on_gpu else "cpu")
        return made.fill_(1)

    def _pressed(self, size_bytes: int) -> list[int]:
        plain = Placement(Memory.DEVICE, Role.INTERMEDIATE, Advice.NONE)
        sizes = [self._piece_bytes] * (size_bytes // self._piece_bytes) + [size_bytes % self._piece_bytes]
        return [self._device.allocate(size, plain) for size in sizes if size > 0]

    def _touched(self, tensor: torch.Tensor) -> dict[str, Any]:
        before = self._device.counters()
        started = time.perf_counter_ns()
        tensor.add_(1)
        self._synchronize()
        elapsed, came = time.perf_counter_ns() - started, subtract(self._device.counters(), before).bytes_h2d
        known = [] if came is None else [each for each in msgspec.structs.astuple(came) if each is not None]
        return {"ns": elapsed, "came_back_bytes": sum(known) if known else None}

    def _synchronize(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()


def verdict(plain: dict[str, Any], refreshed: dict[str, Any]) -> bool | None:
    """Whether the second prefetch changed who left; None where nothing can be told."""
    key = "ns" if plain["first"]["came_back_bytes"] is None else "came_back_bytes"

    def first_left(seen: dict[str, Any]) -> bool | None:
        first, second = seen["first"][key], seen["second"][key]
        if max(first, second) < DISTINCT * min(first, second) or first == second:
            return None
        return bool(first > second)

    before, after = first_left(plain), first_left(refreshed)
    return None if before is not True or after is None else not after


if __name__ == "__main__":
    ranges = Ranges(sys.argv[1])
    as_it_came, prefetched_again = ranges.left(refreshed=False), ranges.left(refreshed=True)
    seen = {"as_it_came": as_it_came, "prefetched_again": prefetched_again}
    print(json.dumps({**seen, "prefetch_refreshes": verdict(as_it_came, prefetched_again)}))
