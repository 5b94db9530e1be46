"""What the device says of itself: counters, memory, and what was placed where; its last words, when it has gone."""

from dataclasses import dataclass

import msgspec

from umadvise import _native
from umadvise._native.abi import Memory
from umadvise._native.readings import placed_from
from umadvise.records.counters import Chunks, Counters, MemoryStats, Placed, Sampling, Swaps
from umadvise.records.enums import Advice, Role
from umadvise.training.watch.sampling import Sampler

Placements = dict[tuple[Role, Memory, Advice], int]


@dataclass(frozen=True)
class Readings:
    """What the device says at one time."""

    counters: Counters
    memory: MemoryStats
    dropped_events: int
    sampling: Sampling | None
    swaps: Swaps
    chunks: Chunks | None
    placed: Placements


class DeviceReader:
    """Reads one device.

    Attributes:
        sampler: collector of the steps in which a CUDA device counts; None where every step is counted.
    """

    def __init__(self, device: _native.Device) -> None:
        """Reads the device from now on."""
        self._device = device
        self._last: Readings | None = None
        self._placed_before: Placements = {}
        self.sampler: Sampler | None = None

    def now(self) -> Readings:
        """What the device says now; after it was closed, what it said then."""
        if self._last is not None:
            return self._last
        device = self._device
        return Readings(
            device.counters(),
            device.memory(),
            device.dropped_events(),
            self.sampler.reading() if self.sampler is not None else None,
            msgspec.convert(swapped := device.swap_counters(), Swaps, from_attributes=True),
            msgspec.convert(swapped, Chunks, from_attributes=True) if swapped.chunk_bytes else None,
            device.placed(),
        )

    def begin(self) -> Readings:
        """Starts to count what is placed: all that lives now, and all that is made from now on."""
        readings = self.now()
        self._placed_before = dict(readings.placed)
        for each in self._device.allocations():
            kind = Role(each.role), Memory(each.memory), Advice(each.advice)
            self._placed_before[kind] = self._placed_before.get(kind, 0) - each.bytes
        return readings

    def placed(self) -> tuple[Placed, ...]:
        """Where tensors lay, and with what advice: those that there were at `begin`, and all since."""
        now, before = self.now().placed, self._placed_before
        return placed_from({kind: now.get(kind, 0) - before.get(kind, 0) for kind in {**now, **before}})

    def close(self) -> None:
        """Keeps what the device says now: it may go."""
        self._last = self.now()
        if self.sampler is not None:
            self.sampler.close()
