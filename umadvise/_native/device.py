"""An open device of the core."""

import ctypes
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from umadvise._native.abi import (
    Allocation,
    ChunkOptions,
    Converted,
    DeviceInfo,
    EmulatedOptions,
    Memory,
    MemoryHistory,
    Owners,
    Placement,
    Small,
    TimeKind,
)
from umadvise._native.columns import plan_columns, trace_columns
from umadvise._native.library import core_library, intern
from umadvise._native.recording import Recording
from umadvise._native.structures import each, filled, known, layout, make, read, read_known, rows, structure, to_c
from umadvise.records.counters import Counters, MemoryStats, RemoteMapsByCause, Sampling, SpentTime, SwapCounters
from umadvise.records.enums import Advice, Phase, Role
from umadvise.records.sampled_step import SampledStep

_EVENTS_AT_A_TIME = 4096


class Device:
    """An open device of the core.

    Attributes:
        handle: the um_device pointer, for `Route`.
        link_profile: `umadvise.records.device.DeviceProfile` whose link is charged; None where none is.
        keeps_time: whether time is virtual: that of `link_profile`.
        small: whether tensors of less than 64 KiB can be swapped out too.
        peaks_began_within: says whether a script has started the peaks again since `reset_memory_peaks`.
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.link_profile: Any = None
        self.keeps_time = False
        self.small = Small.STAY
        self.peaks_began_within: Callable[[], bool] = lambda: False
        self._closed = False

    @classmethod
    def open_emulated(cls, options: EmulatedOptions) -> Self:
        """Opens an emulated device.

        Raises:
            NativeError: the options make no sense, or the memory is not there.
        """
        handle = ctypes.c_void_p()
        core_library().um_device_open_emulated(ctypes.byref(to_c(options)), ctypes.byref(handle))
        return cls(handle.value or 0)

    @classmethod
    def open_cuda(cls, ordinal: int) -> Self:
        """Opens a CUDA device by ordinal.

        Raises:
            NativeError: there is none; the message says why.
        """
        handle = ctypes.c_void_p()
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
        reason = ctypes.c_char_p()
        while name := tell(self.handle, len(reasons), ctypes.byref(reason)):
            reasons[name.decode()] = reason.value.decode(errors="replace") if reason.value else None
        return reasons

    def calls(self, function: str | None = None) -> int:
        """Calls made so far of one driver function, or of all. Emulated device only."""
        return int(core_library().um_emulated_calls(self.handle, function.encode() if function else None))

    def fail(self, function: str | None, nth: int) -> None:
        """Makes the nth call from now (1 = the next) of a driver function, or of any, fail once; 0 disarms."""
        core_library().um_emulated_fail(self.handle, function.encode() if function else None, nth)

    def set_link(self, link: ctypes.Structure, costs: ctypes.Structure) -> None:
        """Makes everything take at least the time that it would take over a link. Emulated device only.

        Args:
            link: the um_link structure: fixed time and bandwidth of copies in each direction.
            costs: the um_driver_costs structure: times of the driver's own work, in nanoseconds.
        """
        core_library().um_emulated_set_link(self.handle, ctypes.byref(link), ctypes.byref(costs))

    def now_ns(self) -> int:
        """What time it is on the device, in nanoseconds: that of a monotonic clock, unless time is virtual."""
        return int(core_library().um_now_ns(self.handle))

    def set_clock(self, link: ctypes.Structure, costs: ctypes.Structure) -> None:
        """Makes time virtual: copies take that of a link, ops what `op_took` says. Emulated device only.

        Args:
            link: the um_link structure: fixed time and bandwidth of copies in each direction.
            costs: the um_driver_costs structure: times of the driver's own work, in nanoseconds.

        Raises:
            NativeError: its streams run in real time already.
        """
        core_library().um_emulated_set_clock(self.handle, ctypes.byref(link), ctypes.byref(costs))

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
        address = ctypes.c_void_p()
        core_library().um_allocate(
            self.handle, size_bytes, ctypes.byref(to_c(placement)), stream or None, ctypes.byref(address)
        )
        return address.value or 0

    def allocations(self) -> list[Allocation]:
        """Live allocations, in order of address."""
        found = each("um_allocation", partial(core_library().um_allocations, self.handle))
        return [read(Allocation, native) for native in found]

    def op_begin(
        self, op: str, phase: Phase, module: str, accesses: Sequence[tuple[int, int, bool]], *, untouched: bool = False
    ) -> None:
        """Tells the guard that an op begins, as the interposer does: see um_op_begin.

        Args:
            op: name of the op.
            phase: part of the step.
            module: name of the module whose forward runs.
            accesses: address and bytes of each range, and whether it is written.
            untouched: whether the op only makes memory.
        """
        buffer = (structure("um_access") * len(accesses))()
        for each_range, (address, size_bytes, write) in zip(buffer, accesses, strict=True):
            each_range.address, each_range.bytes, each_range.write = address, size_bytes, write
        core_library().um_op_begin(self.handle, intern(op), phase, intern(module), untouched, buffer, len(accesses))

    def op_end(self, outputs: Sequence[int]) -> None:
        """Tells the guard that the op has ended: the addresses of its outputs' storages."""
        buffer = (structure("um_shown") * len(outputs))()
        for shown, address in zip(buffer, outputs, strict=True):
            shown.address = address
        core_library().um_op_end(self.handle, buffer, len(outputs))

    def set_budget(self, budget_bytes: int) -> None:
        """Sets the bytes that managed memory may keep on the device; 0 is no limit."""
        core_library().um_budget_set(self.handle, budget_bytes)

    def limit_plain(self, limit_bytes: int) -> None:
        """Sets the most bytes that plain memory may take of the device, its unused parts included; 0 is no limit."""
        core_library().um_plain_limit_set(self.handle, limit_bytes)

    def set_discards(self, on: bool) -> None:
        """Says whether freed memory may be discarded, where the driver can: see `umadvise.devices.discard_proof`."""
        core_library().um_discard_set(self.handle, on)

    def set_chunks(self, options: ChunkOptions) -> None:
        """Gives the device memory for chunks, or, called again, another budget for them.

        Raises:
            NativeError: the memory is not there, or the device has no such memory.
        """
        core_library().um_chunks_set(self.handle, ctypes.byref(to_c(options)))

    def remember_owners(self, which: Owners) -> None:
        """Switches whether the device remembers who owns memory that is not in chunks, so that it can be converted."""
        core_library().um_owners_remember(self.handle, which)

    def convert(self, memory: Memory, advice: Sequence[Advice], own: Sequence[Collection[Advice]]) -> Converted:
        """Moves live allocations into another kind of memory: see um_convert.

        Args:
            memory: kind of memory that they are to have.
            advice: advice that they get there, for parameters, inputs and intermediates.
            own: kinds of advice that no user has given, for each of these; memory with another one stays.

        Raises:
            NativeError: the driver fails.
        """
        own_advice = tuple(sum(1 << each for each in usual) for usual in own)
        conversion = make("um_conversion", memory=memory, advice=tuple(advice), own_advice=own_advice)
        return filled(Converted, lambda out: core_library().um_convert(self.handle, ctypes.byref(conversion), out))

    def add_program(
        self,
        trace: Any,
        actions: Any,
        op_names: NDArray[np.uint32],
        first_serials: NDArray[np.uint64],
        states: NDArray[np.uint8],
        *,
        h2d_bytes_per_s: int,
        is_last: bool,
        replaces: int = 0,
    ) -> int:
        """Has the device follow one more step and a plan for it; returns its number: see um_program_add.

        Args:
            trace: the step to follow, a `umadvise.records.trace.Trace`, as it was recorded from this device.
            actions: the plan's actions, a `umadvise.records.plan.Actions`; None follows the step without a plan.
            op_names: interned number of each op's name, one for each op of the trace.
            first_serials: serial number of the allocation that each storage of the trace is when the next step begins;
                0 for a storage that the step has still to make.
            states: 1 for each storage that is the same allocation in every step, else 0.
            h2d_bytes_per_s: speed of the link to the device in bytes a second.
            is_last: whether the step that ended last was this one.
            replaces: number of the program whose place and number it takes; 0: of none.

        Raises:
            NativeError: they contradict each other.
        """
        columns, plan = trace_columns(trace), plan_columns(actions)
        program = make(
            "um_program",
            trace=ctypes.addressof(columns),
            plan=0 if plan is None else ctypes.addressof(plan),
            op_name=op_names.ctypes.data,
            first_serials=first_serials.ctypes.data,
            state=states.ctypes.data,
            h2d_bytes_per_s=h2d_bytes_per_s,
            is_last=is_last,
            replaces=replaces,
        )
        number = ctypes.c_uint32()
        core_library().um_program_add(self.handle, ctypes.byref(program), ctypes.byref(number))
        return number.value

    def expect_program(self, number: int) -> None:
        """Has the next step begin with a program, unless it is known what comes after a step like the last one."""
        core_library().um_program_expect(self.handle, number)

    def drop_program(self, number: int) -> None:
        """Has the device follow a program no longer; 0: none of them."""
        core_library().um_program_drop(self.handle, number)

    def swap_counters(self) -> SwapCounters:
        """What explicit swapping did since the device was opened, and what it holds."""
        return filled(SwapCounters, lambda out: core_library().um_swap_read(self.handle, out))

    def set_step(self, step: int) -> None:
        """Says which step begins now (1, 2, ...), or 0 outside steps."""
        core_library().um_step_set(self.handle, step)

    def find_steps(self, on: bool) -> None:
        """Looks for steps that nobody marks, or no longer: see um_repetition_set."""
        core_library().um_repetition_set(self.handle, on)

    def step_begins(self, module: int, *, differentiated: bool) -> bool:
        """Whether a step that was found by its repetition begins with the call of a module.

        Args:
            module: number of the module, the same whenever it is called.
            differentiated: whether autograd takes note of what happens in it.
        """
        return bool(core_library().um_repetition_call(self.handle, module, differentiated))

    def enable_events(self, on: bool) -> None:
        """Switches the recording of events."""
        core_library().um_events_enable(self.handle, on)

    def drain_events(self) -> bytes:
        """Takes all recorded events out, oldest first: um_event structures, one after the other."""
        event, at_a_time, events = structure("um_event"), 4, bytearray()  # a place for many takes long to clear
        while True:
            buffer = (event * at_a_time)()
            count = int(core_library().um_events_drain(self.handle, buffer, at_a_time))
            events += memoryview(buffer).cast("B")[: count * ctypes.sizeof(event)]
            if count < at_a_time:
                return bytes(events)
            at_a_time = min(32 * at_a_time, _EVENTS_AT_A_TIME)

    def dropped_events(self) -> int:
        """Number of events that were lost because nobody took them out in time."""
        return int(core_library().um_events_dropped(self.handle))

    def counters(self) -> Counters:
        """Totals of faults, copies and evictions since the device was opened."""
        return filled(Counters, lambda out: core_library().um_counters_read(self.handle, out))

    def set_sampling(self, every: int) -> None:
        """Sets in which steps a CUDA device counts: every n-th and the first three; 0: none.

        Raises:
            NativeError: it is the emulated device, which counts every step.
        """
        core_library().um_sampling_set(self.handle, every)

    def sampling(self) -> Sampling:
        """Which steps the counters of a CUDA device cover, and why not others."""
        return read(
            Sampling,
            native := self._sampled(),
            reason=native.reason.decode(errors="replace") or None,
            remote_maps=read(RemoteMapsByCause, native.remote_maps_by_cause),
        )

    def last_sample(self) -> SampledStep:
        """The step that was sampled last."""
        native = self._sampled()
        times = read(SpentTime, native.last_times)
        return SampledStep(read(Counters, native.last), native.last_end_ns, None if times.compute_ns is None else times)

    def _sampled(self) -> ctypes.Structure:
        native = structure("um_sampling")()
        core_library().um_sampling_read(self.handle, ctypes.byref(native))
        return native

    def memory(self) -> MemoryStats:
        """What the heap and the device hold now, and the peaks."""
        return filled(MemoryStats, lambda out: core_library().um_memory_read(self.handle, out))

    def memory_history(self) -> MemoryHistory:
        """Totals of what was allocated and freed since the device was opened."""
        return filled(MemoryHistory, lambda out: core_library().um_memory_history_read(self.handle, out))

    def reset_memory_peaks(self) -> None:
        """Starts the peaks again from what is held now."""
        core_library().um_memory_reset_peaks(self.handle)

    def record(self, on: bool) -> None:
        """Starts a new recording of ops, allocations and copies, or stops it."""
        core_library().um_record(self.handle, on)

    def recorded(self) -> Recording:
        """Everything that was recorded since `record(True)`."""
        core = core_library()

        def recorded(table: str, row: str) -> NDArray[Any]:
            return rows(layout(row), partial(getattr(core, f"um_recorded_{table}"), self.handle))

        return Recording(
            ops=recorded("ops", "um_recorded_op"),
            accesses=recorded("accesses", "um_recorded_access"),
            outputs=rows(np.dtype(np.uint64), partial(core.um_recorded_outputs, self.handle)),
            allocations=recorded("allocations", "um_recorded_allocation"),
            events=recorded("events", "um_recorded_event"),
            edges=recorded("edges", "um_recorded_edge"),
            lost=int(core.um_recorded_lost(self.handle)),
        )

    def times(self) -> tuple[int, SpentTime | None]:
        """The time now, by `now_ns`, and what has gone into it since events were enabled; None: that is not known."""
        native, at_ns = structure("um_spent_time")(), ctypes.c_int64()
        core_library().um_times_read(self.handle, ctypes.byref(native), ctypes.byref(at_ns))
        return at_ns.value, read_known(SpentTime, native)

    def time_outside(self, kind: TimeKind) -> None:
        """Has time between ops count for a kind from now on."""
        core_library().um_times_outside(self.handle, kind)

    def residency(self) -> bytes:
        """Peaks of what lay on the device, since they were reset: um_residency structures; empty when unknown."""
        return rows(layout("um_residency"), partial(core_library().um_residency_read, self.handle), 64).tobytes()

    def placed(self) -> dict[tuple[Role, Memory, Advice], int]:
        """Bytes that were placed since the device was opened, by role, kind of memory and advice."""
        tell = partial(core_library().um_placed_read, self.handle)
        return {(Role(row.role), Memory(row.memory), Advice(row.advice)): row.bytes for row in each("um_placed", tell)}


def op_took(duration_ns: int) -> None:
    """Adds to the virtual time that the running op of this thread takes; nothing outside of ops."""
    core_library().um_op_took(duration_ns)
