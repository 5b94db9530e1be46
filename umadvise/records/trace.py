"""The trace of training steps: which storages came and went, and which bytes of them each op touched, in order.

A trace is columns: one NumPy array for each field of storages, ops, accesses and events, so that a step of a million
ops is a few megabytes and checks, sums and the native simulator work on it without a loop in Python. `Trace.op(i)` and
`Trace.storage(i)` give single rows to people. Everything in the arrays is read-only.

Time within a trace is a position: `op` is the index of an op, and an event lies either inside it or after it, before
the next one begins; -1 stands for what is before the first op.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from umadvise.records.columns import Columns, in_words
from umadvise.records.device import DTYPES, DType
from umadvise.records.enums import Phase, Role

SCHEMA = "umadvise.trace/1"
MOST_ROWS = 1 << 26
"""Rows that a table of a trace may have: 67 million accesses are some hundred steps of the largest models."""
MOST_BYTES = 1 << 48
"""Size of the largest storage: what an address of 48 bits can reach."""
UNKNOWN = -1
"""A duration or a number of FLOPs that nobody knows."""

ARITHMETIC: tuple[DType, ...] = DTYPES
"""Number formats of arithmetic; integers and fp64 count as fp32."""

Target = Literal["cpu", "cuda"]
TARGETS: tuple[Target, ...] = get_args(Target)
Source = Literal["dry", "live", "synthetic"]


class OpClass(IntEnum):
    """What limits an op's speed: the roofline's classes, and the unit of the devices' efficiencies."""

    OTHER = 0
    MATMUL = 1
    CONVOLUTION = 2
    ATTENTION = 3
    ELEMENTWISE = 4
    REDUCTION = 5  # normalisation, softmax, sums
    COPY = 6  # concatenation, gathering, filling, casts


class Access(IntFlag):
    """What an op does to a range of a storage."""

    READ = 1
    WRITE = 2
    IN_PLACE = 4  # read and written through one argument
    WHOLE = 8  # every byte of the range is written before any is read: what was there before is not needed


class EventKind(IntEnum):
    """What happens to storages besides the accesses of ops."""

    ALLOCATE = 0
    FREE = 1
    HOST_WRITE = 2  # bytes come from ordinary memory
    HOST_READ = 3  # bytes go to ordinary memory: the host waits for them
    SERVICE_READ = 4  # a fault that was served, of raw counting and of what lies between ops, in order of service
    SERVICE_WRITE = 5


@dataclass(frozen=True, eq=False)
class Storages(Columns):
    """One row a storage. Views and aliases are folded into it; library scratch is a storage with the role workspace.

    Attributes:
        bytes: size of the storage in bytes.
        role: number of the `umadvise.records.enums.Role`.
        name: index of its name in `Trace.strings`; 0 where it has no name.
        module: index into `Trace.strings` of the module in which it was made.
        successor: index of the storage that has taken this one's place when the trace ends, for a storage that is there
            when the trace begins and dies in it (the last step's gradient, whose place this step's takes); -1 for every
            other. With it a trace can be repeated.
    """

    bytes: NDArray[np.int64]
    role: NDArray[np.uint8]
    name: NDArray[np.int32]
    module: NDArray[np.int32]
    successor: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Ops(Columns):
    """One row an op, in the order of execution.

    Attributes:
        name: index into `Trace.strings` of the operator's full name, such as "aten::add_.Tensor".
        phase: number of the `umadvise.records.enums.Phase`.
        module: index into `Trace.strings` of the module whose forward the op belongs to, also for ops of backward.
        step: number of the step: 1, 2, ...; 0 outside steps.
        op_class: number of the `OpClass`.
        arithmetic: index into `ARITHMETIC` of the number format that its arithmetic units work in.
        duration_ns: time in nanoseconds, measured or by a device's roofline; UNKNOWN where there is neither.
        flops: number of multiplications and additions, each counted; UNKNOWN where there is no formula.
        creates: 1 for ops that only make memory (aten::empty and kin), which touch no byte.
        host_touch: 1 where the host waits for a value (aten::_local_scalar_dense and kin).
        window_pages: pages of 4 KiB that its kernel works on at a time; 0 is the device's default.
        run_pages: pages that one group of threads walks through in order; 0 is the device's default.
        faults_per_service: faults that come together in one 2 MiB block; 0 is the device's default.
    """

    name: NDArray[np.int32]
    phase: NDArray[np.uint8]
    module: NDArray[np.int32]
    step: NDArray[np.int32]
    op_class: NDArray[np.uint8]
    arithmetic: NDArray[np.uint8]
    duration_ns: NDArray[np.int64]
    flops: NDArray[np.int64]
    creates: NDArray[np.uint8]
    host_touch: NDArray[np.uint8]
    window_pages: NDArray[np.int32]
    run_pages: NDArray[np.int32]
    faults_per_service: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Accesses(Columns):
    """One row a range of a storage that an op touches: inputs in the order of its schema, then outputs.

    Attributes:
        op: index of the op; it never falls from row to row.
        storage: index of the storage that the op touches.
        offset_bytes: first byte touched, counted within the storage.
        bytes: length of the range, up to the last byte touched.
        flags: bits of `Access`: what the op does to the range.
    """

    op: NDArray[np.int32]
    storage: NDArray[np.int32]
    offset_bytes: NDArray[np.int64]
    bytes: NDArray[np.int64]
    flags: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Events(Columns):
    """One row a thing that happens to a storage, in order.

    Attributes:
        kind: number of the `EventKind`.
        op: index of the op inside or after which it happens; -1 before the first op. It never falls from row to row.
        inside: 1 for an event inside that op, 0 for one after it; all that is inside comes first.
        storage: index of the storage that it happens to.
        offset_bytes: first byte of a copy or of a fault service, counted within the storage; negative for a service
            whose 2 MiB block begins before the storage does; 0 for other events.
        bytes: length of a copy in bytes; 0 for other events.
    """

    kind: NDArray[np.uint8]
    op: NDArray[np.int32]
    inside: NDArray[np.uint8]
    storage: NDArray[np.int32]
    offset_bytes: NDArray[np.int64]
    bytes: NDArray[np.int64]


TABLES: dict[str, type[Columns]] = {"storages": Storages, "ops": Ops, "accesses": Accesses, "events": Events}


@dataclass(frozen=True, slots=True)
class TracedStorage:
    """One storage, in words."""

    index: int
    bytes: int
    role: Role
    name: str
    module: str
    birth_op: int
    death_op: int


@dataclass(frozen=True, slots=True)
class TracedAccess:
    """A range that an op touches, in words."""

    storage: int
    offset_bytes: int
    bytes: int
    flags: Access


@dataclass(frozen=True, slots=True)
class TracedOp:
    """One op, in words."""

    index: int
    name: str
    phase: Phase
    module: str
    step: int
    op_class: OpClass
    duration_ns: int | None
    flops: int | None
    creates: bool
    host_touch: bool
    accesses: tuple[TracedAccess, ...]


@dataclass(frozen=True, eq=False)
class Trace:
    """One or more training steps.

    Attributes:
        target: the hardware whose kernels the ops are: "cpu" or "cuda".
        source: "dry" on the meta device, "live" from a run, "synthetic" made for a test or benchmark.
        device: the device whose durations these are: a name of the catalogue, or what the machine calls itself.
        torch_version: version of the torch that was recorded; empty for a synthetic trace.
        workload: what was recorded, as the user named it.
        strings: every name that the tables point to; the first is empty.
        storages: table of storages, one row for each.
        ops: table of ops, in the order of execution.
        accesses: table of the ranges that ops touch.
        events: table of what happens to storages. Every storage is allocated exactly once; what is there before the
            trace begins is allocated at op -1.
    """

    target: Target
    source: Source
    device: str
    torch_version: str
    workload: str
    strings: tuple[str, ...]
    storages: Storages
    ops: Ops
    accesses: Accesses
    events: Events

    # ---- single rows, for people ------------------------------------------------------------------------------------

    def op(self, index: int) -> TracedOp:
        """One op with its accesses."""
        rows = range(self.first_access[index], self.first_access[index + 1])
        accesses = tuple(in_words(TracedAccess, self.accesses, row) for row in rows)
        return in_words(TracedOp, self.ops, index, self.strings, index=index, accesses=accesses)

    def storage(self, index: int) -> TracedStorage:
        """One storage."""
        ops = {"birth_op": int(self.births[index]), "death_op": int(self.deaths[index])}
        return in_words(TracedStorage, self.storages, index, self.strings, index=index, **ops)

    # ---- what follows from the columns ------------------------------------------------------------------------------

    @cached_property
    def first_access(self) -> NDArray[np.int64]:
        """Row of each op's first access, and one more entry: the number of accesses."""
        return np.searchsorted(self.accesses.op, np.arange(len(self.ops) + 1)).astype(np.int64)

    def _positions(self, kind: EventKind, otherwise: int) -> NDArray[np.int64]:
        positions = np.full(len(self.storages), otherwise, np.int64)
        rows = self.events.kind == kind
        positions[self.events.storage[rows]] = self.events.op[rows]
        return positions

    @cached_property
    def births(self) -> NDArray[np.int64]:
        """Op in or after which each storage is allocated; -1 for those that are there before the first op."""
        return self._positions(EventKind.ALLOCATE, -1)

    @cached_property
    def deaths(self) -> NDArray[np.int64]:
        """Op in or after which each storage is freed; the number of ops for those that outlive the trace."""
        return self._positions(EventKind.FREE, len(self.ops))

    @cached_property
    def continued_from(self) -> NDArray[np.int64]:
        """For each storage, the storage of this step that it is when the next step begins; -1 for none."""
        before, dies = self.births < 0, self.deaths < len(self.ops)
        source = np.where(dies, self.storages.successor, np.arange(len(dies)))
        heir = np.maximum(source, 0)
        return np.where(before & ~dies[heir] & ~(dies & before[heir]), source, -1).astype(np.int64)

    @cached_property
    def live_bytes(self) -> NDArray[np.int64]:
        """Bytes of the live storages after each event."""
        events = self.events
        sign = (events.kind == EventKind.ALLOCATE).astype(np.int64) - (events.kind == EventKind.FREE)
        live: NDArray[np.int64] = np.cumsum(sign * self.storages.bytes[events.storage])
        return live

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were live at once, workspace included; no rounding of any allocator."""
        return int(self.live_bytes.max(initial=0))

    @property
    def duration_ns(self) -> int:
        """Sum of the known durations of the ops."""
        known = self.ops.duration_ns[self.ops.duration_ns != UNKNOWN]
        return int(known.sum())

    def working_set_bytes(self) -> NDArray[np.int64]:
        """Bytes of all storages that each op touches or that live only inside it, each counted once."""
        op_count, storage_count = len(self.ops), max(len(self.storages), 1)
        events, accesses = self.events, self.accesses
        made = (events.kind == EventKind.ALLOCATE) & (events.inside == 1)
        op = np.concatenate([accesses.op, events.op[made]]).astype(np.int64)
        storage = np.concatenate([accesses.storage, events.storage[made]]).astype(np.int64)
        pairs = np.sort(op * storage_count + storage)
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        sizes = self.storages.bytes[pairs % storage_count]
        return np.bincount(pairs // storage_count, weights=sizes, minlength=op_count).astype(np.int64)

    @cached_property
    def used(self) -> NDArray[np.bool_]:
        """Whether the step uses each storage: an op accesses it, or an event after the first allocations names it."""
        events = self.events
        found = np.zeros(len(self.storages), bool)
        found[self.accesses.storage] = True
        found[events.storage[(events.op != -1) | (events.kind != EventKind.ALLOCATE)]] = True
        return found

    @cached_property
    def structure_digest(self) -> str:
        """SHA-256 in hexadecimal of all that is equal whenever a step runs again.

        A plan of one such trace fits all of them if its actions are on storages that the step uses.

        It covers the ops' names and accesses, and the numbers, sizes and lifetimes of the storages that the step uses.
        Durations, modules, names and roles of tensors are left out, and so are storages that the step does not use.
        """
        used, successor = self.used, self.storages.successor
        numbers, places = np.unique(self.ops.name, return_inverse=True)
        names = [self.strings[number] for number in numbers.tolist()]
        order = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
        places, names = np.argsort(order)[places], sorted(names)  # whatever numbers the strings have in this recording
        own = np.flatnonzero(used)
        events = used[self.events.storage]
        columns = [
            own,
            self.storages.bytes[own],
            np.where((successor >= 0) & used[successor], successor, -1)[own],
            self.ops.creates,
            places,
            *(getattr(self.accesses, name) for name in self.accesses.DTYPES),
            *(getattr(self.events, name)[events] for name in self.events.DTYPES),
        ]
        return _digest([self.target, *names], columns)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what the trace says, in hexadecimal: equal for equal traces, whatever the file's compression."""
        texts = (self.target, self.source, self.device, self.torch_version, self.workload, *self.strings)
        tables = [getattr(self, name) for name in TABLES]
        return _digest(texts, [getattr(table, column) for table in tables for column in table.DTYPES])


def _digest(texts: Iterable[str], columns: Iterable[NDArray[Any]]) -> str:
    hasher = hashlib.sha256(SCHEMA.encode())
    for text in texts:
        encoded = text.encode()
        hasher.update(len(encoded).to_bytes(8, "little") + encoded)
    for data in columns:
        hasher.update(len(data).to_bytes(8, "little") + data.tobytes())
    return hasher.hexdigest()


def event_positions(trace: Trace) -> NDArray[np.int64]:
    """A number for each event that orders it among ops: 3 * op for the op's begin, + 1 inside, + 2 after it."""
    return trace.events.op.astype(np.int64) * 3 + np.where(trace.events.inside == 1, 1, 2)
