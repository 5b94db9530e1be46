"""The only ctypes file: libumadvise (csrc/include/umadvise.h) and the hooks library (umadvise/_hooks/hooks.h), typed.

Nothing is loaded before the first call. A failed call raises NativeError with the core's message of this thread.
"""

import ctypes
import functools
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from umadvise._abi import (
    ABI_VERSION,
    HOOKS_ABI_VERSION,
    UNKNOWN,
    Access,
    Allocation,
    Charged,
    ChunkOptions,
    Counters,
    CudaDevice,
    CuptiLibrary,
    DeviceInfo,
    DriverCosts,
    EmulatedOptions,
    Event,
    HostMapped,
    Link,
    MemoryHistory,
    MemoryStats,
    PagesCounters,
    PagesOptions,
    PagesRecord,
    PagesTouch,
    Phase,
    Placement,
    RecordedAccess,
    RecordedAllocation,
    RecordedEdge,
    RecordedEvent,
    RecordedOp,
    Residency,
    Role,
    Route,
    Sampling,
    SimulatedStep,
    Status,
    SwapCounters,
    SwapOptions,
    SwapResult,
    UnifiedOptions,
)
from umadvise.errors import HooksUnavailableError, NativeError, UmadviseError

_EVENTS_AT_A_TIME = 4096
SPAN_BYTES = 40
"""Size of um_span."""

# ---- records to structures and back --------------------------------------------------------------------------------

_C_TYPES: dict[str, Any] = {
    "char": ctypes.c_char,
    "uint8_t": ctypes.c_uint8,
    "uint16_t": ctypes.c_uint16,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "double": ctypes.c_double,
    "void*": ctypes.c_void_p,
}

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class _Mirror:
    structure: type[ctypes.Structure]
    read: Callable[[Any], Any]


_mirrors: dict[type[Any], _Mirror] = {}


def _mirror(record: type[Any]) -> _Mirror:
    """The ctypes structure of a record of `_abi`, and the function that reads one out of the other."""
    if record not in _mirrors:
        _mirrors[record] = _derive_mirror(record)
    return _mirrors[record]


def _derive_mirror(record: type[Any]) -> _Mirror:
    fields: list[tuple[str, Any]] = []
    readers: list[tuple[str, Callable[[Any], Any]]] = []
    for name, hint in get_type_hints(record, include_extras=True).items():
        if get_origin(hint) is Annotated:
            python_type, c_type, *length = get_args(hint)
            fields.append((name, _C_TYPES[c_type] * length[0] if length else _C_TYPES[c_type]))
            readers.append((name, _reader(python_type, is_array=bool(length))))
        else:  # a record inside a record
            fields.append((name, _mirror(hint).structure))
            readers.append((name, _mirror(hint).read))
    structure = type(record.__name__, (ctypes.Structure,), {"_fields_": fields})
    return _Mirror(structure, lambda value: record(*[read(getattr(value, name)) for name, read in readers]))


def _reader(python_type: Any, *, is_array: bool) -> Callable[[Any], Any]:
    if python_type is str:
        return (lambda value: value.decode(errors="replace")) if is_array else string
    if is_array:
        known = python_type in (tuple[int, ...], tuple[float, ...])
        return tuple if known else lambda values: tuple(map(_known, values))
    if python_type is bool:
        return bool
    if python_type == int | None:
        return _known
    return lambda value: value or 0  # ctypes reads a null pointer as None


def _known(value: int) -> int | None:
    return None if value == UNKNOWN else value


def _to_c(record: Any) -> ctypes.Structure:
    mirror = _mirror(type(record))
    values = [getattr(record, name) for name in record.__dataclass_fields__]
    return mirror.structure(*[_to_c(value) if hasattr(value, "__dataclass_fields__") else value for value in values])


# ---- the library ---------------------------------------------------------------------------------------------------

_POINTER = ctypes.c_void_p
_TEXT = ctypes.c_char_p
_U32, _U64, _I32 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32

# name: (result, arguments). A result of None marks `void`, Status a call that is checked.
_CORE: dict[str, tuple[Any, list[Any]]] = {
    "um_abi_version": (_U32, []),
    "um_last_error": (_TEXT, []),
    "um_intern": (_U32, [_TEXT]),
    "um_string": (_TEXT, [_U32]),
    "um_device_open_emulated": (Status, [_POINTER, _POINTER]),
    "um_device_open_cuda": (Status, [_I32, _POINTER]),
    "um_device_close": (Status, [_POINTER]),
    "um_cuda_unavailable_reason": (_TEXT, []),
    "um_cuda_describe": (Status, [_I32, _POINTER]),
    "um_cupti_describe": (Status, [_POINTER]),
    "um_cuda_attribute": (Status, [_I32, _U32, _POINTER]),
    "um_device_query": (Status, [_POINTER, _POINTER]),
    "um_emulated_claim_signals": (None, []),
    "um_device_feature": (_TEXT, [_POINTER, _U32, _POINTER]),
    "um_driver_function": (_TEXT, [_POINTER, _U32, _POINTER]),
    "um_driver_address": (_POINTER, [_POINTER, _U32]),
    "um_emulated_calls": (_U64, [_POINTER, _TEXT]),
    "um_emulated_fail": (Status, [_POINTER, _TEXT, _U64]),
    "um_emulated_set_link": (Status, [_POINTER, _POINTER, _POINTER]),
    "um_emulated_charged": (Status, [_POINTER, _POINTER]),
    "um_link_measure": (Status, [_POINTER, _U64, _U32, _I32, _I32, _POINTER]),
    "um_allocate": (Status, [_POINTER, _U64, _POINTER, _POINTER, _POINTER]),
    "um_free": (_I32, [_POINTER]),
    "um_owns": (_I32, [_POINTER]),
    "um_route_set_thread": (None, [_POINTER]),
    "um_route_get_thread": (None, [_POINTER]),
    "um_route_set_process": (None, [_POINTER]),
    "um_route_get_process": (None, [_POINTER]),
    "um_route_device": (_POINTER, []),
    "um_allocate_routed": (Status, [_U64, _POINTER, _POINTER]),
    "um_allocation_at": (Status, [_POINTER, _POINTER]),
    "um_allocation_label": (Status, [_POINTER, _U32, _U32]),
    "um_allocations": (_U64, [_POINTER, _POINTER, _U64]),
    "um_copy_from_host": (Status, [_POINTER, _POINTER, _U64]),
    "um_copy_to_host": (Status, [_POINTER, _POINTER, _U64]),
    "um_prefetch": (Status, [_POINTER, _U64, _I32, _POINTER]),
    "um_stream_wait": (Status, [_POINTER, _POINTER, _POINTER]),
    "um_stream_uses": (Status, [_POINTER, _POINTER]),
    "um_memory_trim": (Status, [_POINTER]),
    "um_export": (Status, [_POINTER]),
    "um_export_release": (Status, [_POINTER]),
    "um_op_begin": (Status, [_POINTER, _U32, _U32, _U32, _U32, _POINTER, _U32]),
    "um_op_end": (None, [_POINTER, _POINTER, _U32]),
    "um_op_stream_set": (None, [_POINTER]),
    "um_budget_set": (Status, [_POINTER, _U64]),
    "um_step_set": (Status, [_POINTER, _U32]),
    "um_events_drain": (_U64, [_POINTER, _POINTER, _U64]),
    "um_events_dropped": (_U64, [_POINTER]),
    "um_events_enable": (None, [_POINTER, _I32]),
    "um_counters_read": (Status, [_POINTER, _POINTER]),
    "um_sampling_set": (Status, [_POINTER, _U32]),
    "um_sampling_read": (Status, [_POINTER, _POINTER]),
    "um_memory_read": (Status, [_POINTER, _POINTER]),
    "um_memory_history_read": (Status, [_POINTER, _POINTER]),
    "um_memory_reset_peaks": (None, [_POINTER]),
    "um_residency_read": (_U64, [_POINTER, _POINTER, _U64]),
    "um_record": (Status, [_POINTER, _I32]),
    "um_recorded_ops": (_U64, [_POINTER, _POINTER, _U64]),
    "um_recorded_accesses": (_U64, [_POINTER, _POINTER, _U64]),
    "um_recorded_outputs": (_U64, [_POINTER, _POINTER, _U64]),
    "um_recorded_allocations": (_U64, [_POINTER, _POINTER, _U64]),
    "um_recorded_events": (_U64, [_POINTER, _POINTER, _U64]),
    "um_recorded_edges": (_U64, [_POINTER, _POINTER, _U64]),
    "um_recorded_lost": (_U64, [_POINTER]),
    "um_pages_create": (Status, [_POINTER, _POINTER]),
    "um_pages_destroy": (None, [_POINTER]),
    "um_pages_allocate": (Status, [_POINTER, _U64, _POINTER, _POINTER]),
    "um_pages_free": (Status, [_POINTER, _U64]),
    "um_pages_accesses": (Status, [_POINTER, _POINTER]),
    "um_pages_advise": (Status, [_POINTER, _U64, _U32, _I32]),
    "um_pages_prefetch": (Status, [_POINTER, _U64, _I32]),
    "um_pages_discard": (Status, [_POINTER, _U64]),
    "um_pages_counters_read": (Status, [_POINTER, _POINTER]),
    "um_pages_now_ns": (ctypes.c_int64, [_POINTER]),
    "um_pages_records": (_U64, [_POINTER, _U64, _POINTER, _U64]),
    "um_chunks_set": (Status, [_POINTER, _POINTER]),
    "um_program_set": (Status, [_POINTER, _POINTER]),
    "um_swap_read": (Status, [_POINTER, _POINTER]),
    "um_simulate_unified": (Status, [_POINTER, _POINTER, _POINTER, _POINTER]),
    "um_simulate_swap": (Status, [_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER]),
    "um_simulation_steps": (_U64, [_POINTER, _POINTER, _U64]),
    "um_simulation_spans": (_U64, [_POINTER, _POINTER, _U64]),
    "um_simulation_addresses": (_U64, [_POINTER, _POINTER, _U64]),
    "um_simulation_destroy": (None, [_POINTER]),
}
_HOOKS: dict[str, tuple[Any, list[Any]]] = {
    "um_hooks_abi_version": (_U32, []),
    "um_hooks_last_error": (_TEXT, []),
    "um_hooks_allocator_install": (Status, []),
    "um_hooks_cuda_serve": (Status, [_I32]),
    "um_hooks_cuda_try_allocate": (Status, [_U64, _I32, _POINTER, _POINTER]),
    "um_hooks_cuda_free": (None, [_POINTER, _U64, _I32, _POINTER]),
    "um_hooks_cuda_record_stream": (None, [_POINTER, _POINTER]),
    "um_hooks_cuda_reset": (None, []),
    "um_hooks_cuda_plain_device": (_POINTER, [_I32]),
    "um_hooks_storage_adopt": (Status, [_POINTER, _POINTER, _POINTER]),
    "um_hooks_storage_give_back": (Status, [_POINTER]),
    "um_hooks_interpose": (Status, [_POINTER]),
    "um_hooks_split_set": (Status, [_U64, _U64]),
    "um_hooks_phase_set": (None, [_U32]),
    "um_hooks_module_set": (_U32, [_U32]),
}


def _bind(library: ctypes.CDLL, prototypes: dict[str, tuple[Any, list[Any]]], last_error: str) -> None:
    def check(status: int, _function: Any, _arguments: Any) -> None:
        if status != Status.OK:
            raise NativeError(status, getattr(library, last_error)().decode(errors="replace"))

    for name, (result, arguments) in prototypes.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = ctypes.c_int32 if result is Status else result
        if result is Status:
            function.errcheck = check


def library_path() -> Path:
    """Where libumadvise lies: $UMADVISE_LIBRARY, else `lib/` of the package (an editable install has two halves).

    Raises:
        UmadviseError: it lies nowhere.
    """
    import umadvise

    override = os.environ.get("UMADVISE_LIBRARY")
    candidates = [Path(override)] if override else [Path(root, "lib", "libumadvise.so") for root in umadvise.__path__]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    places = ", ".join(map(str, candidates))
    raise UmadviseError(
        f"the native core is missing: expected {places}. Reinstall umadvise (in a checkout: pip install -e .), "
        "or point UMADVISE_LIBRARY at a built libumadvise.so"
    )


@functools.cache
def _core() -> ctypes.CDLL:
    """The loaded core. Global, because the hooks library resolves its um_* symbols from it."""
    path = library_path()
    try:
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        _bind(library, _CORE, "um_last_error")
    except (OSError, AttributeError) as error:
        raise UmadviseError(f"the native core {path} cannot be loaded: {error}. Reinstall umadvise") from error
    if (found := library.um_abi_version()) != ABI_VERSION:
        raise UmadviseError(
            f"the native core {path} speaks ABI version {found}, expected {ABI_VERSION}. Reinstall umadvise"
        )
    return library


@functools.cache
def _hooks() -> ctypes.CDLL:
    """The loaded hooks library, compiled first where the cache has none for this torch.

    Raises:
        HooksUnavailableError: there is no torch or no working compiler, or the library does not load.
    """
    from umadvise._hooks import loader

    _core()
    path = loader.compiled_library()
    try:
        library = ctypes.CDLL(str(path))
        _bind(library, _HOOKS, "um_hooks_last_error")
    except (OSError, AttributeError) as error:
        raise HooksUnavailableError(
            f"the compiled torch extension {path} cannot be loaded: {error}. Delete that file to have it compiled again"
        ) from error
    if (found := library.um_hooks_abi_version()) != HOOKS_ABI_VERSION:
        raise HooksUnavailableError(
            f"the compiled torch extension {path} speaks ABI version {found}, expected {HOOKS_ABI_VERSION}. "
            "Delete that file to have it compiled again"
        )
    return library


# ---- names ---------------------------------------------------------------------------------------------------------


@functools.cache
def intern(text: str) -> int:
    """The 32-bit id of a name; 0 for the empty one."""
    return int(_core().um_intern(text.encode())) if text else 0


@functools.cache
def string(name: int) -> str:
    """The text of an interned name; empty for 0."""
    return str(_core().um_string(name).decode(errors="replace"))


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


# ---- devices -------------------------------------------------------------------------------------------------------


class Device:
    """An open device of the core.

    Attributes:
        handle: the um_device pointer, for `Route`.
        link_profile: `umadvise.device_profile.DeviceProfile` whose link is charged; None where none is.
        host_mapped: whether chunks that are swapped out stay accessible.
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.link_profile: Any = None
        self.host_mapped = HostMapped.NOT
        self._closed = False

    @classmethod
    def open_emulated(cls, options: EmulatedOptions) -> Self:
        """Opens an emulated device.

        Raises:
            NativeError: the options make no sense, or the memory is not there.
        """
        handle = _POINTER()
        _core().um_device_open_emulated(ctypes.byref(_to_c(options)), ctypes.byref(handle))
        return cls(handle.value or 0)

    @classmethod
    def open_cuda(cls, ordinal: int) -> Self:
        """Opens a CUDA device by ordinal.

        Raises:
            NativeError: there is none; the message says why.
        """
        handle = _POINTER()
        _core().um_device_open_cuda(ordinal, ctypes.byref(handle))
        return cls(handle.value or 0)

    def close(self) -> None:
        """No new allocations; the device goes when its last allocation is freed. Closing again does nothing."""
        if not self._closed:
            _core().um_device_close(self.handle)
        self._closed = True

    def info(self) -> DeviceInfo:
        """Name, provider, attributes and sizes, as the driver tells them now."""
        return _filled(DeviceInfo, lambda out: _core().um_device_query(self.handle, out))

    def driver_functions(self) -> dict[str, str | None]:
        """The driver table: each function's name, with the reason where it cannot be used."""
        return self._reasons(_core().um_driver_function)

    def features(self) -> dict[str, str | None]:
        """What the device can do, by name, with the reason where it cannot: see um_device_feature."""
        return self._reasons(_core().um_device_feature)

    def _reasons(self, tell: Callable[[int, int, Any], bytes | None]) -> dict[str, str | None]:
        reasons: dict[str, str | None] = {}
        reason = _TEXT()
        while name := tell(self.handle, len(reasons), ctypes.byref(reason)):
            reasons[name.decode()] = reason.value.decode(errors="replace") if reason.value else None
        return reasons

    def driver_addresses(self) -> dict[str, int]:
        """Addresses of the driver table's usable functions, by name: see um_driver_address."""
        address = _core().um_driver_address
        functions = enumerate(self.driver_functions().items())
        return {name: address(self.handle, index) for index, (name, reason) in functions if reason is None}

    def calls(self, function: str | None = None) -> int:
        """Calls made so far of one driver function, or of all. Emulated device only."""
        return int(_core().um_emulated_calls(self.handle, function.encode() if function else None))

    def fail(self, function: str | None, nth: int) -> None:
        """Makes the nth call from now (1 = the next) of a driver function, or of any, fail once; 0 disarms."""
        _core().um_emulated_fail(self.handle, function.encode() if function else None, nth)

    def set_link(self, link: Link, costs: DriverCosts) -> None:
        """From now on everything takes at least the time it would take there. Emulated device only."""
        _core().um_emulated_set_link(self.handle, ctypes.byref(_to_c(link)), ctypes.byref(_to_c(costs)))

    def charged(self) -> Charged:
        """How long the charged link and its driver would have been busy; all zero without one."""
        return _filled(Charged, lambda out: _core().um_emulated_charged(self.handle, out))

    def measure_link(self, size_bytes: int, copies: int, *, h2d: bool, d2h: bool) -> tuple[int | None, int | None]:
        """Nanoseconds of one copy to the device and to the host, both at once where both are asked for."""
        times = (ctypes.c_int64 * 2)()
        _core().um_link_measure(self.handle, size_bytes, copies, h2d, d2h, times)
        return _known(times[0]), _known(times[1])

    def allocate(self, size_bytes: int, placement: Placement, stream: int = 0) -> int:
        """Address of a new block; 0 for 0 bytes.

        Raises:
            NativeError: out of device or host memory, or the device is closed.
        """
        address = _POINTER()
        _core().um_allocate(
            self.handle, size_bytes, ctypes.byref(_to_c(placement)), stream or None, ctypes.byref(address)
        )
        return address.value or 0

    def allocations(self) -> list[Allocation]:
        """Live allocations, in order of address."""
        count = int(_core().um_allocations(self.handle, None, 0))
        mirror = _mirror(Allocation)
        buffer = (mirror.structure * count)()
        found = int(_core().um_allocations(self.handle, buffer, count))
        return [mirror.read(buffer[index]) for index in range(min(found, count))]

    def op_begin(
        self, op: str, phase: Phase, module: str, accesses: Sequence[Access], *, untouched: bool = False
    ) -> None:
        """Before an op, as the interposer does it: see um_op_begin."""
        buffer = (_mirror(Access).structure * len(accesses))(*map(_to_c, accesses))
        _core().um_op_begin(self.handle, intern(op), phase, intern(module), untouched, buffer, len(accesses))

    def op_end(self, outputs: Sequence[int]) -> None:
        """After an op: the addresses of its outputs' storages."""
        _core().um_op_end(self.handle, (_POINTER * len(outputs))(*outputs), len(outputs))

    def set_budget(self, budget_bytes: int) -> None:
        """Budget for managed memory; 0 for none."""
        _core().um_budget_set(self.handle, budget_bytes)

    def set_chunks(self, options: ChunkOptions) -> None:
        """Gives the device memory for chunks; again: another budget of them.

        Raises:
            NativeError: the memory is not there, or the device has no such memory.
        """
        _core().um_chunks_set(self.handle, ctypes.byref(_to_c(options)))

    def set_program(
        self, trace: Any, actions: Any, op_names: NDArray[np.uint32], first_serials: NDArray[np.uint64]
    ) -> None:
        """The step that will come again, and what is to be done in it: see um_program_set.

        Args:
            trace: `umadvise.trace.schema.Trace`.
            actions: `umadvise.planners.plan.Actions`, or None.
            op_names: the interned name of each op.
            first_serials: for each storage the allocation that it is when the next step begins; 0 for none.

        Raises:
            NativeError: they contradict each other.
        """
        columns = _columns([(getattr(trace, table), names) for table, names in _TRACE_COLUMNS.items()])
        plan = None if actions is None else _columns([(actions, _PLAN_COLUMNS)])
        program = (_POINTER * 4)(
            ctypes.addressof(columns),
            None if plan is None else ctypes.addressof(plan),
            op_names.ctypes.data,
            first_serials.ctypes.data,
        )
        _core().um_program_set(self.handle, program)

    def clear_program(self) -> None:
        """No step is followed any more."""
        _core().um_program_set(self.handle, None)

    def swap_counters(self) -> SwapCounters:
        """What explicit swapping did since the device was opened, and what it holds."""
        return _filled(SwapCounters, lambda out: _core().um_swap_read(self.handle, out))

    def set_step(self, step: int) -> None:
        """Index of the step that begins now (1, 2, ...), or 0 outside steps."""
        _core().um_step_set(self.handle, step)

    def enable_events(self, on: bool) -> None:
        """Switches the recording of events."""
        _core().um_events_enable(self.handle, on)

    def drain_events(self) -> bytes:
        """Takes all recorded events out, oldest first: um_event structures, one after the other."""
        structure = _mirror(Event).structure
        buffer = (structure * _EVENTS_AT_A_TIME)()
        events = bytearray()
        while count := int(_core().um_events_drain(self.handle, buffer, _EVENTS_AT_A_TIME)):
            events += memoryview(buffer).cast("B")[: count * ctypes.sizeof(structure)]
        return bytes(events)

    def dropped_events(self) -> int:
        """Events lost because nobody drained in time."""
        return int(_core().um_events_dropped(self.handle))

    def counters(self) -> Counters:
        """Totals since the device was opened."""
        return _filled(Counters, lambda out: _core().um_counters_read(self.handle, out))

    def set_sampling(self, every: int) -> None:
        """Counters of a CUDA device come from every n-th step and the first three; 0: from none.

        Raises:
            NativeError: it is the emulated device, which counts every step.
        """
        _core().um_sampling_set(self.handle, every)

    def sampling(self) -> Sampling:
        """Which steps the counters of a CUDA device cover, and why not others."""
        return _filled(Sampling, lambda out: _core().um_sampling_read(self.handle, out))

    def memory(self) -> MemoryStats:
        """What the heap and the device hold now, and the peaks."""
        return _filled(MemoryStats, lambda out: _core().um_memory_read(self.handle, out))

    def memory_history(self) -> MemoryHistory:
        """What came and went since the device was opened."""
        return _filled(MemoryHistory, lambda out: _core().um_memory_history_read(self.handle, out))

    def reset_memory_peaks(self) -> None:
        """Starts the peaks again from what is held now."""
        _core().um_memory_reset_peaks(self.handle)

    def record(self, on: bool) -> None:
        """Starts a new recording of ops, allocations and copies, or stops it."""
        _core().um_record(self.handle, on)

    def recorded(self) -> Recording:
        """What was recorded."""
        core = _core()
        return Recording(
            ops=self._rows(core.um_recorded_ops, _mirror(RecordedOp).structure),
            accesses=self._rows(core.um_recorded_accesses, _mirror(RecordedAccess).structure),
            outputs=self._rows(core.um_recorded_outputs, _U64),
            allocations=self._rows(core.um_recorded_allocations, _mirror(RecordedAllocation).structure),
            events=self._rows(core.um_recorded_events, _mirror(RecordedEvent).structure),
            edges=self._rows(core.um_recorded_edges, _mirror(RecordedEdge).structure),
            lost=int(core.um_recorded_lost(self.handle)),
        )

    def _rows(self, read: Callable[[int, Any, int], int], structure: Any) -> NDArray[Any]:
        count = int(read(self.handle, None, 0))
        rows = np.empty(count, np.dtype(structure))
        found = int(read(self.handle, rows.ctypes.data, count))
        return rows[:found]

    def residency(self) -> bytes:
        """Who lay on the device, the most since the peaks were reset: um_residency structures; empty when unknown."""
        return self._rows(_core().um_residency_read, _mirror(Residency).structure).tobytes()


def _filled(record: type[Record], fill: Callable[[Any], Any]) -> Record:
    mirror = _mirror(record)
    structure = mirror.structure()
    fill(ctypes.byref(structure))
    result: Record = mirror.read(structure)
    return result


def cuda_unavailable_reason() -> str | None:
    """None when libcuda is usable here, else the reason it is not."""
    reason = _core().um_cuda_unavailable_reason()
    return reason.decode(errors="replace") if reason else None


def cuda_device(ordinal: int) -> CudaDevice:
    """What the driver says of a device, without a context on it.

    Raises:
        NativeError: the driver is not usable, or has no such device.
    """
    return _filled(CudaDevice, lambda out: _core().um_cuda_describe(ordinal, out))


def cuda_attribute(ordinal: int, attribute: int) -> int | None:
    """Value of a CUdevice_attribute of a device; None for one that the driver does not know.

    Raises:
        NativeError: the driver is not usable, or has no such device.
    """
    value = _I32()
    _core().um_cuda_attribute(ordinal, attribute, ctypes.byref(value))
    return _known(value.value)


def cupti_library() -> CuptiLibrary:
    """The libcupti that counters of a CUDA device come from.

    Raises:
        NativeError: there is none, or it is too old; the message says what to do.
    """
    return _filled(CuptiLibrary, _core().um_cupti_describe)


def claim_signals() -> None:
    """Puts the emulated device's SIGSEGV handler back on top of one that was installed later."""
    _core().um_emulated_claim_signals()


# ---- memory --------------------------------------------------------------------------------------------------------


def free(address: int) -> bool:
    """Frees an allocation of ours; False when the address is foreign."""
    return bool(_core().um_free(address))


def owns(address: int) -> bool:
    """Whether the address lies in the range of one of our devices."""
    return bool(_core().um_owns(address))


def set_thread_route(route: Route) -> None:
    """Where this thread's torch allocations go."""
    _core().um_route_set_thread(ctypes.byref(_to_c(route)))


def thread_route() -> Route:
    """This thread's own route."""
    return _filled(Route, _core().um_route_get_thread)


def set_process_route(route: Route) -> None:
    """Where the torch allocations of threads without a route of their own go."""
    _core().um_route_set_process(ctypes.byref(_to_c(route)))


def process_route() -> Route:
    """The process's route."""
    return _filled(Route, _core().um_route_get_process)


def routed_device() -> int:
    """Handle of the device that this thread allocates from now, 0 when routing is off."""
    return _core().um_route_device() or 0


def allocation_at(address: int) -> Allocation | None:
    """The allocation that contains the address, None when there is none."""
    try:
        return _filled(Allocation, lambda out: _core().um_allocation_at(address, out))
    except NativeError as error:
        if error.code == Status.INVALID_ARGUMENT:
            return None
        raise


def label(address: int, role: Role, name: str = "") -> None:
    """Sets the finer role and, when not empty, the name of the allocation at the address."""
    _core().um_allocation_label(address, role, intern(name))


def copy_from_host(device_address: int, host_address: int, size_bytes: int) -> None:
    """Copies into an allocation of ours, synchronously, in any state of residency."""
    _core().um_copy_from_host(device_address, host_address, size_bytes)


def copy_to_host(host_address: int, device_address: int, size_bytes: int) -> None:
    """Copies out of an allocation of ours, synchronously, in any state of residency."""
    _core().um_copy_to_host(host_address, device_address, size_bytes)


def prefetch(address: int, size_bytes: int, *, to_host: bool = False, stream: int = 0) -> None:
    """Migrates a range to the device or to the host."""
    _core().um_prefetch(address, size_bytes, to_host, stream or None)


def export(address: int) -> None:
    """Makes the whole allocation at the address resident, writable and pinned. On CUDA chunked memory alone."""
    _core().um_export(address)


def release_export(address: int) -> None:
    """Undoes one `export`."""
    _core().um_export_release(address)


# ---- hooks: what needs torch's C++ ---------------------------------------------------------------------------------
# Every function here raises HooksUnavailableError where the extension cannot be compiled or loaded.


def install_allocator() -> None:
    """Installs the routing CPU allocator in torch, once and for the life of the process."""
    _hooks().um_hooks_allocator_install()


def hooks_path() -> Path:
    """The compiled extension's file, for torch, which takes functions out of it by name."""
    from umadvise._hooks import loader

    return loader.compiled_library()


def hooks_function(name: str) -> int:
    """Address of one of the extension's functions, for torch, which calls it itself."""
    return ctypes.cast(getattr(_hooks(), name), ctypes.c_void_p).value or 0


def serve_cuda(ordinal: int | None) -> None:
    """Says for which CUDA device the routes are meant from now on: see um_hooks_cuda_serve."""
    _hooks().um_hooks_cuda_serve(-1 if ordinal is None else ordinal)


def plain_cuda_device(ordinal: int) -> Device | None:
    """The device that torch's plain memory on a CUDA device comes from; None as long as it asked for none."""
    handle = _hooks().um_hooks_cuda_plain_device(ordinal)
    return Device(handle) if handle else None


def adopt_storage(storage: int, device: Device, placement: Placement) -> None:
    """Moves a live torch storage's bytes into our memory; every tensor on it follows.

    Args:
        storage: `torch.UntypedStorage._cdata`.
        device: where the bytes go.
        placement: with which kind of memory, role and advice.

    Raises:
        NativeError: it does not fit, or the storage is no CPU storage with bytes of its own.
    """
    _hooks().um_hooks_storage_adopt(storage, device.handle, ctypes.byref(_to_c(placement)))


def give_back_storage(storage: int) -> None:
    """Moves a storage's bytes out of our memory into an ordinary CPU allocation; nothing for foreign storages."""
    _hooks().um_hooks_storage_give_back(storage)


def interpose(device: Device | None) -> None:
    """Lets this thread's ops go through the interposer for a device; None ends it for this thread."""
    _hooks().um_hooks_interpose(device.handle if device else None)


def set_split(limit_bytes: int | None, unit_bytes: int = 1) -> None:
    """Ops on lists that go by element run from now on as several, each within a limit: see um_hooks_split_set.

    Args:
        limit_bytes: of the storages that one op may need; None ends it.
        unit_bytes: in which storages above half of it count; smaller ones count nothing.

    Raises:
        NativeError: a unit of 0 bytes.
    """
    _hooks().um_hooks_split_set(limit_bytes or 0, unit_bytes)


def set_phase(phase: Phase) -> None:
    """What this thread's ops outside backward nodes belong to from now on."""
    _hooks().um_hooks_phase_set(phase)


def set_module(module: str) -> str:
    """The module whose forward runs in this thread from now on; returns the previous one."""
    return string(int(_hooks().um_hooks_module_set(intern(module))))


# ---- the page-accurate model ---------------------------------------------------------------------------------------


class Pages:
    """A model of unified memory page by page (csrc/um/pages.h). Every call but `close` raises NativeError."""

    def __init__(self, options: PagesOptions) -> None:
        handle = _POINTER()
        _core().um_pages_create(ctypes.byref(_to_c(options)), ctypes.byref(handle))
        self._handle = handle.value
        self.close = weakref.finalize(self, _core().um_pages_destroy, handle.value)

    def allocate(self, size_bytes: int) -> tuple[int, int]:
        """Number and address of a new allocation."""
        allocation, address = _U64(), _U64()
        _core().um_pages_allocate(self._handle, size_bytes, ctypes.byref(allocation), ctypes.byref(address))
        return allocation.value, address.value

    def free(self, allocation: int) -> None:
        """Forgets an allocation."""
        _core().um_pages_free(self._handle, allocation)

    def touch(self, touch: PagesTouch) -> None:
        """Accesses of a kernel or of a host thread."""
        _core().um_pages_accesses(self._handle, ctypes.byref(_to_c(touch)))

    def advise(self, allocation: int, advice: int, *, host: bool) -> None:
        """One of the driver's six calls, numbered as um_driver_advice."""
        _core().um_pages_advise(self._handle, allocation, advice, host)

    def prefetch(self, allocation: int, *, host: bool) -> None:
        """A migration that the user asks for."""
        _core().um_pages_prefetch(self._handle, allocation, host)

    def discard(self, allocation: int) -> None:
        """The contents are no longer needed."""
        _core().um_pages_discard(self._handle, allocation)

    def counters(self) -> PagesCounters:
        """Totals since the model was made."""
        return _filled(PagesCounters, lambda out: _core().um_pages_counters_read(self._handle, out))

    def now_ns(self) -> int:
        """The model's clock."""
        return int(_core().um_pages_now_ns(self._handle))

    def records(self, first: int) -> bytes:
        """The records from the `first` on: um_pages_record structures, one after the other."""
        structure = _mirror(PagesRecord).structure
        count = int(_core().um_pages_records(self._handle, 0, None, 0)) - first
        buffer = (structure * count)()
        _core().um_pages_records(self._handle, first, buffer, count)
        return bytes(buffer)


# ---- simulation ----------------------------------------------------------------------------------------------------

_TRACE_COLUMNS = {
    "storages": ("bytes", "role", "successor"),
    "ops": (
        "phase",
        "step",
        "duration_ns",
        "creates",
        "host_touch",
        "window_pages",
        "run_pages",
        "faults_per_service",
    ),
    "accesses": ("op", "storage", "offset_bytes", "bytes", "flags"),
    "events": ("kind", "op", "inside", "storage", "offset_bytes", "bytes"),
}
_PLAN_COLUMNS = ("kind", "after", "op", "storage", "offset_bytes", "bytes", "argument")


def _columns(tables: Sequence[tuple[Any, Sequence[str]]]) -> ctypes.Array[ctypes.c_uint64]:
    """um_trace or um_plan: the tables' lengths, then the addresses of their columns, which must outlive the call."""
    addresses = [getattr(table, name).ctypes.data for table, names in tables for name in names]
    lengths = [len(table) for table, _ in tables]
    return (_U64 * (len(lengths) + len(addresses)))(*lengths, *addresses)


class Simulation:
    """What a simulation gave (um_simulation), read out of the core."""

    def __init__(self, handle: int) -> None:
        """Reads and destroys it."""
        core, mirror = _core(), _mirror(SimulatedStep)
        try:
            count = int(core.um_simulation_steps(handle, None, 0))
            steps = (mirror.structure * count)()
            core.um_simulation_steps(handle, steps, count)
            self.steps: list[SimulatedStep] = [mirror.read(step) for step in steps]
            spans = int(core.um_simulation_spans(handle, None, 0))
            self.spans = bytearray(spans * SPAN_BYTES)
            core.um_simulation_spans(handle, (ctypes.c_char * len(self.spans)).from_buffer(self.spans), spans)
            storages = int(core.um_simulation_addresses(handle, None, 0))
            self.addresses = bytearray(8 * storages)
            core.um_simulation_addresses(handle, (_U64 * storages).from_buffer(self.addresses), storages)
        finally:
            core.um_simulation_destroy(handle)


def simulate_unified(trace: Any, actions: Any, options: UnifiedOptions) -> Simulation:
    """Runs a trace under unified memory: see um_simulate_unified.

    Args:
        trace: `umadvise.trace.schema.Trace`.
        actions: `umadvise.planners.plan.Actions`, or None.
        options: everything else.

    Raises:
        NativeError: trace, plan or options contradict themselves, or memory is out; the message says where.
    """
    columns = _columns([(getattr(trace, table), names) for table, names in _TRACE_COLUMNS.items()])
    plan = None if actions is None else ctypes.byref(_columns([(actions, _PLAN_COLUMNS)]))
    handle = _POINTER()
    _core().um_simulate_unified(ctypes.byref(columns), plan, ctypes.byref(_to_c(options)), ctypes.byref(handle))
    return Simulation(handle.value or 0)


def simulate_swap(
    trace: Any, actions: Any, link: Link, options: SwapOptions
) -> tuple[SwapResult, Simulation | NativeError]:
    """Executes a trace with explicit swaps: see um_simulate_swap.

    Args:
        trace: `umadvise.trace.schema.Trace`.
        actions: `umadvise.planners.plan.Actions`, or None.
        link: to the host.
        options: everything else.

    Returns:
        The result, and the simulation; where something found no room, its error instead.

    Raises:
        NativeError: trace, plan, link or options contradict themselves.
    """
    columns = _columns([(getattr(trace, table), names) for table, names in _TRACE_COLUMNS.items()])
    plan = None if actions is None else ctypes.byref(_columns([(actions, _PLAN_COLUMNS)]))
    mirror, handle = _mirror(SwapResult), _POINTER()
    result = mirror.structure()
    arguments = [ctypes.byref(columns), plan, ctypes.byref(_to_c(link)), ctypes.byref(_to_c(options))]
    try:
        _core().um_simulate_swap(*arguments, ctypes.byref(result), ctypes.byref(handle))
    except NativeError as error:
        if error.code != Status.OUT_OF_DEVICE_MEMORY:
            raise
        return mirror.read(result), error
    return mirror.read(result), Simulation(handle.value or 0)
