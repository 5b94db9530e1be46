"""Byte sizes and durations as people write and read them. Inside the project bytes and nanoseconds are integers."""

import operator
import re
from fractions import Fraction
from typing import SupportsIndex

from umadvise.errors import InvalidSizeError

_BINARY = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_DECIMAL = {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS = {"": 1, "B": 1, **_BINARY, **_DECIMAL}
_UNITS_FOLDED = {unit.lower(): factor for unit, factor in _UNITS.items()}
# The exponent has at most two digits, so that a hostile "1e999999999" costs nothing.
_SIZE = re.compile(r"(?P<number>\d{1,30}(?:\.\d{1,30})?(?:e\+?\d{1,2})?)\s*(?P<unit>[a-z]*)", re.ASCII | re.IGNORECASE)

BLOCK_BYTES = 2 << 20
"""What faults, evictions and prefetches move at a time (uvm/uvm_va_block_types.h)."""

PART_BYTES = 64 << 10
"""Size in bytes of the smallest part of a chunk that a storage takes; a smaller storage stays on the device.

The rule is the core's (`um_chunk_share`). It is written here again for recorders and planners, which do not load the
core; a test compares both.
"""

MAX_BYTES = 2**63 - 1
"""Largest size accepted: what a signed 64-bit file offset, and so any file or mapping, can hold."""

_DURATIONS = (("s", 10**9), ("ms", 10**6), ("us", 10**3))


def part_bytes(chunk_bytes: int) -> int:
    """Bytes of the units in which storages of half a chunk and less take parts of it."""
    return min(max(PART_BYTES, chunk_bytes // 64), chunk_bytes)


def taken_bytes(size_bytes: int, chunk_bytes: int) -> int:
    """Bytes of chunks that a storage takes: whole chunks, or parts of one where it is at most half a chunk.

    Args:
        size_bytes: size of the storage in bytes.
        chunk_bytes: size of a chunk in bytes.
    """
    unit_bytes = chunk_bytes if size_bytes * 2 > chunk_bytes else part_bytes(chunk_bytes)
    return -(-size_bytes // unit_bytes) * unit_bytes


def parse_bytes(size: SupportsIndex | str) -> int:
    """Reads a byte size.

    Args:
        size: bytes as an int or another integer, such as numpy's, or text: a number ("2e9", "1.5GiB", "512 MiB") with
            an optional unit. KiB, MiB, GiB and TiB are powers of 1024; kB, MB, GB and TB powers of 1000; no unit or B
            means bytes. Case does not matter. A fraction of a byte is dropped.

    Returns:
        Bytes.

    Raises:
        InvalidSizeError: not such a number, an unknown unit, negative, or more than MAX_BYTES.
    """
    try:
        bytes_ = _parse_text(size) if isinstance(size, bool | str) else operator.index(size)
    except TypeError:
        bytes_ = _parse_text(size)
    if not 0 <= bytes_ <= MAX_BYTES:
        raise InvalidSizeError(f"byte size {size!r} is out of range: expected 0 to {MAX_BYTES} bytes (8 EiB - 1)")
    return bytes_


def _parse_text(size: object) -> int:
    match = _SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    if match is None or match["unit"].lower() not in _UNITS_FOLDED:
        raise InvalidSizeError(
            f"cannot read {size!r} as a byte size: expected whole bytes or a number with one of "
            f'{", ".join((*_BINARY, "kB", "MB", "GB", "TB"))}, for example "8GiB", "512MiB" or 2000000000'
        )
    return int(Fraction(match["number"]) * _UNITS_FOLDED[match["unit"].lower()])


def format_bytes(bytes_: int | None) -> str:
    """Bytes for people, in powers of 1024: "1.50 GiB", "512 B"; "-" for None, which means unknown."""
    if bytes_ is None:
        return "-"
    for unit, factor in reversed(_BINARY.items()):
        if abs(bytes_) >= factor:
            return f"{bytes_ / factor:.2f} {unit}"
    return f"{bytes_} B"


def format_duration_ns(duration_ns: int | None) -> str:
    """Nanoseconds for people: "5.02 s", "12.40 ms", "730 ns"; "-" for None, which means unknown."""
    if duration_ns is None:
        return "-"
    for unit, factor in _DURATIONS:
        if abs(duration_ns) >= factor:
            return f"{duration_ns / factor:.2f} {unit}"
    return f"{duration_ns} ns"
