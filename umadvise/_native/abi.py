"""What the core is given and says, in Python: enumerations and records of csrc/include/umadvise.h.

Fields go by their names: their order and their types in C are the header's alone (`_native.header`), and a test
compares names and numbers with it. What many rooms read (counters, memory, events) are records of
`umadvise.records.counters`.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from umadvise.records.counters import SwapCounters
from umadvise.records.enums import Advice, Role

UNKNOWN = -1
"""UM_UNKNOWN: what nobody can observe."""


class Status(IntEnum):
    """What a call into the core returned (um_status); all but OK become errors."""

    OK = 0
    INVALID_ARGUMENT = 1
    UNSUPPORTED = 2
    OUT_OF_DEVICE_MEMORY = 3
    OUT_OF_HOST_MEMORY = 4
    DRIVER_ERROR = 5
    BAD_STATE = 6
    STEP_BEGINS = 7


class Counting(IntEnum):
    """How the emulated device counts faults: in the order of the ops' arguments, or as threads cause them."""

    ORDERED = 0
    RAW = 1


class Memory(IntEnum):
    """Kinds of memory: managed, plain and never paged, plain as long as there is any, or swapped chunks."""

    MANAGED = 0
    DEVICE = 1
    PREFER_DEVICE = 2
    CHUNKED = 3


class Owners(IntEnum):
    """um_owners: whether the device remembers who owns memory that is not in chunks, and refuses ops to convert it."""

    FORGOTTEN = 0
    REMEMBERED = 1
    CONVERTED_IN_OPS = 2


class RouteState(IntEnum):
    """Where a thread's torch allocations go; for the process INHERIT means OFF."""

    INHERIT = 0
    OFF = 1
    ON = 2


class Small(IntEnum):
    """um_small: whether allocations below 64 KiB stay, as long as there are few, or leave like any other."""

    STAY = 0
    LEAVE = 1


class TimeKind(IntEnum):
    """um_time: what a device's time goes into."""

    COMPUTE = 0
    GUARD = 1
    SCRIPT = 2
    PLANNING = 3
    OBSERVING = 4
    FIRST_TOUCH = 5
    MIGRATION = 6
    FAULT_ROOM = 7
    PREFETCH = 8
    SWAP_IN = 9
    ON_DEMAND = 10
    ROOM = 11


class Service(IntEnum):
    """um_service: what touches memory in a simulation: the guard, in order, or a raw run's recorded services."""

    GUARD = 0
    RECORDED = 1


class ProgramStatus(IntEnum):
    """um_program_status: what a device does with the program that it was given."""

    NONE = 0
    WAITING = 1
    DRIVING = 2
    DIVERGED = 3


@dataclass(frozen=True, slots=True)
class Placement:
    """um_placement: kind of memory, arena and advice of an allocation."""

    memory: int = Memory.MANAGED
    role: int = Role.INTERMEDIATE
    advice: int = Advice.NONE


@dataclass(frozen=True, slots=True)
class Route:
    """um_route: where torch's allocations go. `device` is `Device.handle` and `lease` of `lease_routes`; 0: none."""

    state: int = RouteState.INHERIT
    placement: Placement = field(default_factory=Placement)
    device: int = 0
    lease: int = 0


@dataclass(frozen=True, slots=True)
class EmulatedOptions:
    """um_emulated_options: the settings of an emulated device; 0 for `host_bytes` is what the machine has."""

    capacity_bytes: int
    host_bytes: int = 0
    counting: int = Counting.ORDERED
    delay_max_us: int = 0
    delay_seed: int = 0


@dataclass(frozen=True, slots=True)
class ChunkOptions:
    """um_chunk_options: device memory for chunks; 0 for a size is the device's default."""

    budget_bytes: int
    host_budget_bytes: int = 0
    chunk_bytes: int = 0
    small: int = Small.STAY
    session_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Concurrency:
    """um_concurrency: how a kernel walks through memory; `umadvise.records.trace.Ops` says what each is."""

    window_pages: int
    run_pages: int
    faults_per_service: int


@dataclass(frozen=True, slots=True)
class Converted:
    """um_converted: how many allocations have changed their kind of memory, and how many stayed where they were."""

    moved: int
    moved_bytes: int
    stayed: int
    stayed_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """um_device_info: what an open device says of itself."""

    name: str
    provider: str
    ordinal: int
    driver_version: int
    concurrent_managed: int | None
    pageable_access: int | None
    total_bytes: int
    free_bytes: int
    counting: int
    live_allocations: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """um_allocation: one live allocation."""

    serial: int
    address: int
    bytes: int
    reserved_bytes: int
    memory: int
    role: int
    advice: int
    name: str
    birth_step: int
    birth_op_index: int
    birth_op: str
    birth_module: str
    seen: bool
    exports: int
    device: int  # `Device.handle` of its device
    owned: bool


@dataclass(frozen=True, slots=True)
class MemoryHistory:
    """um_memory_history: what came and went."""

    live_allocations_peak: int
    requested_bytes: int
    failure_count: int
    exports_ended: int


@dataclass(frozen=True, slots=True)
class CuptiLibrary:
    """um_cupti_library: where counters of a CUDA device come from."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """um_cuda_device: what the driver says of a device that nobody has opened."""

    name: str
    driver_version: int
    device_count: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class GpuStep:
    """um_gpu_step: one iteration on a simulated GPU; its duration is the sum of the three times after it."""

    start_ns: int
    duration_ns: int
    compute_ns: int
    wait_ns: int
    host_late_ns: int
    call_ns: int
    copy_ns: tuple[int, ...]
    swaps: SwapCounters


@dataclass(frozen=True, slots=True)
class CallCount:
    """um_call_count: how often a function of the driver was called, and what of the host's time it took."""

    function: str
    calls: int
    ns: int
    waits: int
    wait_ns: int


@dataclass(frozen=True, slots=True)
class SwapResult:
    """um_swap_result: the last iteration of a simulation of explicit swapping, and peaks of all of them."""

    compute_ns: int
    recompute_ns: int
    wait_copy_ns: int
    wait_room_ns: int
    map_ns: int
    wait_host_ns: int
    total_ns: int
    swap_in_bytes: int
    swap_out_bytes: int
    host_read_bytes: int
    host_write_bytes: int
    swap_ins: int
    swap_outs: int
    on_demand_swap_ins: int
    evictions: int
    cancelled: int
    clean_drops: int
    redundant_actions: int
    recomputed_ops: int
    iterations: int
    peak_live_bytes: int
    peak_reserved_bytes: int
    fragmentation_bytes: int
    peak_op: int
    failed_op: int | None
    working_set_bytes: int
    budget_needed_bytes: int

    @property
    def step_ns(self) -> int:
        """Length of the last iteration."""
        busy_ns = self.compute_ns + self.recompute_ns
        return busy_ns + self.wait_copy_ns + self.wait_room_ns + self.map_ns + self.wait_host_ns
