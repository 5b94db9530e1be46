"""An open device of the core, and what it recorded."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from umadvise._native.abi import (
    Access,
    Allocation,
    Charged,
    ChunkOptions,
    Counters,
    DeviceInfo,
    DriverCosts,
    EmulatedOptions,
    Event,
    HostMapped,
    Link,
    Memory,
    MemoryHistory,
    MemoryStats,
    Placed,
    Placement,
    RecordedAccess,
    RecordedAllocation,
    RecordedEdge,
    RecordedEvent,
    RecordedOp,
    Residency,
    Sampling,
    Small,
    SwapCounters,
)
from umadvise._native.columns import plan_columns, trace_columns
from umadvise._native.library import core_library, intern
from umadvise._native.mirrors import filled, known, mirror, to_c
from umadvise._native.prototypes import POINTER, TEXT, U64
from umadvise.records.enums import Advice, Phase, Role

_EVENTS_AT_A_TIME = 4096


@dataclass(frozen=True, slots=True)
class Recording:
    """What a device recorded: structured arrays of um_recorded_op and its kin; names are interned numbers.

    Attributes:
        ops: in order of their beginnings.
        accesses: of all ops.
        outputs: serial numbers of the allocations that ops returned; 0 for foreign ones.
        allocations: all that there were.
        events: in order.
        edges: where steps began and ended, among the events.
        lost: rows that there was no room for.
    """

    ops: NDArray[Any]
    accesses: NDArray[Any]
    outputs: NDArray[Any]
    allocations: NDArray[Any]
    events: NDArray[Any]
    edges: NDArray[Any]
    lost: int


class Device:
    """An open device of the core.

    Attributes:
        handle: the um_device pointer, for `Route`.
        link_profile: `umadvise.records.device.DeviceProfile` whose link is charged; None where none is.
        host_mapped: whether chunks that are swapped out stay accessible.
        small: whether tensors of half a chunk and less can be swapped out too.
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.link_profile: Any = None
        self.host_mapped = HostMapped.NOT
        self.small = Small.STAY
        self._closed = False

    @classmethod
    def open_emulated(cls, options: EmulatedOptions) -> Self:
        """Opens an emulated device.

        Raises:
            NativeError: the options make no sense, or the memory is not there.
        """
        handle = POINTER()
        core_library().um_device_open_emulated(ctypes.byref(to_c(options)), ctypes.byref(handle))
        return cls(handle.value or 0)

    @classmethod
    def open_cuda(cls, ordinal: int) -> Self:
        """Opens a CUDA device by ordinal.

        Raises:
            NativeError: there is none; the message says why.
        """
        handle = POINTER()
        core_library().um_device_open_cuda(ordinal, ctypes.byref(handle))
        return cls(handle.value or 0)

    def close(self) -> None:
        """No new allocations; the device goes when its last allocation is freed. Closing again does nothing."""
        if not self._closed:
            core_library().um_device_close(self.handle)
        self._closed = True

    def info(self) -> DeviceInfo:
        """Name, provider, attributes and sizes, as the driver tells them now."""
        return filled(DeviceInfo, lambda out: core_library().um_device_query(self.handle, out))

    def driver_functions(self) -> dict[str, str | None]:
        """The driver table: each function's name, with the reason where it cannot be used."""
        return self._reasons(core_library().um_driver_function)

    def features(self) -> dict[str, str | None]:
        """What the device can do, by name, with the reason where it cannot: see um_device_feature."""
        return self._reasons(core_library().um_device_feature)

    def _reasons(self, tell: Callable[[int, int, Any], bytes | None]) -> dict[str, str | None]:
        reasons: dict[str, str | None] = {}
        reason = TEXT()
        while name := tell(self.handle, len(reasons), ctypes.byref(reason)):
            reasons[name.decode()] = reason.value.decode(errors="replace") if reason.value else None
        return reasons

    def driver_addresses(self) -> dict[str, int]:
        """Addresses of the driver table's usable functions, by name: see um_driver_address."""
        address = core_library().um_driver_address
        functions = enumerate(self.driver_functions().items())
        return {name: address(self.handle, index) for index, (name, reason) in functions if reason is None}

    def calls(self, function: str | None = None) -> int:
        """Calls made so far of one driver function, or of all. Emulated device only."""
        return int(core_library().um_emulated_calls(self.handle, function.encode() if function else None))

    def fail(self, function: str | None, nth: int) -> None:
        """Makes the nth call from now (1 = the next) of a driver function, or of any, fail once; 0 disarms."""
        core_library().um_emulated_fail(self.handle, function.encode() if function else None, nth)

    def set_link(self, link: Link, costs: DriverCosts) -> None:
        """From now on everything takes at least the time it would take there. Emulated device only."""
        core_library().um_emulated_set_link(self.handle, ctypes.byref(to_c(link)), ctypes.byref(to_c(costs)))

    def charged(self) -> Charged:
        """How long the charged link and its driver would have been busy; all zero without one."""
        return filled(Charged, lambda out: core_library().um_emulated_charged(self.handle, out))

    def measure_link(self, size_bytes: int, copies: int, *, h2d: bool, d2h: bool) -> tuple[int | None, int | None]:
        """Nanoseconds of one copy to the device and to the host, both at once where both are asked for."""
        times = (ctypes.c_int64 * 2)()
        core_library().um_link_measure(self.handle, size_bytes, copies, h2d, d2h, times)
        return known(times[0]), known(times[1])

    def allocate(self, size_bytes: int, placement: Placement, stream: int = 0) -> int:
        """Address of a new block; 0 for 0 bytes.

        Raises:
            NativeError: out of device or host memory, or the device is closed.
        """
        address = POINTER()
        core_library().um_allocate(
            self.handle, size_bytes, ctypes.byref(to_c(placement)), stream or None, ctypes.byref(address)
        )
        return address.value or 0

    def allocations(self) -> list[Allocation]:
        """Live allocations, in order of address."""
        count = int(core_library().um_allocations(self.handle, None, 0))
        allocation_mirror = mirror(Allocation)
        buffer = (allocation_mirror.structure * count)()
        found = int(core_library().um_allocations(self.handle, buffer, count))
        return [allocation_mirror.read(buffer[index]) for index in range(min(found, count))]

    def op_begin(
        self, op: str, phase: Phase, module: str, accesses: Sequence[Access], *, untouched: bool = False
    ) -> None:
        """Before an op, as the interposer does it: see um_op_begin."""
        buffer = (mirror(Access).structure * len(accesses))(*map(to_c, accesses))
        core_library().um_op_begin(self.handle, intern(op), phase, intern(module), untouched, buffer, len(accesses))

    def op_end(self, outputs: Sequence[int]) -> None:
        """After an op: the addresses of its outputs' storages."""
        core_library().um_op_end(self.handle, (POINTER * len(outputs))(*outputs), len(outputs))

    def set_budget(self, budget_bytes: int) -> None:
        """Budget for managed memory; 0 for none."""
        core_library().um_budget_set(self.handle, budget_bytes)

    def set_discards(self, on: bool) -> None:
        """Whether what is freed may be discarded, where the driver can: see `umadvise.devices.discard_proof`."""
        core_library().um_discard_set(self.handle, on)

    def set_chunks(self, options: ChunkOptions) -> None:
        """Gives the device memory for chunks; again: another budget of them.

        Raises:
            NativeError: the memory is not there, or the device has no such memory.
        """
        core_library().um_chunks_set(self.handle, ctypes.byref(to_c(options)))

    def set_program(
        self, trace: Any, actions: Any, op_names: NDArray[np.uint32], first_serials: NDArray[np.uint64]
    ) -> None:
        """The step that will come again, and what is to be done in it: see um_program_set.

        Args:
            trace: `umadvise.records.trace.Trace`.
            actions: `umadvise.records.plan.Actions`, or None.
            op_names: the interned name of each op.
            first_serials: for each storage the allocation that it is when the next step begins; 0 for none.

        Raises:
            NativeError: they contradict each other.
        """
        columns, plan = trace_columns(trace), plan_columns(actions)
        program = (POINTER * 4)(
            ctypes.addressof(columns),
            None if plan is None else ctypes.addressof(plan),
            op_names.ctypes.data,
            first_serials.ctypes.data,
        )
        core_library().um_program_set(self.handle, program)

    def clear_program(self) -> None:
        """No step is followed any more."""
        core_library().um_program_set(self.handle, None)

    def swap_counters(self) -> SwapCounters:
        """What explicit swapping did since the device was opened, and what it holds."""
        return filled(SwapCounters, lambda out: core_library().um_swap_read(self.handle, out))

    def set_step(self, step: int) -> None:
        """Index of the step that begins now (1, 2, ...), or 0 outside steps."""
        core_library().um_step_set(self.handle, step)

    def enable_events(self, on: bool) -> None:
        """Switches the recording of events."""
        core_library().um_events_enable(self.handle, on)

    def drain_events(self) -> bytes:
        """Takes all recorded events out, oldest first: um_event structures, one after the other."""
        structure = mirror(Event).structure
        buffer = (structure * _EVENTS_AT_A_TIME)()
        events = bytearray()
        while count := int(core_library().um_events_drain(self.handle, buffer, _EVENTS_AT_A_TIME)):
            events += memoryview(buffer).cast("B")[: count * ctypes.sizeof(structure)]
        return bytes(events)

    def dropped_events(self) -> int:
        """Events lost because nobody drained in time."""
        return int(core_library().um_events_dropped(self.handle))

    def counters(self) -> Counters:
        """Totals since the device was opened."""
        return filled(Counters, lambda out: core_library().um_counters_read(self.handle, out))

    def set_sampling(self, every: int) -> None:
        """Counters of a CUDA device come from every n-th step and the first three; 0: from none.

        Raises:
            NativeError: it is the emulated device, which counts every step.
        """
        core_library().um_sampling_set(self.handle, every)

    def sampling(self) -> Sampling:
        """Which steps the counters of a CUDA device cover, and why not others."""
        return filled(Sampling, lambda out: core_library().um_sampling_read(self.handle, out))

    def memory(self) -> MemoryStats:
        """What the heap and the device hold now, and the peaks."""
        return filled(MemoryStats, lambda out: core_library().um_memory_read(self.handle, out))

    def memory_history(self) -> MemoryHistory:
        """What came and went since the device was opened."""
        return filled(MemoryHistory, lambda out: core_library().um_memory_history_read(self.handle, out))

    def reset_memory_peaks(self) -> None:
        """Starts the peaks again from what is held now."""
        core_library().um_memory_reset_peaks(self.handle)

    def record(self, on: bool) -> None:
        """Starts a new recording of ops, allocations and copies, or stops it."""
        core_library().um_record(self.handle, on)

    def recorded(self) -> Recording:
        """What was recorded."""
        core = core_library()
        return Recording(
            ops=self._rows(core.um_recorded_ops, mirror(RecordedOp).structure),
            accesses=self._rows(core.um_recorded_accesses, mirror(RecordedAccess).structure),
            outputs=self._rows(core.um_recorded_outputs, U64),
            allocations=self._rows(core.um_recorded_allocations, mirror(RecordedAllocation).structure),
            events=self._rows(core.um_recorded_events, mirror(RecordedEvent).structure),
            edges=self._rows(core.um_recorded_edges, mirror(RecordedEdge).structure),
            lost=int(core.um_recorded_lost(self.handle)),
        )

    def _rows(self, read: Callable[[int, Any, int], int], structure: Any) -> NDArray[Any]:
        count = int(read(self.handle, None, 0))
        rows = np.empty(count, np.dtype(structure))
        found = int(read(self.handle, rows.ctypes.data, count))
        return rows[:found]

    def residency(self) -> bytes:
        """Who lay on the device, the most since the peaks were reset: um_residency structures; empty when unknown."""
        return self._rows(core_library().um_residency_read, mirror(Residency).structure).tobytes()

    def placed(self) -> dict[tuple[Role, Memory, Advice], int]:
        """Bytes that were placed since the device was opened, by role, kind of memory and advice."""
        rows = self._rows(core_library().um_placed_read, mirror(Placed).structure)
        return {(Role(row["role"]), Memory(row["memory"]), Advice(row["advice"])): int(row["bytes"]) for row in rows}
