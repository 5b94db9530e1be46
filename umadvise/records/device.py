"""What a device can do, each number with its source: the records that a device file holds.

Bytes are integers, times nanoseconds, rates a second.
"""

from typing import Annotated, Generic, Literal, TypeVar, get_args

import msgspec
from msgspec.structs import replace

from umadvise.errors import PolicyError
from umadvise.records.counters import Record
from umadvise.records.units import format_bytes

SCHEMA = "umadvise.device/1"

_PRINTABLE = r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+\Z"
_NAME = r"\A[a-z0-9][a-z0-9-]{0,63}\Z"

Name = Annotated[str, msgspec.Meta(pattern=_NAME)]
Text = Annotated[str, msgspec.Meta(max_length=1000, pattern=_PRINTABLE)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1e18)]  # bytes or operations a second
PerBlock = Annotated[float, msgspec.Meta(ge=1, le=512)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
OfRoofline = Annotated[float, msgspec.Meta(gt=0, le=4)]
Number = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]

DType = Literal["fp32", "tf32", "bf16", "fp16"]
DTYPES: tuple[DType, ...] = get_args(DType)
Direction = Literal["h2d", "d2h"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)

Value = TypeVar("Value")


class Fact(Record, Generic[Value], frozen=True):
    """A number and where it comes from; `uncertain` where nobody has confirmed it for this device."""

    value: Value
    source: Text
    uncertain: bool = False


class FactOrNone(Record, Generic[Value], frozen=True):
    """A number that may be unknown (None); the source then says why."""

    source: Text
    value: Value | None = None
    uncertain: bool = False


class DeviceMemory(Record, frozen=True):
    """Device memory. `reserved_bytes` is what the driver and a CUDA context keep for themselves."""

    bytes: Fact[Bytes]
    reserved_bytes: Fact[Bytes]
    bytes_per_s: FactOrNone[Rate]
    achievable_share: Fact[Share]


class PeakFlops(Record, frozen=True):
    """Dense peak FLOP/s, tensor cores included; without a value where the hardware has no such unit."""

    fp32: FactOrNone[Rate]
    tf32: FactOrNone[Rate]
    bf16: FactOrNone[Rate]
    fp16: FactOrNone[Rate]


class Efficiency(Record, frozen=True):
    """Part of the roofline (peak FLOP/s, achievable memory bandwidth) that ops of each class reach.

    More than 1 is possible: Winograd convolutions do fewer operations than are counted.
    """

    other: Fact[OfRoofline]
    matmul: Fact[OfRoofline]
    convolution: Fact[OfRoofline]
    attention: Fact[OfRoofline]
    elementwise: Fact[OfRoofline]
    reduction: Fact[OfRoofline]
    copy: Fact[OfRoofline]


class LinkDirection(Record, frozen=True):
    """A copy of n bytes from or to page-locked memory takes fixed_ns + n / bytes_per_s.

    While the other direction copies too it takes n / both_bytes_per_s; where nobody measured that, they do not disturb
    each other. `engines` copy at the same time in this direction and share its bandwidth.
    """

    fixed_ns: Fact[Nanoseconds]
    bytes_per_s: Fact[Rate]
    both_bytes_per_s: FactOrNone[Rate]
    engines: Fact[Number]

    def __post_init__(self) -> None:
        both = self.both_bytes_per_s.value
        if both is not None and both > self.bytes_per_s.value:
            raise ValueError("both_bytes_per_s is more than bytes_per_s: expected two directions to share the link")


class Link(Record, frozen=True):
    """The link to the host.

    Attributes:
        kind: what it is, such as "pcie4-x16".
        h2d: the way to the device.
        d2h: the way to the host.
        pageable_share: speed of copies from pageable memory, as a part of the others' speed.
        shared_by: number of devices of one host that divide the link's bandwidth when all of them copy; without a value
            all that are in use do.
    """

    kind: Name
    h2d: LinkDirection
    d2h: LinkDirection
    pageable_share: Fact[Share]
    shared_by: FactOrNone[Number] = FactOrNone(source="nobody has said who shares the link")


class FaultCosts(Record, frozen=True):
    """What unified memory costs besides the copies themselves, whose fixed cost (t_dma) is the link's.

    Attributes:
        fault_batch_max: the most fault entries that one batch takes.
        batch_ns: time for each batch of faults: interrupt, fetch, sort, flush, replay.
        entry_ns: time for each fault entry of a batch.
        block_ns: time for each 2 MiB block of a batch: its lock and its page tables.
        migrate_ns: extra time for a block that comes from the host: unmapping there, pushes.
        first_map_ns: extra time when a block comes to the device for the first time: mapping its host pages for DMA.
        evict_ns: time for each 2 MiB block that is evicted, beside its copy to the host.
        host_fault_ns: time for a fault of the host, beside the copies.
        prefetch_call_ns: time that each prefetch call takes from the thread that makes it.
        prefetch_block_ns: time that the driver takes for each block of a prefetch that is not there yet; one that is
            there costs `block_ns`.
        prefetch_bytes_per_s: bandwidth of a prefetch's copies; without a value it is the link's.
        advise_call_ns: time that each call that gives advice takes from the thread that makes it.
        read_mostly_block_ns: extra time for each block with contents when the advice is read-mostly.
        accessed_by_block_ns: extra time for each block when the advice is accessed-by.
        zero_share: bandwidth of filling device memory with zeros, as a part of its peak bandwidth.
        remote_share: bandwidth of accesses over the link, as a part of the link's bandwidth to the device.
        window_pages: pages of 4 KiB that a parallel kernel works on at a time, where the trace does not say.
        run_pages: pages of 4 KiB that one group of threads walks through in order, where the trace does not say.
        faults_per_service: faults that come together in one block, where the trace does not say.
        services_per_block: number of fault services of a 2 MiB block that a model by blocks counts as one.
        records_per_block: number of transfers of a block that a model by blocks counts as one.
    """

    fault_batch_max: Fact[Number]
    batch_ns: Fact[Nanoseconds]
    entry_ns: Fact[Nanoseconds]
    block_ns: Fact[Nanoseconds]
    migrate_ns: Fact[Nanoseconds]
    first_map_ns: Fact[Nanoseconds]
    evict_ns: Fact[Nanoseconds]
    host_fault_ns: Fact[Nanoseconds]
    prefetch_call_ns: Fact[Nanoseconds]
    prefetch_block_ns: Fact[Nanoseconds]
    prefetch_bytes_per_s: FactOrNone[Rate]
    advise_call_ns: Fact[Nanoseconds]
    read_mostly_block_ns: Fact[Nanoseconds]
    accessed_by_block_ns: FactOrNone[Nanoseconds]
    zero_share: Fact[Share]
    remote_share: Fact[Share]
    window_pages: Fact[Number]
    run_pages: Fact[Number]
    faults_per_service: Fact[Number]
    services_per_block: Fact[PerBlock]
    records_per_block: Fact[PerBlock]


class ManagedMemory(Record, frozen=True, kw_only=True):
    """Whether the device pages managed memory, and at what cost.

    `coherent` machines (POWER9, Grace) translate through the host's page tables (ATS) and count accesses.
    """

    costs: FaultCosts
    supported: FactOrNone[bool]
    coherent: FactOrNone[bool]
    system_page_bytes: Fact[Literal[4096, 16384, 65536]]


Known = TypeVar("Known", Fact[float], FactOrNone[float])


def _divided(rate: Known, sharers: int) -> Known:
    if rate.value is None:
        return rate
    return replace(rate, value=rate.value / sharers, source=f"{rate.source[:900]}; divided among {sharers} devices")


class DeviceProfile(Record, frozen=True, kw_only=True, tag_field="schema", tag=SCHEMA):
    """One device. The properties are the plain numbers of the facts that most readers want."""

    name: Name
    label: Text
    aliases: Annotated[tuple[Name, ...], msgspec.Meta(max_length=16)] = ()
    launch_ns: Fact[Nanoseconds]
    memory: DeviceMemory
    peak_flops: PeakFlops
    efficiency: Efficiency
    link: Link
    unified_memory: ManagedMemory

    def __post_init__(self) -> None:
        if self.memory.reserved_bytes.value >= self.memory.bytes.value:
            raise ValueError("reserved_bytes leaves no memory: expected less than bytes")

    @property
    def memory_bytes(self) -> int:
        """Device memory in bytes."""
        return self.memory.bytes.value

    @property
    def usable_bytes(self) -> int:
        """Device memory without what the driver keeps, in bytes."""
        return self.memory.bytes.value - self.memory.reserved_bytes.value

    def too_large(self, budget_bytes: int) -> str | None:
        """Why a budget cannot be had on the device; None where it can."""
        if budget_bytes <= self.usable_bytes:
            return None
        return (
            f"a budget of {format_bytes(budget_bytes)} is more than {self.name} leaves to programs: "
            f"expected at most {format_bytes(self.usable_bytes)} ({self.usable_bytes} bytes)"
        )

    @property
    def memory_bytes_per_s(self) -> float | None:
        """Peak bandwidth of the device memory; None when unknown."""
        return self.memory.bytes_per_s.value

    @property
    def achievable_memory_bytes_per_s(self) -> float | None:
        """Bandwidth of the device memory that the best kernels reach; None when unknown."""
        peak = self.memory.bytes_per_s.value
        return None if peak is None else peak * self.memory.achievable_share.value

    @property
    def bandwidth_h2d(self) -> float:
        """Bytes a second from page-locked host memory to the device, for large copies."""
        return self.link.h2d.bytes_per_s.value

    @property
    def bandwidth_d2h(self) -> float:
        """Bytes a second from the device to page-locked host memory, for large copies."""
        return self.link.d2h.bytes_per_s.value

    @property
    def system_page_bytes(self) -> int:
        """Size of the host's pages in bytes."""
        return self.unified_memory.system_page_bytes.value

    @property
    def coherent(self) -> bool:
        """The device translates through the host's page tables; False when unknown."""
        return self.unified_memory.coherent.value is True

    @property
    def pages_managed_memory(self) -> bool:
        """The device takes page faults, so that managed memory may exceed it; False when unknown."""
        return self.unified_memory.supported.value is True

    def require_unified_memory(self) -> None:
        """Checks that the device pages managed memory.

        Raises:
            PolicyError: the device takes no page faults; the message says why and what to do.
        """
        if not self.pages_managed_memory:
            raise PolicyError(
                f"{self.label} cannot page unified memory: {self.unified_memory.supported.source}. "
                "Expected a device with page faults (Pascal or newer); plan explicit swaps for this one"
            )

    def among(self, ranks: int) -> "DeviceProfile":
        """The device as one of several that are in use on a host, which copy at the same time over what they share.

        Args:
            ranks: number of devices in use there, this one among them.
        """
        sharers = min(ranks, self.link.shared_by.value or ranks)
        if sharers <= 1:
            return self
        ways = (self.link.h2d, self.link.d2h)
        h2d, d2h = (
            replace(
                way,
                bytes_per_s=_divided(way.bytes_per_s, sharers),
                both_bytes_per_s=_divided(way.both_bytes_per_s, sharers),
            )
            for way in ways
        )
        return replace(self, link=replace(self.link, h2d=h2d, d2h=d2h))

    def fits(self, bytes_: int) -> bool:
        """Whether so many bytes are on the device at once."""
        return bytes_ <= self.usable_bytes

    def peak(self, dtype: DType) -> float | None:
        """Dense peak FLOP/s of a number format; None where the device has no such unit, or nobody knows."""
        units = self.peak_flops
        return {"fp32": units.fp32, "tf32": units.tf32, "bf16": units.bf16, "fp16": units.fp16}[dtype].value

    def transfer_ns(self, direction: Direction, bytes_: int, *, both: bool = False) -> int:
        """Nanoseconds of one copy between page-locked host memory and the device; 0 for nothing.

        Args:
            direction: "h2d" for host to device, "d2h" for device to host.
            bytes_: size of the copy in bytes.
            both: whether the other direction is copying all the while.
        """
        if bytes_ == 0:
            return 0
        one: LinkDirection = {"h2d": self.link.h2d, "d2h": self.link.d2h}[direction]
        speed = (one.both_bytes_per_s.value if both else None) or one.bytes_per_s.value
        return one.fixed_ns.value + round(bytes_ * 1e9 / speed)
