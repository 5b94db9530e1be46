"""Memories whose storages may lie anywhere, for the replay of a step: what each can give, and from when on it is free.

Memory is handed on in the order of the host's calls, long before the device is done with it; whoever takes it waits, in
its stream, for the moment at which its last use ends.
"""

import heapq
from abc import abstractmethod
from collections import defaultdict
from dataclasses import dataclass
from typing import Protocol

GRANULE_BYTES = 512
"""To which sizes are rounded, as by torch's allocator."""
CHUNK_BYTES = 2 << 20
SMALL_BYTES = CHUNK_BYTES // 2
"""What is smaller shares chunks with others."""

_SHARED, _UNPLACED = 0, -1  # places of leases that have no address of their own


@dataclass(slots=True)
class Moment:
    """Nanosecond at which a use ends: for memory freed inside of an op it is set when that op's end is known."""

    ns: float


@dataclass(slots=True)
class Lease:
    """Memory that a storage holds.

    Attributes:
        bytes: size, as rounded.
        ready_ns: nanosecond at which the last use of what lay there before ends.
        place: number by which its memory knows it.
        taken_at: tick of the replay at which it was taken.
        used_ns: nanosecond at which its first use begins.
        mapped: chunks that were mapped for it.
        unmapped: chunks that were unmapped for it.
        idle_ns: nanosecond at which what was unmapped for it is idle; the host waits for it.
    """

    bytes: int
    ready_ns: float
    place: int = 0
    taken_at: int = 0
    used_ns: float = 0.0
    mapped: int = 0
    unmapped: int = 0
    idle_ns: float = 0.0


class PoolMemory(Protocol):
    """What the replay asks of a memory."""

    def fits(self, bytes_: int) -> bool:
        """Whether there is room now."""

    def take(self, bytes_: int) -> Lease:
        """Takes memory that fits."""

    def give(self, lease: Lease, moment: Moment) -> None:
        """Gives memory back that is in use until a moment."""


def rounded(bytes_: int, unit: int = GRANULE_BYTES) -> int:
    """The least multiple of a unit, at least one."""
    return max(unit, -(-bytes_ // unit) * unit)


class Exact:
    """Bytes alone, as if memory had no holes: what is free first is given first."""

    def __init__(self, size_bytes: int) -> None:
        """All is free."""
        self.free_bytes = size_bytes
        self._pieces = [(Moment(0.0), size_bytes)]

    def fits(self, bytes_: int) -> bool:
        """Whether as many bytes are free."""
        return self.free_bytes >= rounded(bytes_)

    def take(self, bytes_: int) -> Lease:
        """Takes from the pieces that are free first."""
        lease = Lease(rounded(bytes_), 0.0)
        self.free_bytes -= lease.bytes
        self._pieces.sort(key=lambda piece: piece[0].ns, reverse=True)
        needed = lease.bytes
        while needed > 0:
            moment, size = self._pieces.pop()
            lease.ready_ns = max(lease.ready_ns, moment.ns)
            if size > needed:
                self._pieces.append((moment, size - needed))
            needed -= size
        return lease

    def give(self, lease: Lease, moment: Moment) -> None:
        """Adds a piece."""
        self.free_bytes += lease.bytes
        self._pieces.append((moment, lease.bytes))


class LaidOutMemory(Exact):
    """Memory in which each stay of a steady step has chunks of its own choice, mapped ahead of time (pool_layout)."""

    def __init__(self, size_bytes: int, sizes: list[int], sharing: list[list[int]], first_take: int) -> None:
        """Before the first steady step bytes alone count.

        Args:
            size_bytes: bytes of memory.
            sizes: bytes of each stay, in the order in which they begin.
            sharing: stays that have a chunk in common with each stay, itself among them.
            first_take: number of takings before the first steady step.
        """
        super().__init__(size_bytes)
        self._sizes, self._sharing, self._takes = sizes, sharing, -first_take
        self._last_uses = [Moment(0.0)] * len(sizes)

    def take(self, bytes_: int) -> Lease:
        """Takes the range of the step's next stay: it is idle when all that had one of its chunks is."""
        lease, number = super().take(bytes_), self._takes
        self._takes += 1
        lease.place = number % len(self._sizes) if number >= 0 else _UNPLACED
        if number >= 0:
            if self._sizes[lease.place] != lease.bytes:
                raise ValueError("the step is not steady: expected its stays in the order of their layout")
            lease.ready_ns = max(self._last_uses[stay].ns for stay in self._sharing[lease.place])
        return lease

    def give(self, lease: Lease, moment: Moment) -> None:
        """Notes until when the range is in use."""
        super().give(lease, moment)
        if lease.place != _UNPLACED:
            self._last_uses[lease.place] = moment


class BestFit:
    """One contiguous pool: the smallest hole that fits, and holes that touch become one."""

    def __init__(self, size_bytes: int) -> None:
        """One hole."""
        self._holes = {0: [(size_bytes, Moment(0.0))]}  # begin -> its parts in order: bytes, and when they are free

    def fits(self, bytes_: int) -> bool:
        """Whether one hole is large enough."""
        return any(_sum(parts) >= rounded(bytes_) for parts in self._holes.values())

    def take(self, bytes_: int) -> Lease:
        """Takes the begin of the smallest hole, and of equal ones the lowest."""
        lease = Lease(rounded(bytes_), 0.0)
        fitting = ((_sum(parts), begin) for begin, parts in self._holes.items() if _sum(parts) >= lease.bytes)
        _, lease.place = min(fitting)
        parts, needed = self._holes.pop(lease.place), lease.bytes
        while needed > 0:
            size, moment = parts.pop(0)
            lease.ready_ns = max(lease.ready_ns, moment.ns)
            if size > needed:
                parts.insert(0, (size - needed, moment))
            needed -= size
        if parts:
            self._holes[lease.place + lease.bytes] = parts
        return lease

    def give(self, lease: Lease, moment: Moment) -> None:
        """Joins what is given with the holes that it touches."""
        begin, parts = lease.place, [(lease.bytes, moment)]
        parts += self._holes.pop(begin + lease.bytes, [])
        for below, its in self._holes.items():
            if below + _sum(its) == begin:
                its += parts
                return
        self._holes[begin] = parts


class _Ranges:
    """Address ranges over chunks; what is smaller than half a chunk shares chunks, which are kept for that."""

    def __init__(self) -> None:
        self._shared, self._made = Exact(0), _SHARED

    def fits(self, bytes_: int) -> bool:
        """Whether there are chunks, mapped or not."""
        return (bytes_ < SMALL_BYTES and self._shared.fits(bytes_)) or self._free_chunks() >= self._class(bytes_)

    def take(self, bytes_: int) -> Lease:
        """Takes a range, or a part of what is shared."""
        if bytes_ >= SMALL_BYTES:
            return self._range(self._class(bytes_))
        added = Lease(0, 0.0)
        if not self._shared.fits(bytes_):
            added = self._range(1)
            self._shared.give(added, Moment(added.ready_ns))
        lease = self._shared.take(bytes_)
        lease.mapped, lease.unmapped, lease.idle_ns = added.mapped, added.unmapped, added.idle_ns
        return lease

    def give(self, lease: Lease, moment: Moment) -> None:
        """Gives a range back, which stays mapped."""
        if lease.place == _SHARED:
            self._shared.give(lease, moment)
        else:
            self._give_range(lease, moment)

    def _class(self, bytes_: int) -> int:
        return -(-bytes_ // CHUNK_BYTES)

    @abstractmethod
    def _free_chunks(self) -> int:
        """Chunks that a range can have now."""

    @abstractmethod
    def _range(self, chunks: int) -> Lease:
        """Takes a range of chunks that are there."""

    @abstractmethod
    def _give_range(self, lease: Lease, moment: Moment) -> None:
        """Gives a range back."""


class RemappedRanges(_Ranges):
    """Ranges in classes of sizes: any chunk backs any range, and a change of class unmaps and maps chunks."""

    def __init__(self, size_bytes: int) -> None:
        """No range is made yet."""
        super().__init__()
        self._free: dict[int, list[tuple[Moment, int]]] = defaultdict(list)  # by chunks: ranges
        self._unused = size_bytes // CHUNK_BYTES

    def _class(self, bytes_: int) -> int:
        """Eight classes between two powers of two."""
        chunks = super()._class(bytes_)
        step = 1 << max(0, chunks.bit_length() - 4)
        return -(-chunks // step) * step

    def _free_chunks(self) -> int:
        return self._unused + sum(chunks * len(free) for chunks, free in self._free.items())

    def _range(self, chunks: int) -> Lease:
        """Takes a range of the class, or makes one of chunks that nobody uses."""
        lease = Lease(chunks * CHUNK_BYTES, 0.0)
        if self._free[chunks]:
            first = min(self._free[chunks], key=lambda free: free[0].ns)
            self._free[chunks].remove(first)
            lease.ready_ns, lease.place = first[0].ns, first[1]
            return lease
        while self._unused < chunks:
            self._unmap(lease)
        self._unused -= chunks
        self._made += 1
        lease.place, lease.mapped = self._made, chunks
        return lease

    def _give_range(self, lease: Lease, moment: Moment) -> None:
        self._free[lease.bytes // CHUNK_BYTES].append((moment, lease.place))

    def _unmap(self, lease: Lease) -> None:
        """Unmaps the range that is free first."""
        held = ((free[0].ns, chunks, free) for chunks, ranges in self._free.items() for free in ranges)
        ns, chunks, first = min(held, key=lambda row: row[:2])
        self._free[chunks].remove(first)
        self._unused += chunks
        lease.unmapped += chunks
        lease.idle_ns = max(lease.idle_ns, ns)


class AliasedRanges(_Ranges):
    """Ranges in which a chunk may lie under many, so that nothing is ever unmapped.

    A range is free when all of its chunks are. Of the free ranges of a size the one is taken whose chunks are idle
    first; only where none is free another is mapped, over the chunks that are idle first.
    """

    def __init__(self, size_bytes: int) -> None:
        """No range is made yet."""
        super().__init__()
        self._idle = {chunk: Moment(0.0) for chunk in range(size_bytes // CHUNK_BYTES)}  # free ones
        self._chunks: dict[int, list[int]] = {}
        self._of_size: dict[int, list[int]] = defaultdict(list)

    def _free_chunks(self) -> int:
        return len(self._idle)

    def _range(self, chunks: int) -> Lease:
        lease = Lease(chunks * CHUNK_BYTES, 0.0)
        free = [each for each in self._of_size[chunks] if all(chunk in self._idle for chunk in self._chunks[each])]
        if free:
            lease.place = min(free, key=self._ready_ns)
        else:
            self._made += 1
            lease.place, lease.mapped = self._made, chunks
            self._chunks[self._made] = heapq.nsmallest(chunks, self._idle, key=lambda chunk: self._idle[chunk].ns)
            self._of_size[chunks].append(self._made)
        lease.ready_ns = self._ready_ns(lease.place)
        for chunk in self._chunks[lease.place]:
            del self._idle[chunk]
        return lease

    def _give_range(self, lease: Lease, moment: Moment) -> None:
        self._idle.update((chunk, moment) for chunk in self._chunks[lease.place])

    def _ready_ns(self, number: int) -> float:
        return max(self._idle[chunk].ns for chunk in self._chunks[number])


def _sum(parts: list[tuple[int, Moment]]) -> int:
    return sum(size for size, _ in parts)
