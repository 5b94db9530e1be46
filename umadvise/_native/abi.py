"""The enumerations and structures of the native ABI (csrc/include/umadvise.h, umadvise/_hooks/hooks.h) in Python.

Each structure is declared once, as a dataclass whose annotations carry the C types: `_native` derives the ctypes
structure from them, so the order and types of the fields are the ABI. Interned names arrive as text, UM_UNKNOWN as
None.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated

from umadvise.records.enums import Advice, Cause, Role

ABI_VERSION = 1
HOOKS_ABI_VERSION = 1
UNKNOWN = -1


class Status(IntEnum):
    """um_status."""

    OK = 0
    INVALID_ARGUMENT = 1
    UNSUPPORTED = 2
    OUT_OF_DEVICE_MEMORY = 3
    OUT_OF_HOST_MEMORY = 4
    DRIVER_ERROR = 5
    BAD_STATE = 6


class Counting(IntEnum):
    """How the emulated device counts faults: in the order of the ops' arguments, or as threads cause them."""

    ORDERED = 0
    RAW = 1


class Memory(IntEnum):
    """Managed memory, plain device memory that is never paged, plain memory while there is any, or swapped chunks."""

    MANAGED = 0
    DEVICE = 1
    PREFER_DEVICE = 2
    CHUNKED = 3


class RouteState(IntEnum):
    """Where a thread's torch allocations go; for the process INHERIT means OFF."""

    INHERIT = 0
    OFF = 1
    ON = 2


class HostMapped(IntEnum):
    """um_host_mapped: whether chunks that are swapped out are accessible at their addresses, slowly."""

    NOT = 0
    YES = 1


class Small(IntEnum):
    """um_small: whether allocations of half a chunk and less share chunks and stay, or leave like any other."""

    STAY = 0
    LEAVE = 1


class EventKind(IntEnum):
    """um_event_kind."""

    FAULT_GROUP = 0
    TRANSFER_H2D = 1
    TRANSFER_D2H = 2
    EVICTION = 3
    COLLAPSE = 4
    REMOTE_MAP = 5
    OVERSIZED_OP = 6
    SILENT_WRITE = 7
    SWAP_IN = 8
    SWAP_OUT = 9
    WAIT_COPY = 10
    WAIT_ROOM = 11
    LABEL = 12


class SwapCause(IntEnum):
    """um_swap_cause: why an explicit swap happened."""

    PLANNED = 0
    ON_DEMAND = 1
    FOR_ROOM = 2


class ResidencySubject(IntEnum):
    """um_residency_subject: whose peak it is."""

    ROLE = 0
    TENSOR = 1
    OP = 2


# ---- C types of the fields: what Python sees, then the C type (and the length of an array) -------------------------

UInt8 = Annotated[int, "uint8_t"]
UInt16 = Annotated[int, "uint16_t"]
Int32 = Annotated[int, "int32_t"]
UInt32 = Annotated[int, "uint32_t"]
Int64 = Annotated[int, "int64_t"]
UInt64 = Annotated[int, "uint64_t"]
Double = Annotated[float, "double"]
Flag8 = Annotated[bool, "uint8_t"]
Flag32 = Annotated[bool, "uint32_t"]
Known32 = Annotated[int | None, "int32_t"]
Known64 = Annotated[int | None, "int64_t"]
Int64EachWay = Annotated[tuple[int, ...], "int64_t", 2]  # to the device, to the host
UInt32EachWay = Annotated[tuple[int, ...], "uint32_t", 2]
DoubleEachWay = Annotated[tuple[float, ...], "double", 2]
Int64BySixCauses = Annotated[tuple[int, ...], "int64_t", 6]  # of remote mappings, the driver's own
KnownByCause = Annotated[tuple[int | None, ...], "int64_t", len(Cause)]
UInt64ByRole = Annotated[tuple[int, ...], "uint64_t", len(Role)]
Name = Annotated[str, "uint32_t"]  # an interned name
Pointer = Annotated[int, "void*"]

# ---- records -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Placement:
    """um_placement: kind of memory, arena and advice of an allocation."""

    memory: UInt32 = Memory.MANAGED
    role: UInt32 = Role.INTERMEDIATE
    advice: UInt32 = Advice.NONE


@dataclass(frozen=True, slots=True)
class Route:
    """um_route. `device` is `Device.handle`, 0 for none."""

    state: UInt32 = RouteState.INHERIT
    placement: Placement = field(default_factory=Placement)
    device: Pointer = 0


@dataclass(frozen=True, slots=True)
class EmulatedOptions:
    """um_emulated_options."""

    capacity_bytes: UInt64
    host_bytes: UInt64 = 0
    counting: UInt32 = Counting.ORDERED
    delay_max_us: UInt32 = 0
    delay_seed: UInt64 = 0


@dataclass(frozen=True, slots=True)
class Link:
    """um_link: a copy of n bytes takes fixed_ns + n / bytes_per_s, to the device and to the host."""

    fixed_ns: Int64EachWay
    bytes_per_s: DoubleEachWay
    both_bytes_per_s: DoubleEachWay
    engines: UInt32EachWay


@dataclass(frozen=True, slots=True)
class DriverCosts:
    """um_driver_costs: what the driver does besides copying, for blocks of 2 MiB."""

    fault_ns: Int64
    migrate_ns: Int64
    first_map_ns: Int64
    zero_ns: Int64
    evict_ns: Int64
    prefetch_call_ns: Int64
    prefetch_block_ns: Int64
    advise_call_ns: Int64
    read_mostly_block_ns: Int64
    prefetch_bytes_per_s: Double
    present_block_ns: Int64


@dataclass(frozen=True, slots=True)
class Charged:
    """um_charged: how long the link and the driver would have been busy."""

    copy_ns: Int64EachWay
    driver_ns: Int64


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """um_device_info."""

    name: Annotated[str, "char", 128]
    provider: Annotated[str, "char", 16]
    ordinal: Int32
    driver_version: Int32
    concurrent_managed: Known32
    pageable_access: Known32
    total_bytes: UInt64
    free_bytes: UInt64
    counting: UInt32
    live_allocations: UInt32


@dataclass(frozen=True, slots=True)
class Allocation:
    """um_allocation: one live allocation."""

    serial: UInt64
    address: UInt64
    bytes: UInt64
    reserved_bytes: UInt64
    memory: UInt32
    role: UInt32
    advice: UInt32
    name: Name
    birth_step: UInt32
    birth_op_index: UInt32
    birth_op: Name
    birth_module: Name
    seen: Flag32
    exports: UInt32
    device: Pointer  # `Device.handle` of its device


@dataclass(frozen=True, slots=True)
class Access:
    """um_access: bytes that an op reads or writes."""

    address: Pointer
    bytes: UInt64
    write: Flag32 = False
    argument: UInt32 = 0


@dataclass(frozen=True, slots=True)
class Event:
    """um_event: one thing that the page machinery did."""

    start_ns: Int64
    duration_ns: Int64
    address: UInt64
    bytes: UInt64
    allocation: UInt64
    allocation_bytes: UInt64
    step: UInt32
    op_index: UInt32
    op: Name
    module: Name
    phase: UInt32
    role: UInt32
    name: Name
    birth_op: Name
    birth_module: Name
    kind: UInt16
    cause: UInt16
    write: Flag8
    unordered: Flag8
    first_touch: Flag8
    neighbours: UInt8


@dataclass(frozen=True, slots=True)
class Counters:
    """um_counters: totals since the device was opened; None where nobody could observe."""

    fault_groups: Known64
    unordered_faults: Known64
    first_touches: Known64
    bytes_h2d: KnownByCause
    bytes_d2h: KnownByCause
    evictions: Known64
    evictions_dropped: Known64
    collapses: Known64
    remote_maps: Known64
    remote_accesses: Known64
    fault_service_ns: Known64
    op_count: Known64
    oversized_ops: Known64


@dataclass(frozen=True, slots=True)
class Sampling:
    """um_sampling: what the counters of a CUDA device cover, and what they hold beyond um_counters."""

    every: UInt32
    last_step: UInt32
    steps: Int64
    failed_steps: Int64
    duration_ns: Int64
    last_start_ns: Int64
    last_end_ns: Int64
    last: Counters
    page_faults: Int64
    host_faults: Int64
    thrashing_bytes: Int64
    throttles: Int64
    throttled_ns: Int64
    remote_map_bytes: Int64
    remote_maps_by_cause: Int64BySixCauses
    unknown_cause_bytes: Int64
    ignored_records: Int64
    reason: Annotated[str, "char", 512]


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """um_memory_stats, in bytes."""

    requested_bytes: UInt64
    requested_peak_bytes: UInt64
    reserved_bytes: UInt64
    reserved_peak_bytes: UInt64
    resident_bytes: UInt64
    resident_peak_bytes: UInt64
    host_bytes: UInt64
    host_peak_bytes: UInt64
    workspace_bytes: UInt64
    allocation_count: UInt64
    free_count: UInt64
    live_allocations: UInt64
    requested_by_role: UInt64ByRole
    requested_peak_by_role: UInt64ByRole
    resident_by_role: UInt64ByRole
    resident_peak_by_role: UInt64ByRole


@dataclass(frozen=True, slots=True)
class MemoryHistory:
    """um_memory_history: what came and went."""

    live_allocations_peak: UInt64
    requested_bytes: UInt64
    failure_count: UInt64
    exports_ended: UInt64


@dataclass(frozen=True, slots=True)
class CuptiLibrary:
    """um_cupti_library: where counters of a CUDA device come from."""

    path: Annotated[str, "char", 512]
    version: UInt32


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """um_cuda_device: what the driver says of a device that nobody has opened."""

    name: Annotated[str, "char", 128]
    driver_version: Int32
    device_count: UInt32
    total_bytes: UInt64


@dataclass(frozen=True, slots=True)
class Placed:
    """um_placed: bytes that were placed in one kind of memory, with one advice, for one role."""

    role: UInt32
    memory: UInt32
    advice: UInt32
    reserved: UInt32
    bytes: UInt64


@dataclass(frozen=True, slots=True)
class Residency:
    """um_residency: the most bytes that one subject had on the device at once."""

    peak_bytes: UInt64
    bytes: UInt64
    subject: UInt32
    role: UInt32
    name: Name
    birth_op: Name
    birth_module: Name
    op: Name
    module: Name
    phase: UInt32


class RecordedKind(IntEnum):
    """um_recorded_event_kind."""

    ALLOCATE = 0
    FREE = 1
    HOST_WRITE = 2
    HOST_READ = 3
    SERVICE_READ = 4
    SERVICE_WRITE = 5


@dataclass(frozen=True, slots=True)
class RecordedOp:
    """um_recorded_op: one op of a recording; the ranges index the recorded accesses and outputs."""

    op: Name
    phase: UInt32
    module: Name
    step: UInt32
    creates: Flag32
    reserved: UInt32
    duration_ns: Known64
    first_access: UInt64
    access_count: UInt64
    first_output: UInt64
    output_count: UInt64


@dataclass(frozen=True, slots=True)
class RecordedAccess:
    """um_recorded_access: bytes of one allocation, by serial number and offset."""

    allocation: UInt64
    offset_bytes: UInt64
    bytes: UInt64
    write: Flag32
    argument: UInt32


@dataclass(frozen=True, slots=True)
class RecordedAllocation:
    """um_recorded_allocation: an allocation as it was known last."""

    allocation: UInt64
    bytes: UInt64
    role: UInt32
    name: Name
    module: Name
    seen: Flag32


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """um_recorded_event: what happened to an allocation, and after which op began."""

    allocation: UInt64
    offset_bytes: Int64
    bytes: UInt64
    op: Int32
    kind: UInt16
    inside: UInt16


@dataclass(frozen=True, slots=True)
class RecordedEdge:
    """um_recorded_edge: a step that begins (0: one that ends), after so many events."""

    first_event: UInt64
    step: UInt32
    reserved: UInt32


@dataclass(frozen=True, slots=True)
class PagesCosts:
    """um_pages_costs: what the driver's work takes; `device_profile.FaultCosts` says what each is."""

    batch_max: UInt32
    reserved: UInt32
    batch_ns: Int64
    entry_ns: Int64
    block_ns: Int64
    migrate_ns: Int64
    first_map_ns: Int64
    transfer_ns: Int64
    evict_ns: Int64
    host_fault_ns: Int64
    prefetch_call_ns: Int64
    prefetch_block_ns: Int64
    advise_call_ns: Int64
    read_mostly_block_ns: Int64
    accessed_by_block_ns: Int64
    h2d_bytes_per_s: UInt64
    d2h_bytes_per_s: UInt64
    zero_bytes_per_s: UInt64
    remote_bytes_per_s: UInt64
    prefetch_bytes_per_s: UInt64


@dataclass(frozen=True, slots=True)
class PagesOptions:
    """um_pages_options: the machine of a page-accurate model."""

    device_bytes: UInt64
    page_bytes: UInt32
    coherent: Flag32
    costs: PagesCosts


@dataclass(frozen=True, slots=True)
class PagesTouch:
    """um_pages_touch: accesses to a range of one allocation."""

    allocation: UInt64
    offset_bytes: UInt64
    bytes: UInt64
    stride_bytes: UInt64
    host: Flag32
    write: Flag32
    order: UInt32
    window_pages: UInt32
    run_pages: UInt32
    faults_per_service: UInt32


@dataclass(frozen=True, slots=True)
class PagesCounters:
    """um_pages_counters: totals since the model was made."""

    shared: Counters
    host_fault_groups: Int64
    faults: Int64
    batches: Int64
    thrashing_pages: Int64
    throttles: Int64
    pinned_pages: Int64
    remote_bytes: Int64
    zeroed_bytes: Int64


@dataclass(frozen=True, slots=True)
class PagesRecord:
    """um_pages_record: a transfer or a fault group."""

    start_ns: Int64
    end_ns: Int64
    address: UInt64
    bytes: UInt64
    faults: UInt32
    kind: UInt16
    cause: UInt16


# ---- simulation ----------------------------------------------------------------------------------------------------


class Service(IntEnum):
    """um_service: what touches memory in a simulation: the guard, in order, or a raw run's recorded services."""

    GUARD = 0
    RECORDED = 1


@dataclass(frozen=True, slots=True)
class Concurrency:
    """um_concurrency: how a kernel walks through memory; `trace.schema.Ops` says what each is."""

    window_pages: Int32
    run_pages: Int32
    faults_per_service: Int32


@dataclass(frozen=True, slots=True)
class UnifiedOptions:
    """um_unified_options. `placements`: the address of one um_placement for each storage."""

    capacity_bytes: UInt64
    host_bytes: UInt64
    budget_bytes: UInt64
    placements: Pointer
    link: Link
    costs: PagesCosts
    launch_ns: Int64
    concurrency: Concurrency
    service: UInt32
    iterations: UInt32
    caching: Flag32
    reserved: UInt32 = 0


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """um_simulated_step: one iteration, or what lies before the first op."""

    counters: Counters
    memory: MemoryStats
    gpu_fault_groups: Int64
    gpu_batches: Int64
    gpu_faults: Int64
    gpu_records: Int64EachWay
    start_ns: Int64
    duration_ns: Int64
    compute_ns: Int64
    fault_ns: Int64
    wait_copy_ns: Int64
    wait_room_ns: Int64
    remote_ns: Int64
    call_ns: Int64
    copy_ns: Int64EachWay
    remote_bytes: Int64


@dataclass(frozen=True, slots=True)
class SwapOptions:
    """um_swap_options. `op_live_bytes`, `op_reserved_bytes`: addresses of arrays with an int64 for each op, or 0."""

    budget_bytes: UInt64
    chunk_bytes: UInt64
    op_issue_ns: Int64
    op_sync_ns: Int64
    map_ns_per_chunk: Int64
    allocator: UInt32
    eviction: UInt32
    iterations: UInt32
    spans: Flag32
    op_live_bytes: Pointer
    op_reserved_bytes: Pointer
    engine_rules: Flag32


@dataclass(frozen=True, slots=True)
class SwapResult:
    """um_swap_result: the last iteration of a simulation of explicit swapping, and peaks of all of them."""

    compute_ns: Int64
    recompute_ns: Int64
    wait_copy_ns: Int64
    wait_room_ns: Int64
    map_ns: Int64
    wait_host_ns: Int64
    total_ns: Int64
    swap_in_bytes: Int64
    swap_out_bytes: Int64
    host_read_bytes: Int64
    host_write_bytes: Int64
    swap_ins: Int64
    swap_outs: Int64
    on_demand_swap_ins: Int64
    evictions: Int64
    cancelled: Int64
    clean_drops: Int64
    redundant_actions: Int64
    recomputed_ops: Int64
    iterations: Int64
    peak_live_bytes: Int64
    peak_reserved_bytes: Int64
    fragmentation_bytes: Int64
    peak_op: Int64
    failed_op: Int64
    working_set_bytes: Int64
    budget_needed_bytes: Int64

    @property
    def step_ns(self) -> int:
        """Length of the last iteration."""
        busy_ns = self.compute_ns + self.recompute_ns
        return busy_ns + self.wait_copy_ns + self.wait_room_ns + self.map_ns + self.wait_host_ns


# ---- explicit swapping on a device ---------------------------------------------------------------------------------


class ProgramStatus(IntEnum):
    """um_program_status: what a device does with the program that it was given."""

    NONE = 0
    WAITING = 1
    DRIVING = 2
    DIVERGED = 3


@dataclass(frozen=True, slots=True)
class ChunkOptions:
    """um_chunk_options: device memory for chunks; 0 for a size is the device's default."""

    budget_bytes: UInt64
    host_budget_bytes: UInt64 = 0
    chunk_bytes: UInt64 = 0
    host_mapped: UInt32 = HostMapped.NOT
    small: UInt32 = Small.STAY


@dataclass(frozen=True, slots=True)
class SwapCounters:
    """um_swap_counters: totals since the device was opened, levels now, peaks of the running or last step."""

    swap_ins: Int64
    swap_outs: Int64
    swap_in_bytes: Int64
    swap_out_bytes: Int64
    on_demand_swap_ins: Int64
    evictions: Int64
    cancelled: Int64
    clean_drops: Int64
    redundant_actions: Int64
    actions: Int64
    skipped_actions: Int64
    wait_copy_ns: Int64
    wait_room_ns: Int64
    silent_writes: Int64
    host_accesses: Known64
    chunk_bytes: UInt64
    budget_bytes: UInt64
    used_bytes: UInt64
    used_peak_bytes: UInt64
    pinned_bytes: UInt64
    pinned_peak_bytes: UInt64
    host_bytes: UInt64
    host_peak_bytes: UInt64
    host_pool_bytes: UInt64
    program: UInt32
    diverged_op: UInt32
    diverged_expected: Name
    diverged_found: Name
    programs_followed: UInt64
