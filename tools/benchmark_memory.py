"""What umadvise's memory costs beside ordinary memory, as ratios measured in one run.

    python tools/benchmark_memory.py [--json FILE] [--ratios FILE]

Each ratio is the median over rounds in which both sides ran one after the other, in CPU time of the thread. Faults are
taken through ordinary stores (memset) to managed blocks of the emulated device; the work beside them is the memset or
memcpy that no implementation could do without, on memory that is already mapped.
"""

import ctypes
import mmap
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from harness import add_results, command_line, cpu_ns, write_results

import umadvise
from umadvise import _native
from umadvise._native.abi import Memory, Placement
from umadvise.devices.open_device import EmulatedDevice
from umadvise.records.enums import Role
from umadvise.torch_seam.runtime import HOST, placed, routed

BLOCK_BYTES = 2 << 20
ROUNDS = 15
BLOCKS = 16


@dataclass(frozen=True)
class MemoryRow:
    """What two sides take, in nanoseconds, and the median of their ratios."""

    name: str
    ours_ns: float
    beside_ns: float
    ratio: float
    goal: str


def ordinary(blocks: int) -> int:
    """Address of ordinary memory that is mapped and warm, aligned to 2 MiB."""
    memory = mmap.mmap(-1, (blocks + 1) * BLOCK_BYTES)
    _kept.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    aligned = (start + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
    ctypes.memset(aligned, 1, blocks * BLOCK_BYTES)
    return aligned


_kept: list[mmap.mmap] = []


def sweep_ns(*steps: Callable[[int], object], blocks: int = BLOCKS) -> float:
    """CPU time of some steps on each of so many blocks, by number, divided by the number of blocks."""

    def sweep() -> None:
        for index in range(blocks):
            for step in steps:
                step(index)

    return cpu_ns(sweep) / blocks


def ratio(name: str, ours: Callable[[], float], beside: Callable[[], float], goal: str = "at most 1.5") -> MemoryRow:
    """Median ratio over rounds, each side measured once a round."""
    pairs = [(ours(), beside()) for _ in range(ROUNDS)][1:]
    ours_ns, beside_ns = map(statistics.median, zip(*pairs, strict=True))
    row = MemoryRow(name, ours_ns, beside_ns, statistics.median(one / other for one, other in pairs), goal)
    times = f"{row.ours_ns:12,.0f} ns {row.beside_ns:12,.0f} ns"
    print(f"{name:58} {times}  x{row.ratio:.2f}  goal {goal}", flush=True)
    return row


def writing(address: int, value: int = 1) -> Callable[[int], object]:
    """A step that fills one of the blocks that begin at an address."""
    return lambda index: ctypes.memset(address + index * BLOCK_BYTES, value, BLOCK_BYTES)


def copying(to: int, source: int) -> Callable[[int], object]:
    """A step that copies one block."""
    return lambda index: ctypes.memmove(to + index * BLOCK_BYTES, source + index * BLOCK_BYTES, BLOCK_BYTES)


def faults() -> Iterator[MemoryRow]:
    """First touch, a fault on a host-resident block, and the same with an eviction."""
    scratch, other, third = ordinary(BLOCKS), ordinary(BLOCKS), ordinary(BLOCKS)
    device = EmulatedDevice(capacity=2 * BLOCKS * BLOCK_BYTES).open()
    size = BLOCKS * BLOCK_BYTES

    def first_touch() -> float:
        address = device.allocate(size, Placement())
        spent = sweep_ns(writing(address))
        _native.free(address)
        return spent

    resident = device.allocate(size, Placement())

    def host_resident() -> float:
        _native.prefetch(resident, size, to_host=True)
        return sweep_ns(writing(resident))

    yield ratio(
        "first touch + full write / memset 0 + full write",
        first_touch,
        lambda: sweep_ns(writing(scratch, 0), writing(scratch)),
    )
    yield ratio(
        "fault of a host block + full write / memcpy + full write",
        host_resident,
        lambda: sweep_ns(copying(other, scratch), writing(other)),
    )
    _native.free(resident)
    large = device.allocate(4 * size, Placement())

    def evicting() -> float:
        return sweep_ns(writing(large), blocks=4 * BLOCKS)  # twice the capacity in turns: every touch misses and evicts

    evicting()
    copies = copying(third, other), copying(other, scratch)
    yield ratio(
        "fault with eviction + full write / 2 memcpy + full write",
        evicting,
        lambda: sweep_ns(*copies, writing(other)),
    )
    _native.free(large)
    device.close()


def allocations() -> Iterator[MemoryRow]:
    """An alloc/free pair of the managed heap against torch's CPU allocator, through torch in both cases."""
    umadvise.patch(device=EmulatedDevice(capacity="256MiB"))
    _native.interpose(None)
    managed = placed(Placement(Memory.MANAGED, Role.INTERMEDIATE))

    def pairs(route: Any, size: int) -> float:
        make, data_type = torch.empty, torch.uint8
        with routed(route):
            return cpu_ns(lambda: make(size, dtype=data_type), 2000)

    for size in (64, 4096, 65536, 1 << 20, 16 << 20):
        yield ratio(
            f"alloc + free of {size} bytes / torch's CPU allocator",
            partial(pairs, managed, size),
            partial(pairs, HOST, size),
            "at most 1",
        )
    umadvise.unpatch()


def main() -> int:
    """Prints the ratios."""
    parser = command_line(__doc__)
    add_results(parser)
    options = parser.parse_args()
    rows = [*faults(), *allocations()]
    ratios = {row.name: row.ratio for row in rows}
    write_results(options, "umadvise.benchmark-memory/1", ratios, rows=[asdict(row) for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
