"""What every schedule of a step has in common: its moments, and which storages must be on the device at each.

The moments ("points") are the ops, at the instant at which they begin to execute, and the copies that the program makes
itself (host events). The rules are those of the simulator of explicit swapping (csrc/replay/swap_*).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umadvise.records.device import DeviceProfile
from umadvise.records.trace import Access, EventKind, Trace

TO_DEVICE, TO_HOST = 0, 1
NONE = -1


@dataclass(frozen=True, eq=False)
class Points:
    """The points of a step, in order, and the uses of storages at them.

    Attributes:
        bytes: of each storage.
        duration_ns: of each point: so long nothing of the compute queue that comes after it can begin.
        host_bytes: two rows, to the device and to the host: what the program copies itself at each point.
        host_copies: likewise the number of these copies.
        op: index of the op that each point is; NONE for the program's own copies.
        op_ns: the time of that op; 0 for copies.
        storage: of each use, ascending.
        point: of each use, ascending within a storage.
        needs: of each use: what was in the storage before must be on the device.
        begins: of each use: it does not read what was there before, so that ops may run again from here.
        writes: of each use: a copy on the host is not valid any more.
        resident: of each use: the storage holds memory while the op executes (what an op frees before its last
            allocation does not).
        first: row of each storage's first use, and one more entry.
        death: the point of the op during or after which each storage is freed; beyond the last where none is.
        heir: which storage of the next step each one is; NONE for those whose contents end with the step.
    """

    bytes: NDArray[np.int64]
    duration_ns: NDArray[np.float64]
    host_bytes: NDArray[np.int64]
    host_copies: NDArray[np.int64]
    op: NDArray[np.int64]
    op_ns: NDArray[np.float64]
    storage: NDArray[np.int64]
    point: NDArray[np.int64]
    needs: NDArray[np.bool_]
    begins: NDArray[np.bool_]
    writes: NDArray[np.bool_]
    resident: NDArray[np.bool_]
    first: NDArray[np.int64]
    death: NDArray[np.int64]
    heir: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.duration_ns)

    @property
    def compute_ns(self) -> float:
        """Length of the step with all the memory there could be."""
        return float(self.duration_ns.sum())

    def working_set_bytes(self) -> NDArray[np.int64]:
        """At each point, what is on the device at once under every schedule."""
        sizes = np.where(self.resident, self.bytes[self.storage], 0)
        return np.bincount(self.point, weights=sizes, minlength=len(self)).astype(np.int64)

    def opening(self) -> NDArray[np.int64]:
        """For each storage the use with which its next life in the following step begins, or NONE."""
        heir = np.maximum(self.heir, 0)
        use = self.first[heir]
        return np.where((self.heir >= 0) & (use < self.first[heir + 1]), use, NONE)

    def load_bytes(self) -> NDArray[np.int64]:
        """At each point, what is in use or has contents that are needed later: held somewhere by every schedule."""
        change = np.zeros(len(self) + 1, np.float64)
        sizes = self.bytes[self.storage].astype(np.float64)

        def add(begin: NDArray[np.int64], end: NDArray[np.int64], bytes_: NDArray[np.float64]) -> None:
            np.add.at(change, begin, bytes_)
            np.add.at(change, end, -bytes_)

        add(self.point, self.point + 1, np.where(self.resident, sizes, 0))
        inner = np.flatnonzero((self.storage[1:] == self.storage[:-1]) & self.needs[1:])
        add(self.point[inner] + 1, self.point[inner + 1], sizes[inner])
        used = np.flatnonzero(self.first[1:] > self.first[:-1])
        head = self.first[used][self.needs[self.first[used]]]
        add(np.zeros(len(head), np.int64), self.point[head], sizes[head])
        opening = self.opening()[used]
        tail = (self.first[used + 1] - 1)[(opening >= 0) & self.needs[opening]]
        add(self.point[tail] + 1, np.full(len(tail), len(self)), sizes[tail])
        return np.rint(np.cumsum(change[:-1])).astype(np.int64)


def points(trace: Trace, device: DeviceProfile) -> Points:
    """The points of a trace."""
    events, count = trace.events, len(trace.ops)
    hosted = program_copies(trace)
    at, order = _moments(trace, hosted)
    duration_ns = np.maximum(trace.ops.duration_ns, 0).astype(np.float64)
    host_bytes = np.zeros((2, len(order)), np.int64)
    host_copies = np.zeros((2, len(order)), np.int64)
    to_host = (events.kind[hosted] == EventKind.HOST_READ).astype(np.int64)
    host_bytes[to_host, at[count:]] = events.bytes[hosted]
    host_copies[to_host, at[count:]] = 1
    ways = (device.link.h2d, device.link.d2h)
    fixed_ns = np.array([way.fixed_ns.value for way in ways])
    bytes_per_ns = np.array([way.bytes_per_s.value / 1e9 for way in ways])
    host_ns = fixed_ns[to_host] + events.bytes[hosted] / bytes_per_ns[to_host]
    return Points(
        bytes=trace.storages.bytes,
        duration_ns=np.concatenate([duration_ns, host_ns])[order],
        host_bytes=host_bytes,
        host_copies=host_copies,
        op=np.concatenate([np.arange(count), np.full(len(hosted), NONE)])[order],
        op_ns=np.concatenate([duration_ns, np.zeros(len(hosted))])[order],
        **_uses(trace, at[:count], at[count:], hosted),
    )


def op_of_points(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The op that each point is, or in or after which it is (-1 before the first); and the point of each op."""
    hosted, ops = program_copies(trace), np.arange(len(trace.ops))
    at, order = _moments(trace, hosted)
    return np.concatenate([ops, trace.events.op[hosted].astype(np.int64)])[order], at[: len(ops)]


def _moments(trace: Trace, hosted: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Of all ops and then of these copies the place in time, and the reverse: copies within an op come before it."""
    events = trace.events
    position = events.op[hosted].astype(np.int64) * 3 + np.where(events.inside[hosted] == 1, 0, 2)
    order = np.argsort(np.concatenate([np.arange(len(trace.ops)) * 3 + 1, position]), kind="stable")
    at = np.empty(len(order), np.int64)
    at[order] = np.arange(len(order))
    return at, order


def program_copies(trace: Trace) -> NDArray[np.intp]:
    """Events that are copies which the program makes itself, in every step."""
    events = trace.events
    copies = (events.kind == EventKind.HOST_WRITE) | (events.kind == EventKind.HOST_READ)
    # What the host wrote before a step that repeats is there already.
    return np.flatnonzero(copies & ((events.op >= 0) | ~_linked(trace)[0][events.storage]))


def _uses(
    trace: Trace, op_at: NDArray[np.int64], host_at: NDArray[np.int64], hosted: NDArray[np.intp]
) -> dict[str, NDArray[Any]]:
    accesses, events, sizes = trace.accesses, trace.events, trace.storages.bytes
    width = max(len(op_at) + len(host_at), 1)
    touched = accesses.storage.astype(np.int64) * width + op_at[accesses.op]
    whole = ((accesses.flags & Access.WHOLE) != 0) & (accesses.bytes == sizes[accesses.storage])
    copied = events.storage[hosted].astype(np.int64) * width + host_at
    loads = events.kind[hosted] == EventKind.HOST_WRITE
    made = np.flatnonzero((events.kind == EventKind.ALLOCATE) & (events.inside == 1))
    born = events.storage[made].astype(np.int64) * width + op_at[events.op[made]]
    # The first access decides whether contents are needed; what the op makes has none.
    pairs = np.concatenate([born, touched, copied])
    reads = ((accesses.flags & Access.READ) != 0) & ~whole
    filled = loads & (events.bytes[hosted] == sizes[events.storage[hosted]])
    needed = np.concatenate([np.zeros(len(born), bool), ~whole, ~filled])
    begins = np.concatenate([np.ones(len(born), bool), ~reads, np.ones(len(hosted), bool)])
    keys, rows = np.unique(pairs, return_index=True)
    writing = np.concatenate([touched[(accesses.flags & Access.WRITE) != 0], copied[loads]])
    storage, point, writes = keys // width, keys % width, np.isin(keys, writing)
    first = np.searchsorted(storage, np.arange(len(sizes) + 1)).astype(np.int64)
    heir, full = _heirs(trace, np.bincount(storage[writes], minlength=len(sizes)) > 0)
    before = np.concatenate([[0], np.cumsum(writes)])
    written = full[storage] | (before[:-1] > before[first[storage]])
    gone = _freed_early(trace)
    return {
        "storage": storage,
        "point": point,
        "needs": needed[rows] & written,
        "begins": begins[rows],
        "writes": writes,
        "resident": ~np.isin(keys, events.storage[gone].astype(np.int64) * width + op_at[events.op[gone]]),
        "first": first,
        "death": np.append(op_at, len(op_at) + len(host_at))[trace.deaths],
        "heir": heir,
    }


def _heirs(trace: Trace, written: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Which storage of the next step each one is, and which have contents when a step begins."""
    old, dies = trace.births < 0, trace.deaths < len(trace.ops)
    linked, source = _linked(trace)
    known = np.maximum(source, 0)
    heir = np.full(len(trace.storages), NONE, np.int64)
    heir[source[linked]] = np.flatnonzero(linked)
    return heir, old & (~(linked & dies) | written[known])


def _linked(trace: Trace) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which storages are there when a step begins because one of the step before is, and which one that is."""
    old, dies = trace.births < 0, trace.deaths < len(trace.ops)
    source = np.where(dies, trace.storages.successor, np.arange(len(trace.storages))).astype(np.int64)
    known = np.maximum(source, 0)
    return old & (source >= 0) & ~dies[known] & ~(dies & old[known]), source


def _freed_early(trace: Trace) -> NDArray[np.intp]:
    """Events that free inside an op what its last allocation may take already."""
    events = trace.events
    inside = events.inside == 1
    last = np.full(len(trace.ops), -1, np.int64)
    made = np.flatnonzero(inside & (events.kind == EventKind.ALLOCATE))
    np.maximum.at(last, events.op[made], made)
    freed = np.flatnonzero(inside & (events.kind == EventKind.FREE))
    return freed[freed < last[events.op[freed]]]
