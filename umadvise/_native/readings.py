"""The native core's rows as this package's records: numbers of enums become words, empty names become None."""

from collections.abc import Callable, Iterator, Mapping
from ctypes import byref
from typing import Any

import numpy as np

from umadvise import _native
from umadvise._native.abi import UNKNOWN, Memory
from umadvise._native.library import core_library
from umadvise._native.structures import layout, read, structure
from umadvise.records.counters import (
    CAUSES,
    EVENT_KINDS,
    PHASES,
    RESIDENCY_SUBJECTS,
    ROLES,
    SWAP_CAUSES,
    SWAP_KINDS,
    Event,
    MemoryKind,
    Placed,
    ResidencyPeak,
    Swaps,
)
from umadvise.records.enums import Advice, Role

_NAMES = ("op", "module", "name", "birth_op", "birth_module")
_FLAGS = ("write", "unordered", "first_touch")
_UNKNOWN_BYTES = UNKNOWN % 2**64

_MEMORY_KINDS: dict[int, MemoryKind] = {
    Memory.MANAGED: "managed",
    Memory.DEVICE: "device",
    Memory.CHUNKED: "chunked",
}


def placed_from(bytes_: Mapping[tuple[Role, Memory, Advice], int]) -> tuple[Placed, ...]:
    """Bytes of tensors by role, kind of memory and advice; the most bytes of each role first."""
    rows = [
        Placed(role=ROLES[role], memory=_MEMORY_KINDS[memory], advice=advice.name.lower(), bytes=size)
        for (role, memory, advice), size in bytes_.items()
        if size > 0
    ]
    return tuple(sorted(rows, key=lambda row: (ROLES.index(row.role), -row.bytes, row.memory, row.advice)))


def swaps_of(device: _native.Device) -> Swaps:
    """The totals of a device's um_swap_counters alone, which are read at every edge of a step."""
    native = structure("um_swap_counters")()
    core_library().um_swap_read(device.handle, byref(native))
    return read(Swaps, native)


def _columns(packed: bytes, name: str, text: Callable[[int], str]) -> dict[str, list[Any]]:
    # 20,000 events a step are usual: by columns this takes a tenth of what it takes row by row through ctypes.
    rows = np.frombuffer(packed, layout(name))
    columns = {field: rows[field].tolist() for field in rows.dtype.names or ()}
    for field in _NAMES:
        columns[field] = [text(number) or None for number in columns[field]]
    columns["phase"] = [PHASES[number] for number in columns["phase"]]
    return columns


def events_from(packed: bytes, text: Callable[[int], str] = _native.string) -> Iterator[Event]:
    """Drained events. The role is that of the allocation: None where nothing lies at the address.

    Args:
        packed: um_event structures, one after the other.
        text: the text of an interned name, empty for 0.
    """
    columns = _columns(packed, "um_event", text)
    columns["role"] = [
        ROLES[role] if allocation else None
        for role, allocation in zip(columns["role"], columns["allocation"], strict=True)
    ]
    columns["kind"] = [EVENT_KINDS[number] for number in columns["kind"]]
    columns["cause"] = [
        SWAP_CAUSES[cause] if kind in SWAP_KINDS else CAUSES[cause]
        for kind, cause in zip(columns["kind"], columns["cause"], strict=True)
    ]
    for field in _FLAGS:
        columns[field] = list(map(bool, columns[field]))
    return map(Event, *(columns[field] for field in Event.__struct_fields__))


_LABEL = EVENT_KINDS.index("label")


def tells_more_than_labels(packed: bytes) -> bool:
    """Whether any of drained events is about more than what an allocation is called from then on."""
    return bool(packed) and bool((np.frombuffer(packed, layout("um_event"))["kind"] != _LABEL).any())


def residency_from(packed: bytes, text: Callable[[int], str] = _native.string) -> Iterator[ResidencyPeak]:
    """Peaks of a step; nothing where they are unknown.

    Args:
        packed: um_residency structures, one after the other.
        text: the text of an interned name, empty for 0.
    """
    columns = _columns(packed, "um_residency", text)
    columns["subject"] = [RESIDENCY_SUBJECTS[number] for number in columns["subject"]]
    columns["peak_bytes"] = [None if peak == _UNKNOWN_BYTES else peak for peak in columns["peak_bytes"]]
    columns["role"] = [
        ROLES[role] if subject != "op" else None
        for role, subject in zip(columns["role"], columns["subject"], strict=True)
    ]
    return map(ResidencyPeak, *(columns[field] for field in ResidencyPeak.__struct_fields__))
