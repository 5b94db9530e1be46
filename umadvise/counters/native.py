"""The native core's records as this package's: numbers of enums become words, empty names become None."""

from collections.abc import Iterable, Iterator
from typing import Any

from umadvise import _abi
from umadvise.counters.records import (
    CAUSES,
    EVENT_KINDS,
    PHASES,
    ROLES,
    BytesByCause,
    BytesByRole,
    Counters,
    Event,
    MemoryStats,
)

_BY_CAUSE = ("bytes_h2d", "bytes_d2h")
_BY_ROLE = ("requested_by_role", "requested_peak_by_role", "resident_by_role")


def counters_from(native: _abi.Counters) -> Counters:
    """A reading of the device's counters."""
    by_cause: dict[str, Any] = {
        field: BytesByCause(**dict(zip(CAUSES, getattr(native, field), strict=True))) for field in _BY_CAUSE
    }
    plain = {field: getattr(native, field) for field in Counters.__struct_fields__ if field not in _BY_CAUSE}
    return Counters(**plain, **by_cause)


def memory_from(native: _abi.MemoryStats) -> MemoryStats:
    """A reading of the device's memory."""
    by_role: dict[str, Any] = {
        field: BytesByRole(**dict(zip(ROLES, getattr(native, field), strict=True))) for field in _BY_ROLE
    }
    plain = {field: getattr(native, field) for field in MemoryStats.__struct_fields__ if field not in _BY_ROLE}
    return MemoryStats(**plain, **by_role)


def events_from(native: Iterable[_abi.Event]) -> Iterator[Event]:
    """Drained events. The role is that of the allocation: None where nothing lies at the address."""
    for event in native:
        yield Event(
            kind=EVENT_KINDS[event.kind],
            start_ns=event.start_ns,
            step=event.step,
            duration_ns=event.duration_ns,
            cause=CAUSES[event.cause],
            bytes=event.bytes,
            address=event.address,
            allocation=event.allocation,
            allocation_bytes=event.allocation_bytes,
            role=ROLES[event.role] if event.allocation else None,
            name=event.name or None,
            birth_op=event.birth_op or None,
            birth_module=event.birth_module or None,
            op_index=event.op_index,
            op=event.op or None,
            module=event.module or None,
            phase=PHASES[event.phase],
            write=event.write,
            unordered=event.unordered,
            first_touch=event.first_touch,
        )
