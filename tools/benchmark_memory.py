"""What umadvise's memory costs beside ordinary memory, as ratios measured in one run.

    python tools/benchmark_memory.py [--json FILE]

Each ratio is the median over rounds in which both sides ran one after the other, in CPU time of the thread. Faults are
taken through ordinary stores (memset) to managed blocks of the emulated device; the work beside them is the memset or
memcpy that no implementation could do without, on memory that is already mapped.
"""

import argparse
import ctypes
import json
import mmap
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from umadvise import _native
from umadvise._native.abi import Memory, Placement
from umadvise.devices.open_device import EmulatedDevice
from umadvise.records.enums import Role

BLOCK_BYTES = 2 << 20
ROUNDS = 15
BLOCKS = 16


def ordinary(blocks: int) -> int:
    """Address of ordinary memory that is mapped and warm, aligned to 2 MiB."""
    memory = mmap.mmap(-1, (blocks + 1) * BLOCK_BYTES)
    _kept.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    aligned = (start + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
    ctypes.memset(aligned, 1, blocks * BLOCK_BYTES)
    return aligned


_kept: list[mmap.mmap] = []


def per_block_ns(work: Callable[[int], object]) -> float:
    """Time of `work(i)` for each of BLOCKS blocks, divided by their number."""
    start = time.thread_time_ns()
    for index in range(BLOCKS):
        work(index)
    return (time.thread_time_ns() - start) / BLOCKS


def ratio(name: str, ours: Callable[[], float], beside: Callable[[], float], goal: str) -> dict[str, object]:
    """Median ratio over rounds, each side measured once a round."""
    pairs = [(ours(), beside()) for _ in range(ROUNDS)][1:]
    row = {
        "name": name,
        "ours_ns": statistics.median(pair[0] for pair in pairs),
        "beside_ns": statistics.median(pair[1] for pair in pairs),
        "ratio": statistics.median(pair[0] / pair[1] for pair in pairs),
        "goal": goal,
    }
    print(
        f"{name:58} {row['ours_ns']:12,.0f} ns {row['beside_ns']:12,.0f} ns  x{row['ratio']:.2f}  goal {goal}",
        flush=True,
    )
    return row


def faults() -> list[dict[str, object]]:
    """First touch, a fault on a host-resident block, and the same with an eviction."""
    scratch, other, third = ordinary(BLOCKS), ordinary(BLOCKS), ordinary(BLOCKS)
    device = EmulatedDevice(capacity=2 * BLOCKS * BLOCK_BYTES).open()
    size = BLOCKS * BLOCK_BYTES

    def block(address: int, index: int) -> int:
        return address + index * BLOCK_BYTES

    def first_touch() -> float:
        address = device.allocate(size, Placement())
        spent = per_block_ns(lambda i: ctypes.memset(block(address, i), 1, BLOCK_BYTES))
        _native.free(address)
        return spent

    def zero_and_write() -> float:
        def work(i: int) -> None:
            ctypes.memset(block(scratch, i), 0, BLOCK_BYTES)
            ctypes.memset(block(scratch, i), 1, BLOCK_BYTES)

        return per_block_ns(work)

    resident = device.allocate(size, Placement())

    def host_resident() -> float:
        _native.prefetch(resident, size, to_host=True)
        return per_block_ns(lambda i: ctypes.memset(block(resident, i), 1, BLOCK_BYTES))

    def copy_and_write() -> float:
        def work(i: int) -> None:
            ctypes.memmove(block(other, i), block(scratch, i), BLOCK_BYTES)
            ctypes.memset(block(other, i), 1, BLOCK_BYTES)

        return per_block_ns(work)

    def evicting() -> float:
        # Twice the capacity, swept cyclically: every touch misses and evicts.
        start = time.thread_time_ns()
        for index in range(4 * BLOCKS):
            ctypes.memset(block(large, index), 1, BLOCK_BYTES)
        return (time.thread_time_ns() - start) / (4 * BLOCKS)

    def two_copies_and_write() -> float:
        def work(i: int) -> None:
            ctypes.memmove(block(third, i), block(other, i), BLOCK_BYTES)
            ctypes.memmove(block(other, i), block(scratch, i), BLOCK_BYTES)
            ctypes.memset(block(other, i), 1, BLOCK_BYTES)

        return per_block_ns(work)

    rows = [
        ratio("first touch + full write / memset 0 + full write", first_touch, zero_and_write, "at most 1.5"),
        ratio("fault of a host block + full write / memcpy + full write", host_resident, copy_and_write, "at most 1.5"),
    ]
    _native.free(resident)
    large = device.allocate(4 * size, Placement())
    evicting()
    rows.append(
        ratio("fault with eviction + full write / 2 memcpy + full write", evicting, two_copies_and_write, "at most 1.5")
    )
    _native.free(large)
    device.close()
    return rows


def allocations() -> list[dict[str, object]]:
    """An alloc/free pair of the managed heap against torch's CPU allocator, through torch in both cases."""
    import umadvise
    from umadvise.torch_seam.runtime import HOST, placed, routed

    umadvise.patch(device=EmulatedDevice(capacity="256MiB"))
    _native.interpose(None)
    rows = []
    count = 2000
    for size in (64, 4096, 65536, 1 << 20, 16 << 20):

        def pairs(size: int = size) -> float:
            make, data_type = torch.empty, torch.uint8
            start = time.thread_time_ns()
            for _ in range(count):
                make(size, dtype=data_type)
            return (time.thread_time_ns() - start) / count

        def ours(pairs: Callable[[], float] = pairs) -> float:
            with routed(placed(Placement(Memory.MANAGED, Role.INTERMEDIATE))):
                return pairs()

        def torchs(pairs: Callable[[], float] = pairs) -> float:
            with routed(HOST):
                return pairs()

        rows.append(ratio(f"alloc + free of {size} bytes / torch's CPU allocator", ours, torchs, "at most 1"))
    umadvise.unpatch()
    return rows


def main() -> int:
    """Prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    options = parser.parse_args()
    rows = faults() + allocations()
    if options.json is not None:
        options.json.write_text(json.dumps({"schema": "umadvise.benchmark-memory/1", "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
