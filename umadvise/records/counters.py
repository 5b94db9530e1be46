"""What a device counted and saw: um_counters, um_swap_counters and their kin of csrc/include/umadvise.h.

The tuples of words stand in the header's order, so that `EVENT_KINDS[number]` reads a native enum. A number that nobody
could observe is None, never 0.
"""

import functools
from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec

EventWord = Literal[
    "fault_group",
    "transfer_h2d",
    "transfer_d2h",
    "eviction",
    "collapse",
    "remote_map",
    "oversized_op",
    "silent_write",
    "swap_in",
    "swap_out",
    "wait_copy",
    "wait_room",
    "label",
]
EVENT_KINDS: tuple[EventWord, ...] = get_args(EventWord)

CauseWord = Literal["user", "coherence", "speculative", "eviction", "access_counter"]
CAUSES: tuple[CauseWord, ...] = get_args(CauseWord)
SwapCauseWord = Literal["planned", "on_demand", "for_room"]
SWAP_CAUSES: tuple[SwapCauseWord, ...] = get_args(SwapCauseWord)
WAITS: frozenset[EventWord] = frozenset({"wait_copy", "wait_room"})
SWAP_KINDS: frozenset[EventWord] = WAITS | {"swap_in", "swap_out"}

PhaseWord = Literal["forward", "backward", "optimizer"]
PHASES: tuple[PhaseWord | None, ...] = (None, *get_args(PhaseWord))

RoleWord = Literal["parameter", "input", "intermediate", "gradient", "optimizer_state", "workspace"]
ROLES: tuple[RoleWord, ...] = get_args(RoleWord)
MemoryKind = Literal["managed", "device", "chunked"]
ResidencySubject = Literal["role", "tensor", "op"]
RESIDENCY_SUBJECTS: tuple[ResidencySubject, ...] = get_args(ResidencySubject)

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number of things, bytes or nanoseconds: what the native core's 64-bit counters can hold."""


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything that a profile file holds: immutable, and strict about what it accepts."""


Numbers = TypeVar("Numbers", bound=Record)


class BytesByCause(Record, frozen=True):
    """Bytes moved in one direction, by why they moved (the driver's causes, uvm/uvm_types.h)."""

    user: Count | None
    coherence: Count | None
    speculative: Count | None
    eviction: Count | None
    access_counter: Count | None

    @property
    def total(self) -> int | None:
        """Sum over the causes in bytes; None when one of them is unknown."""
        parts = (self.user, self.coherence, self.speculative, self.eviction, self.access_counter)
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None


class Counters(Record, frozen=True):
    """um_counters: what a device did between two readings."""

    fault_groups: Count | None = None
    unordered_faults: Count | None = None
    first_touches: Count | None = None
    bytes_h2d: BytesByCause | None = None
    bytes_d2h: BytesByCause | None = None
    evictions: Count | None = None
    evictions_dropped: Count | None = None
    collapses: Count | None = None
    remote_maps: Count | None = None
    remote_accesses: Count | None = None
    fault_service_ns: Count | None = None
    op_count: Count | None = None
    oversized_ops: Count | None = None


class Swaps(Record, frozen=True):
    """What explicit swapping did between two readings: the totals of um_swap_counters.

    `on_demand_swap_ins` of the swap-ins no plan had asked for in time, and `evictions` of the departures, those without
    a copy (`clean_drops`) included, no plan had foreseen. `cancelled` departures and arrivals were not needed after
    all. Ops stood still for `wait_copy_ns` until bytes had come, for `wait_room_ns` until others had left.
    """

    swap_ins: Count
    swap_outs: Count
    swap_in_bytes: Count
    swap_out_bytes: Count
    on_demand_swap_ins: Count
    evictions: Count
    clean_drops: Count
    cancelled: Count
    wait_copy_ns: Count
    wait_room_ns: Count

    def plus(self, other: "Swaps") -> "Swaps":
        """The sum of two readings."""
        return _combined(self, other, 1)

    def minus(self, before: "Swaps") -> "Swaps":
        """What happened since an earlier reading."""
        return _combined(self, before, -1)


NO_SWAPS = Swaps(**dict.fromkeys(Swaps.__struct_fields__, 0))


class SwapCounters(Swaps, frozen=True):
    """um_swap_counters: totals since the device was opened, levels now, peaks of the running or last step.

    `program` is an `umadvise._native.abi.ProgramStatus`; `diverged_op` and what follows are about the first op that
    differed. From `program_number` on it is about the running or last step: the program that it was like in the end (0:
    none), how many of its ops were given something and how many of these no program knew, how often it went on
    elsewhere, and what its ops and the program's made. Of the swap-ins not on demand `late_swap_ins` were ordered when
    the op that used them began, and `unused_swap_ins` left before any did. `laid_out`: chunks are not mapped anew.
    """

    late_swap_ins: Count
    unused_swap_ins: Count
    redundant_actions: Count
    actions: Count
    skipped_actions: Count
    silent_writes: Count
    chunk_bytes: Count
    budget_bytes: Count
    used_bytes: Count
    used_peak_bytes: Count
    pinned_bytes: Count
    pinned_peak_bytes: Count
    host_bytes: Count
    host_peak_bytes: Count
    host_pool_bytes: Count
    program: int
    diverged_op: int
    diverged_expected: str
    diverged_found: str
    programs_followed: Count
    program_number: Count
    step_ops: Count
    unknown_ops: Count
    jumps: Count
    made_bytes: Count
    program_made_bytes: Count
    laid_out: int


class SpentTime(Record, frozen=True):
    """um_spent_time: what time went into, in nanoseconds; each kind is measured where it happens, none is what is left.

    Ops ran for `compute_ns`. Before and after them the guard took `guard_ns`, with the driver calls that it makes.
    Between ops were the program itself and torch on the host (`script_ns`), the making and choosing of plans
    (`planning_ns`), and recording and reading what happened (`observing_ns`). Ops stood still for faults: that found
    nothing to copy (`first_touch_ns`), whose bytes came (`migration_ns`), for what had to leave (`fault_room_ns`); for
    prefetched bytes on their way (`prefetch_ns`); for swap-ins that were ordered and late (`swap_in_ns`), for those
    that nobody had ordered (`on_demand_ns`), and for what left for them (`room_ns`).
    """

    compute_ns: Count
    guard_ns: Count
    script_ns: Count
    planning_ns: Count
    observing_ns: Count
    first_touch_ns: Count
    migration_ns: Count
    fault_room_ns: Count
    prefetch_ns: Count
    swap_in_ns: Count
    on_demand_ns: Count
    room_ns: Count

    @property
    def sum_ns(self) -> int:
        """All of it: a step's duration, but for what nobody has measured."""
        return sum(getattr(self, field) for field in self.__struct_fields__)

    def plus(self, other: "SpentTime") -> "SpentTime":
        """The sum of two readings."""
        return _combined(self, other, 1)

    def minus(self, before: "SpentTime") -> "SpentTime":
        """What time has gone into since an earlier reading."""
        return _combined(self, before, -1)


class Chunks(Record, frozen=True):
    """Size and use of the memory for chunks, on the device and on the host: the levels of um_swap_counters."""

    chunk_bytes: Count
    budget_bytes: Count
    used_peak_bytes: Count
    host_peak_bytes: Count


class Placed(Record, frozen=True):
    """Bytes of the tensors of one role that were made, or were there, in one kind of memory with one advice."""

    role: RoleWord
    memory: MemoryKind
    advice: Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[a-z_]+\Z")]
    bytes: Count


class RemoteMapsByCause(Record, frozen=True):
    """Remote mappings by why they were made (the driver's causes, uvm/uvm_types.h)."""

    unknown: Count
    coherence: Count
    thrashing: Count
    policy: Count
    out_of_memory: Count
    eviction: Count


class Sampling(Record, frozen=True):
    """What the counters of a CUDA device cover: they come from CUPTI's records, which are collected in some steps only.

    `every`: every so many steps, and the first three. `steps` of them, `duration_ns` together, are what a profile's
    counters, tables and pattern are about; `failed_steps` were to be and could not, the last one for `reason`.
    `page_faults` says how often the device reported the pages of fault groups, `host_faults` how often the CPU faulted
    in the device's memory. `unknown_cause_bytes` moved for a cause that is not known, and are not part of any other
    number; `ignored_records` were about other memory or other times, or of kinds that are not known.
    """

    every: Count
    steps: Count
    failed_steps: Count
    duration_ns: Count
    reason: Annotated[str, msgspec.Meta(max_length=512, pattern=r"\A[^\x00-\x1f\x7f-\x9f]*\Z")] | None
    page_faults: Count
    host_faults: Count
    thrashing_bytes: Count
    throttles: Count
    throttled_ns: Count
    remote_map_bytes: Count
    remote_maps: RemoteMapsByCause
    unknown_cause_bytes: Count
    ignored_records: Count

    def minus(self, before: "Sampling") -> "Sampling":
        """What was sampled since an earlier reading."""
        counted = _combined(msgspec.structs.replace(self, reason=None), before, -1)
        return msgspec.structs.replace(counted, every=self.every, reason=self.reason)


class BytesByRole(Record, frozen=True):
    """Bytes for each role a tensor can have."""

    parameter: Count
    input: Count
    intermediate: Count
    gradient: Count
    optimizer_state: Count
    workspace: Count


class MemoryStats(Record, frozen=True):
    """um_memory_stats: how much memory there is, where it lies, and the peaks.

    What is requested counts for the role that a tensor has, what is resident for the role that its memory was made for:
    parameter, input or intermediate.
    """

    requested_bytes: Count
    requested_peak_bytes: Count
    reserved_bytes: Count
    reserved_peak_bytes: Count
    resident_bytes: Count | None
    resident_peak_bytes: Count | None
    host_bytes: Count | None
    host_peak_bytes: Count | None
    workspace_bytes: Count
    allocation_count: Count
    free_count: Count
    live_allocations: Count
    requested_by_role: BytesByRole
    requested_peak_by_role: BytesByRole
    resident_by_role: BytesByRole | None
    resident_peak_by_role: BytesByRole | None


class Event(msgspec.Struct, gc=False):
    """um_event with its names resolved, in its order: one thing the page machinery did.

    `op`, `module` and `phase` are those of the op that was running; `role`, `name`, `birth_op` and `birth_module` those
    of the allocation at `address`, which for an eviction is the victim. None where the native id is 0. Of paging only
    transfers count as bytes: an eviction's bytes repeat its transfer's, and tell a copy from a drop. `neighbours` are
    the other allocations in the 2 MiB block at `address`, as far as a byte can count them.
    """

    start_ns: int
    duration_ns: int
    address: int
    bytes: int
    allocation: int
    allocation_bytes: int
    step: int
    op_index: int
    op: str | None
    module: str | None
    phase: PhaseWord | None
    role: RoleWord | None
    name: str | None
    birth_op: str | None
    birth_module: str | None
    kind: EventWord
    cause: CauseWord | SwapCauseWord
    write: bool
    unordered: bool
    first_touch: bool
    neighbours: int


class ResidencyPeak(msgspec.Struct, gc=False):
    """um_residency with its names resolved, in its order: the most bytes on the device at once, in a step.

    Of a "role" they are those of its live tensors, of a "tensor" those of the live ones with this role, name or
    birthplace, and size; while an "op" ran, all bytes, and it ran for `compute_ns`. None and 0 are of no use
    for a subject, or unknown.
    """

    peak_bytes: int | None
    bytes: int
    subject: ResidencySubject
    role: RoleWord | None
    name: str | None
    birth_op: str | None
    birth_module: str | None
    op: str | None
    module: str | None
    phase: PhaseWord | None
    compute_ns: int = 0


@functools.cache
def _fields_of(kind: type[Record]) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """The names of a record's fields, and what reads all of them: records are combined at every edge of a step."""
    return kind.__struct_fields__, attrgetter(*kind.__struct_fields__)


def _combined(after: Numbers, before: Numbers, sign: int) -> Numbers:
    fields, values = _fields_of(type(after))
    combined: dict[str, Any] = {}
    for field, new, old in zip(fields, values(after), values(before), strict=True):
        if new.__class__ is int and old.__class__ is int:
            combined[field] = new + sign * old
        else:
            combined[field] = None if new is None or old is None else _combined(new, old, sign)
    return type(after)(**combined)


def subtract(after: Counters, before: Counters) -> Counters:
    """What happened between two readings of one device; what is unknown in either reading is unknown.

    Raises:
        ValueError: a counter ran backwards, so that the readings are not of one device or not in this order.
    """
    difference = _combined(after, before, -1)
    for record in (difference, difference.bytes_h2d, difference.bytes_d2h):
        fields, values = _fields_of(Counters if record is difference else BytesByCause)
        for field, number in zip(fields, values(record) if record is not None else (), strict=False):
            if number.__class__ is int and number < 0:
                raise ValueError(
                    f"the counter {field} ran backwards by {-number}: expected two readings of one device in order"
                )
    return difference


def add(left: Counters, right: Counters) -> Counters:
    """The sum of two readings; what is unknown in either is unknown."""
    return _combined(left, right, 1)


def with_sample(counters: Counters, sample: Counters | None) -> Counters:
    """Joins the core's own counters of a step with those that CUPTI gave on a CUDA device.

    Args:
        counters: the core's own counters of the step; its counts of ops are there for every step.
        sample: the counters that CUPTI gave for the step; None where the step was not sampled.
    """
    return msgspec.structs.replace(
        sample or Counters(), op_count=counters.op_count, oversized_ops=counters.oversized_ops
    )
