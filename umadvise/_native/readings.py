"""The native core's records as this package's: numbers of enums become words, empty names become None."""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args, get_type_hints

from umadvise import _native
from umadvise._native import abi as _abi
from umadvise.records.counters import (
    CAUSES,
    EVENT_KINDS,
    PHASES,
    RESIDENCY_SUBJECTS,
    ROLES,
    SWAP_CAUSES,
    SWAP_KINDS,
    BytesByCause,
    BytesByRole,
    Chunks,
    Counters,
    Event,
    MemoryKind,
    MemoryStats,
    Placed,
    RemoteMapsByCause,
    ResidencyPeak,
    Sampling,
    Swaps,
)
from umadvise.records.enums import Advice, Role

_CODES = {"int64_t": "q", "uint64_t": "Q", "uint32_t": "I", "uint16_t": "H", "uint8_t": "B"}


def _layout(record: type[Any]) -> struct.Struct:
    c_types = [get_args(hint)[1] for hint in get_type_hints(record, include_extras=True).values()]
    return struct.Struct("@" + "".join(_CODES[c_type] for c_type in c_types) + "0q")  # 0q: the structure's alignment


_EVENT = _layout(_abi.Event)
_RESIDENCY = _layout(_abi.Residency)

_BY_CAUSE = ("bytes_h2d", "bytes_d2h")
_BY_ROLE = ("requested_by_role", "requested_peak_by_role", "resident_by_role", "resident_peak_by_role")


def counters_from(native: _abi.Counters) -> Counters:
    """A reading of the device's counters."""
    by_cause: dict[str, Any] = {
        field: BytesByCause(**dict(zip(CAUSES, getattr(native, field), strict=True))) for field in _BY_CAUSE
    }
    plain = {field: getattr(native, field) for field in Counters.__struct_fields__ if field not in _BY_CAUSE}
    return Counters(**plain, **by_cause)


def swaps_from(native: _abi.SwapCounters) -> Swaps:
    """A reading of what explicit swapping did."""
    return Swaps(**{field: getattr(native, field) for field in Swaps.__struct_fields__})


def chunks_from(native: _abi.SwapCounters) -> Chunks | None:
    """A reading of the chunks; None where there are none."""
    if native.chunk_bytes == 0:
        return None
    return Chunks(**{field: getattr(native, field) for field in Chunks.__struct_fields__})


_MEMORY_KINDS: dict[int, MemoryKind] = {
    _abi.Memory.MANAGED: "managed",
    _abi.Memory.DEVICE: "device",
    _abi.Memory.CHUNKED: "chunked",
}


def placed_from(bytes_: Mapping[tuple[Role, _abi.Memory, Advice], int]) -> tuple[Placed, ...]:
    """Where tensors were placed, by role, the most bytes of each first."""
    rows = [
        Placed(role=ROLES[role], memory=_MEMORY_KINDS[memory], advice=advice.name.lower(), bytes=size)
        for (role, memory, advice), size in bytes_.items()
        if size > 0
    ]
    return tuple(sorted(rows, key=lambda row: (ROLES.index(row.role), -row.bytes, row.memory, row.advice)))


def sampling_from(native: _abi.Sampling, before: _abi.Sampling) -> Sampling:
    """What was sampled between two readings of a CUDA device."""
    fields: dict[str, Any] = {
        field: getattr(native, field) - getattr(before, field)
        for field in Sampling.__struct_fields__
        if field not in ("every", "reason", "remote_maps")
    }
    maps = [now - then for now, then in zip(native.remote_maps_by_cause, before.remote_maps_by_cause, strict=True)]
    return Sampling(
        **fields,
        every=native.every,
        reason=native.reason or None,
        remote_maps=RemoteMapsByCause(**dict(zip(RemoteMapsByCause.__struct_fields__, maps, strict=True))),
    )


def memory_from(native: _abi.MemoryStats) -> MemoryStats:
    """A reading of the device's memory."""
    by_role: dict[str, Any] = {
        field: BytesByRole(**dict(zip(ROLES, getattr(native, field), strict=True))) for field in _BY_ROLE
    }
    plain = {field: getattr(native, field) for field in MemoryStats.__struct_fields__ if field not in _BY_ROLE}
    return MemoryStats(**plain, **by_role)


def events_from(packed: bytes, text: Callable[[int], str] = _native.string) -> Iterator[Event]:
    """Drained events. The role is that of the allocation: None where nothing lies at the address.

    Args:
        packed: um_event structures, one after the other.
        text: the text of an interned name, empty for 0.
    """
    # 20,000 events a step are usual: by position this takes a tenth of what it takes field by field through ctypes.
    for start, duration, address, size, allocation, allocation_size, step, op_index, *rest in _EVENT.iter_unpack(
        packed
    ):
        op, module, phase, role, name, birth_op, birth_module, kind, cause, write, unordered, first_touch, others = rest
        event_kind = EVENT_KINDS[kind]
        yield Event(
            start,
            duration,
            address,
            size,
            allocation,
            allocation_size,
            step,
            op_index,
            text(op) or None,
            text(module) or None,
            PHASES[phase],
            ROLES[role] if allocation else None,
            text(name) or None,
            text(birth_op) or None,
            text(birth_module) or None,
            event_kind,
            SWAP_CAUSES[cause] if event_kind in SWAP_KINDS else CAUSES[cause],
            bool(write),
            bool(unordered),
            bool(first_touch),
            others,
        )


def residency_from(packed: bytes, text: Callable[[int], str] = _native.string) -> Iterator[ResidencyPeak]:
    """Peaks of a step; nothing where they are unknown.

    Args:
        packed: um_residency structures, one after the other.
        text: the text of an interned name, empty for 0.
    """
    for peak, size, subject, role, name, birth_op, birth_module, op, module, phase in _RESIDENCY.iter_unpack(packed):
        yield ResidencyPeak(
            peak,
            size,
            RESIDENCY_SUBJECTS[subject],
            ROLES[role] if subject != _abi.ResidencySubject.OP else None,
            text(name) or None,
            text(birth_op) or None,
            text(birth_module) or None,
            text(op) or None,
            text(module) or None,
            PHASES[phase],
        )
