"""Peaks of memory over several readings of one device."""

from typing import Any

import msgspec

from umadvise.records.counters import ROLES, BytesByRole, MemoryStats

_PEAKS = tuple(field for field in MemoryStats.__struct_fields__ if "_peak_" in field)


def later(before: MemoryStats, after: MemoryStats) -> MemoryStats:
    """The later reading with the higher peaks of both."""
    peaks: dict[str, Any] = {}
    for field in _PEAKS:
        old, new = getattr(before, field), getattr(after, field)
        if old is None or new is None or old == new:
            continue
        if isinstance(new, BytesByRole):
            peaks[field] = BytesByRole(**{role: max(getattr(old, role), getattr(new, role)) for role in ROLES})
        else:
            peaks[field] = max(old, new)
    return msgspec.structs.replace(after, **peaks) if peaks else after
