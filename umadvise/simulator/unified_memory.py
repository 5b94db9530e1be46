"""A page-accurate model of unified memory, driven by hand: what the driver would move on a device, and why.

Rules: NVIDIA/open-gpu-kernel-modules 595.45.04, kernel-open/nvidia-uvm; each stands in csrc/um/pages_*.cpp with its
source. Times are as uncertain as the device's profile says; services, transfers and bytes follow from the rules.

Example:
    um = UnifiedMemory("v100-pcie-16gb")
    block = um.allocate(2 << 20)
    um.touch(block, 0, block.bytes, processor="cpu", write=True)
    um.touch(block, 0, block.bytes)
    [record.bytes >> 10 for record in um.records() if record.direction == "h2d"]  # 4, 60, 4, 60, 4, 124, ...
"""

import operator
import os
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex, get_args

import msgspec

from umadvise import _native
from umadvise._native.structures import read
from umadvise.devices.catalogue import load_device
from umadvise.devices.link import page_costs
from umadvise.errors import InvalidAdviceError, InvalidSizeError, StateError, UsageError
from umadvise.records.advice import parse_advice
from umadvise.records.counters import CAUSES, EVENT_KINDS, CauseWord, Count, Counters, EventWord
from umadvise.records.device import DeviceProfile, Direction
from umadvise.records.units import parse_bytes

__all__ = ["Block", "PageCounters", "PageRecord", "Processor", "TouchOrder", "UnifiedMemory"]

Processor = Literal["gpu", "cpu"]
TouchOrder = Literal["serial", "backward", "reverse", "random", "parallel"]

MOST_BYTES = 1 << 40
"""Most bytes of one allocation, and of device memory; csrc/um/pages.cpp refuses more."""

_SMALL_PAGE_BYTES = 4096
_ORDERS: dict[str, int] = {"serial": 0, "backward": 1, "reverse": 1, "random": 2, "parallel": 3}
_ADVICE = ("read_mostly", "preferred_location", "accessed_by")
_ADVICE_WORDS = (*_ADVICE, *(f"unset_{word}" for word in _ADVICE), "none", "prefetch")
_RECORD = ("start_ns", "end_ns", "address", "bytes", "faults", "kind", "cause")  # of um_pages_record
_DIRECTIONS: dict[EventWord, Direction] = {"transfer_h2d": "h2d", "transfer_d2h": "d2h"}
_MOST_COUNT = 2**32 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """An allocation of a `UnifiedMemory`.

    Attributes:
        id: number of the allocation, which is never used again.
        address: address of its first byte, a multiple of 2 MiB.
        bytes: size that was asked for; memory comes in whole pages.
    """

    id: int
    address: int
    bytes: int


class PageRecord(msgspec.Struct, frozen=True, gc=False):
    """A transfer, or a fault group: one service of one 2 MiB block of one fault batch.

    A transfer is a run of adjacent pages that move for the same cause, as CUPTI and nsys record it: the page that
    faulted and what the prefetcher brings along are two (uvm/uvm_va_block.c, block_copy_resident_pages_between).

    Attributes:
        kind: whether this is a transfer or a fault group.
        direction: direction of a transfer; None for a fault group.
        cause: cause of a transfer; None for a fault group.
        bytes: number of bytes that moved; 0 for a fault group, whose transfers have records of their own.
        address: first address of the transfer, or of the fault group's block.
        start_ns: beginning on the model's clock. Fault groups of one batch have the same times.
        end_ns: end on the model's clock.
        faults: number of pages of a fault group that faulted; 0 for a transfer.
    """

    kind: Literal["transfer", "fault_group"]
    direction: Direction | None
    cause: CauseWord | None
    bytes: int
    address: int
    start_ns: int
    end_ns: int
    faults: int


class PageCounters(Counters, frozen=True, kw_only=True):
    """Counters of the page-accurate model: those that every device has, and some that only it can tell.

    Attributes:
        host_fault_groups: number of the host's faults, one page each.
        faults: number of pages that the device faulted for.
        batches: number of fault batches of the device.
        thrashing_pages: number of times that a page was found to thrash.
        throttles: number of faults put off because their page thrashes.
        pinned_pages: number of times that a thrashing page was pinned to one place.
        remote_bytes: bytes accessed over the link, by either processor. `remote_accesses` are requests of 128 bytes.
        zeroed_bytes: bytes of device memory that were zeroed.
    """

    host_fault_groups: Count
    faults: Count
    batches: Count
    thrashing_pages: Count
    throttles: Count
    pinned_pages: Count
    remote_bytes: Count
    zeroed_bytes: Count


class UnifiedMemory:
    """One device, one host, and the driver between them.

    Calls take effect in order, each when the one before is done, on a clock of the model's own; kernels take no time
    but that of their faults and of accesses over the link.

    Attributes:
        device: the profile of the target.
        memory_bytes: device memory for managed pages.
    """

    def __init__(
        self, target: str | os.PathLike[str] | DeviceProfile, *, memory_bytes: SupportsIndex | str | None = None
    ) -> None:
        """Starts with empty memory.

        Args:
            target: a device of the catalogue by name ("v100-pcie-16gb"), a profile's file, or a profile.
            memory_bytes: device memory for managed pages, at least 2 MiB; what the target has where it is None.

        Raises:
            UsageError: no such device, with similar names in the message; or no name, file or profile.
            PolicyError: the device takes no page faults; the message says why.
            InvalidSizeError: `memory_bytes` is not such a size.
        """
        if not isinstance(target, str | os.PathLike | DeviceProfile):
            raise UsageError(f"{target!r} is no target: expected a device's name, its file or its profile")
        self.device = load_device(target)
        self.device.require_unified_memory()
        self.memory_bytes = self.device.usable_bytes if memory_bytes is None else parse_bytes(memory_bytes)
        if not 2 << 20 <= self.memory_bytes <= MOST_BYTES:
            raise InvalidSizeError(f"device memory of {self.memory_bytes} bytes: expected 2 MiB, one chunk, to 1 TiB")
        self._pages = _native.Pages(
            device_bytes=self.memory_bytes,
            page_bytes=self.device.system_page_bytes,
            coherent=self.device.coherent,
            costs=page_costs(self.device),
        )
        self._live: dict[int, Block] = {}
        self._records: list[PageRecord] = []

    # ---- memory ----------------------------------------------------------------------------------------------------

    def allocate(self, bytes: SupportsIndex | str) -> Block:  # noqa: A002  # the word of the trace, the records and the C ABI
        """New managed memory, resident nowhere, in an address range of its own that starts on 2 MiB.

        Args:
            bytes: its size; taken in whole pages of the host's.

        Raises:
            InvalidSizeError: not a size, 0, or more than 1 TiB.
        """
        size = parse_bytes(bytes)
        if not 0 < size <= MOST_BYTES:
            raise InvalidSizeError(f"cannot allocate {size} bytes: expected 1 byte to 1 TiB")
        number, address = self._pages.allocate(size)
        block = Block(number, address, size)
        self._live[number] = block
        return block

    def free(self, block: Block) -> None:
        """Ends an allocation: its memory is free on both sides, nothing is copied.

        Raises:
            StateError: it is freed already.
            UsageError: not a block of this model.
        """
        self._pages.free(self._number(block))
        del self._live[block.id]

    # ---- accesses --------------------------------------------------------------------------------------------------

    def touch(
        self,
        block: Block,
        offset: SupportsIndex | str,
        bytes: SupportsIndex | str,  # noqa: A002
        processor: Processor = "gpu",
        *,
        write: bool = False,
        order: TouchOrder = "serial",
        window_pages: SupportsIndex | None = None,
        stride: SupportsIndex | str | None = None,
        run_pages: SupportsIndex | None = None,
        faults_per_service: SupportsIndex | None = None,
    ) -> None:
        """Accesses every page of a range, as one kernel or one host thread does it.

        A window of pages is being accessed at once. Those among them that the processor may not access fault together,
        in batches of at most 256; when a batch is serviced, the window slides to the first page that is still missing.

        Args:
            block: allocation that the range lies in.
            offset: bytes from the block's start to the range's.
            bytes: size of the range.
            processor: processor that accesses it. The CPU's faults come one page at a time, whatever the window.
            write: whether the accesses are stores; else they are loads.
            order: "serial", by address; "backward" (or "reverse"); "random", one page after the other in a random
                order, where a window of 2 MiB and more slides by address and its faults arrive in a random order;
                "parallel", such a window of any width. Random is the same in every run.
            window_pages: pages of the window, by default 1; for "parallel" the device's default for ordinary kernels.
                A window narrower than a 2 MiB block stays inside it.
            stride: bytes from one access to the next; every byte where it is None.
            run_pages: "parallel" and wide "random": adjacent pages that arrive together; by default 1, or the device's.
            faults_per_service: most faults of one 2 MiB block in one batch; by default all, or the device's.

        Raises:
            InvalidSizeError: the range is not inside the block, or a size is none.
            UsageError: an unknown processor or order, a number below 1, or a block of another model.
            StateError: the block is freed.
        """
        number = self._number(block)
        start, size = parse_bytes(offset), parse_bytes(bytes)
        if start + size > block.bytes:
            raise InvalidSizeError(
                f"bytes {start} to {start + size} are not inside the block: expected a range within 0 to {block.bytes}"
            )
        if not isinstance(order, str) or order not in _ORDERS:
            raise UsageError(f"unknown order {order!r}: expected one of {', '.join(_ORDERS)}")
        step = 0 if stride is None else parse_bytes(stride)
        if stride is not None and step == 0:
            raise InvalidSizeError("a stride of 0 bytes never ends: expected at least 1")
        window = run = 1
        services, costs = 0, self.device.unified_memory.costs
        if order == "parallel":
            window, run = self._pages_of(costs.window_pages.value), self._pages_of(costs.run_pages.value)
            services = costs.faults_per_service.value
        self._pages.touch(
            allocation=number,
            offset_bytes=start,
            bytes=size,
            stride_bytes=step,
            host=_is_host(processor),
            write=bool(write),
            order=_ORDERS[order],
            window_pages=_at_least_one("window_pages", window_pages, window),
            run_pages=_at_least_one("run_pages", run_pages, run),
            faults_per_service=_at_least_one("faults_per_service", faults_per_service, services),
        )

    def _pages_of(self, small_pages: int) -> int:
        """Pages of the system: a device's numbers are of 4 KiB, whatever pages its host has."""
        return max(1, small_pages * _SMALL_PAGE_BYTES // self.device.system_page_bytes)

    # ---- hints -----------------------------------------------------------------------------------------------------

    def advise(self, block: Block, advice: str, processor: Processor = "gpu") -> None:
        """Gives the driver advice on a whole block (cudaMemAdvise).

        Args:
            block: allocation that the advice is for.
            advice: "read_mostly", "preferred_location" or "accessed_by", each with "unset_" before it to take it back;
                the paper's words ("readmostly", "preferredlocation", "accessby") mean the same, "none" (or
                "noadvise") takes back all three, and "prefetch" prefetches.
            processor: the preferred location, or who accesses; nothing for "read_mostly".

        Raises:
            InvalidAdviceError: an unknown word; the message lists what is known.
            UsageError: an unknown processor, or a block of another model.
            StateError: the block is freed.
        """
        number, host = self._number(block), _is_host(processor)
        unset, word = _parse_advice(advice)
        if word == "prefetch":
            self._pages.prefetch(number, host=host)
            return
        for index, known in enumerate(_ADVICE):
            if word in (known, "none"):
                self._pages.advise(number, 2 * index + (unset or word == "none"), host=host)

    def prefetch(self, block: Block, processor: Processor = "gpu") -> None:
        """Migrates a whole block (cudaMemPrefetchAsync). The copies go on behind the call; the next touch waits.

        Raises:
            UsageError: an unknown processor, or a block of another model.
            StateError: the block is freed.
        """
        self._pages.prefetch(self._number(block), host=_is_host(processor))

    def discard(self, block: Block) -> None:
        """Declares the contents of a whole block dead (cuMemDiscardBatchAsync): never copied, evicted first.

        Raises:
            UsageError: a block of another model.
            StateError: the block is freed.
        """
        self._pages.discard(self._number(block))

    # ---- what happened ---------------------------------------------------------------------------------------------

    def counters(self) -> PageCounters:
        """Totals since the start."""
        native = self._pages.counters()
        shared = read(Counters, native.shared)
        return read(PageCounters, native, **{name: getattr(shared, name) for name in Counters.__struct_fields__})

    def records(self) -> list[PageRecord]:
        """Every transfer and every fault group since the start, in order; a fault group comes before its transfers."""
        rows = self._pages.records(len(self._records))
        columns = [rows[name].tolist() for name in _RECORD]
        for start, end, address, bytes_, faults, kind, cause in zip(*columns, strict=True):
            direction = _DIRECTIONS.get(EVENT_KINDS[kind])
            self._records.append(
                PageRecord("transfer", direction, CAUSES[cause], bytes_, address, start, end, 0)
                if direction
                else PageRecord("fault_group", None, None, 0, address, start, end, faults)
            )
        return list(self._records)

    @property
    def time_ns(self) -> int:
        """The model's clock: nanoseconds since the start."""
        return self._pages.now_ns()

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _number(self, block: object) -> int:
        if not isinstance(block, Block):
            raise UsageError(f"{block!r} is no block: expected what allocate() returned")
        if self._live.get(block.id) is block:
            return block.id
        if block.id in self._live:
            raise UsageError(f"{block} belongs to another UnifiedMemory: expected a block of this one")
        raise StateError(f"{block} is freed: expected one of the {len(self._live)} blocks that live")


def _is_host(processor: object) -> bool:
    if not isinstance(processor, str) or processor not in get_args(Processor):
        raise UsageError(f"unknown processor {processor!r}: expected 'gpu' or 'cpu'")
    return processor == "cpu"


def _at_least_one(name: str, given: Any, otherwise: int) -> int:
    if given is None:
        return otherwise
    try:
        number = 0 if isinstance(given, bool) else operator.index(given)
    except TypeError:
        number = 0
    if not 1 <= number <= _MOST_COUNT:
        raise UsageError(f"{name} is {given!r}: expected a whole number from 1 to {_MOST_COUNT}")
    return number


def _parse_advice(advice: object) -> tuple[bool, str]:
    """Whether the advice is taken back, and which it is, in the driver's words."""
    if not isinstance(advice, str):
        raise InvalidAdviceError(advice, _ADVICE_WORDS)
    unset = advice.lower().startswith("unset_")
    try:
        word = parse_advice(advice.lower().removeprefix("unset_")).name.lower()
    except InvalidAdviceError:
        raise InvalidAdviceError(advice, _ADVICE_WORDS) from None
    if unset and word not in _ADVICE:
        raise InvalidAdviceError(advice, _ADVICE_WORDS)
    return unset, word
