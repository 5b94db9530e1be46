"""Tables as bytes, and gzip that refuses to unpack without end: what the files of traces and plans share."""

import gzip
import zlib
from typing import TypeVar

import numpy as np

from umadvise.records.trace import Table

Kind = TypeVar("Kind", bound=Table)
_GZIP = 16 + zlib.MAX_WBITS


def deflate(document: bytes) -> bytes:
    """gzip; equal documents give equal bytes."""
    return gzip.compress(document, compresslevel=6, mtime=0)


def inflate(packed: bytes, most_bytes: int) -> bytes:
    """What gzip packed.

    Raises:
        ValueError: it is more than `most_bytes`, cut short, or goes on after its end.
        zlib.error: it is damaged.
    """
    inflater = zlib.decompressobj(_GZIP)
    document = inflater.decompress(packed, most_bytes)
    if inflater.unconsumed_tail:
        raise ValueError(f"unpacks to more than {most_bytes} bytes")
    if not inflater.eof or inflater.unused_data:
        raise ValueError("is cut short, or goes on after its end")
    return document


def pack(table: Table) -> dict[str, bytes]:
    """A table's columns as little-endian numbers."""
    return {
        name: getattr(table, name).astype(np.dtype(dtype).newbyteorder("<")).tobytes()
        for name, dtype in table.DTYPES.items()
    }


def unpack(kind: type[Kind], name: str, columns: dict[str, bytes]) -> Kind:
    """The table of such columns.

    Args:
        kind: which table.
        name: what the messages call it.
        columns: as `pack` gives them.

    Raises:
        ValueError: a column is missing, unknown, or no whole number of numbers.
    """
    if set(columns) != set(kind.DTYPES):
        odd = ", ".join(sorted(set(columns) ^ set(kind.DTYPES)))
        raise ValueError(f"{name}: missing or unknown columns: {odd[:200]}")
    arrays = {}
    for column, dtype in kind.DTYPES.items():
        stored = np.dtype(dtype).newbyteorder("<")
        if len(columns[column]) % stored.itemsize:
            raise ValueError(f"{name}.{column}: {len(columns[column])} bytes are no whole number of {stored.name}")
        arrays[column] = np.frombuffer(columns[column], stored)
    return kind(**arrays)
