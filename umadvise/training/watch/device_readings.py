"""What the device says of itself: counters, memory, and what was placed where; its last words, when it has gone."""

from dataclasses import dataclass

import msgspec

from umadvise import _native
from umadvise._native.abi import Memory
from umadvise._native.readings import placed_from, swaps_of
from umadvise.records.counters import ROLES, Chunks, Counters, MemoryStats, Placed, RoleWord, Sampling, Swaps
from umadvise.records.enums import Advice, Role
from umadvise.records.fault_profile import MOST_EXPORTED, Exported
from umadvise.records.names import clean_name
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


def _exported(device: _native.Device) -> tuple[Exported, ...]:
    bytes_: dict[tuple[RoleWord, str | None, str | None], int] = {}
    for each in device.allocations():
        if each.exports:
            kind = ROLES[each.role], each.name or None, each.birth_op or None
            bytes_[kind] = bytes_.get(kind, 0) + each.reserved_bytes
    largest = sorted(bytes_, key=lambda kind: -bytes_[kind])[:MOST_EXPORTED]
    return tuple(
        Exported(role=role, name=clean_name(name or "") or None, birth_op=op, bytes=bytes_[role, name, op])
        for role, name, op in largest
    )


class DeviceReader:
    """Reads one device.

    Attributes:
        sampler: collector of the steps in which a CUDA device counts; None where every step is counted.
    """

    def __init__(self, device: _native.Device) -> None:
        """Reads the device from now on."""
        self._device = device
        self._last: Readings | None = None
        self._last_exported: tuple[Exported, ...] = ()
        self._placed_before: Placements = {}
        self.sampler: Sampler | None = None

    def now(self) -> Readings:
        """What the device says now; after it was closed, what it said then."""
        if self._last is not None:
            return self._last
        device = self._device
        swapped = device.swap_counters()
        return Readings(
            device.counters(),
            device.memory(),
            device.dropped_events(),
            self.sampler.reading() if self.sampler is not None else None,
            msgspec.convert(swapped, Swaps, from_attributes=True),
            msgspec.convert(swapped, Chunks, from_attributes=True) if swapped.chunk_bytes else None,
            device.placed(),
        )

    def at_edge(self) -> tuple[Counters, Swaps]:
        """What the device has counted when a step begins or ends; the rest of `now` is not read, as edges are many."""
        if self._last is not None:
            return self._last.counters, self._last.swaps
        return self._device.counters(), swaps_of(self._device)

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

    def exported(self) -> tuple[Exported, ...]:
        """Tensors whose addresses somebody outside of torch holds now; after the device was closed, then."""
        return _exported(self._device) if self._last is None else self._last_exported

    def close(self) -> None:
        """Keeps what the device says now: it may go."""
        self._last_exported = self.exported()
        self._last = self.now()
        if self.sampler is not None:
            self.sampler.close()
