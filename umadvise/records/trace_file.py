"""Trace files: gzip around one JSON document whose columns are base64 of little-endian numbers.

`zcat FILE` shows what a trace is of; its columns are for programs. Reading refuses a bad file whole: another schema,
cut short, packed to grow without end, or saying what no run could have done. No string of a trace is ever used as a
path, and none may hold a control character, because reports print them to terminals.
"""

import os
import zlib
from typing import Annotated, Any

import msgspec

from umadvise.errors import FormatError
from umadvise.records.columns import pack, unpack
from umadvise.records.counters import Record
from umadvise.records.files import (
    MOST_DOCUMENT_BYTES,
    MOST_FILE_BYTES,
    deflate,
    inflate,
    read_whole,
    require_schema,
    write_atomically,
)
from umadvise.records.names import Name
from umadvise.records.trace import MOST_ROWS, SCHEMA, TABLES, Source, Target, Trace
from umadvise.records.trace_check import check


class _TraceFile(Record, frozen=True, tag_field="schema", tag=SCHEMA):
    target: Target
    source: Source
    device: Name
    torch_version: Name
    workload: Name
    strings: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MOST_ROWS)]
    storages: dict[str, bytes]
    ops: dict[str, bytes]
    accesses: dict[str, bytes]
    events: dict[str, bytes]


_WORDS = tuple(name for name in _TraceFile.__struct_fields__ if name not in TABLES)
_decoder = msgspec.json.Decoder(_TraceFile)


def encode(trace: Trace) -> bytes:
    """The trace as the bytes of its file; equal traces give equal bytes."""
    fields: dict[str, Any] = {name: getattr(trace, name) for name in _WORDS}
    fields |= {name: pack(getattr(trace, name)) for name in TABLES}
    return deflate(msgspec.json.encode(_TraceFile(**fields)))


def decode(packed: bytes) -> Trace:
    """Reads a trace from the bytes of its file.

    Raises:
        FormatError: not such a file, of another version, or holding what no run produces.
    """
    try:
        document = inflate(packed, MOST_DOCUMENT_BYTES)
        require_schema(document, SCHEMA)
        file = _decoder.decode(document)
        tables: dict[str, Any] = {name: unpack(kind, name, getattr(file, name)) for name, kind in TABLES.items()}
        trace = Trace(**{name: getattr(file, name) for name in _WORDS}, **tables)
        check(trace)
    except (ValueError, zlib.error, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise FormatError(f"is no trace: {error}. Expected what `umadvise record` writes") from None
    return trace


def read(path: str | os.PathLike[str]) -> Trace:
    """Reads a trace.

    Raises:
        FormatError: truncated, of another schema version, gigantic, or contradicting itself.
        UmadviseError: there is no such file, or it cannot be read.
    """
    return read_whole(path, MOST_FILE_BYTES, "trace", decode)


def write(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Writes a trace atomically.

    Raises:
        UmadviseError: the place cannot be written, or holds something that is no regular file.
    """
    write_atomically(path, encode(trace))
