"""Trace files: gzip around one JSON document whose columns are base64 of little-endian numbers.

`zcat FILE` shows what a trace is of; its columns are for programs. Reading refuses a bad file whole: another schema,
cut short, packed to grow without end, or saying what no run could have done. No string of a trace is ever used as a
path, and none may hold a control character, because reports print them to terminals.
"""

import os
import zlib
from typing import Annotated

import msgspec

from umadvise.errors import FormatError
from umadvise.records.counters import Record
from umadvise.records.fault_profile import Name
from umadvise.records.files import read_bounded, write_atomically
from umadvise.records.packing import deflate, inflate, pack, unpack
from umadvise.records.trace import MOST_ROWS, SCHEMA, TABLES, Source, Target, Trace, check

MOST_FILE_BYTES = 256 << 20
MOST_DOCUMENT_BYTES = 1 << 30
"""Unpacked; a step of a million ops is a quarter of this."""


class _File(Record, frozen=True, tag_field="schema", tag=SCHEMA):
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


class _Header(msgspec.Struct):
    schema: str


_header_decoder = msgspec.json.Decoder(_Header)
_file_decoder = msgspec.json.Decoder(_File)


def encode(trace: Trace) -> bytes:
    """The trace as the bytes of its file; equal traces give equal bytes."""
    document = _File(
        target=trace.target,
        source=trace.source,
        device=trace.device,
        torch_version=trace.torch_version,
        workload=trace.workload,
        strings=trace.strings,
        **{name: pack(getattr(trace, name)) for name in TABLES},
    )
    return deflate(msgspec.json.encode(document))


def decode(packed: bytes) -> Trace:
    """Reads a trace from the bytes of its file.

    Raises:
        FormatError: not such a file, of another version, or holding what no run produces.
    """
    try:
        document = inflate(packed, MOST_DOCUMENT_BYTES)
        schema = _header_decoder.decode(document).schema
        if schema != SCHEMA:
            raise FormatError(
                f"has the schema {schema[:64]!r}: expected {SCHEMA!r}; "
                "use the version of umadvise that wrote it, or record again"
            )
        file = _file_decoder.decode(document)
        trace = Trace(
            target=file.target,
            source=file.source,
            device=file.device,
            torch_version=file.torch_version,
            workload=file.workload,
            strings=file.strings,
            **{name: unpack(kind, name, getattr(file, name)) for name, kind in TABLES.items()},  # type: ignore[arg-type]
        )
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
    try:
        return decode(read_bounded(path, MOST_FILE_BYTES, "trace"))
    except FormatError as error:
        raise FormatError(f"{os.fspath(path)!r} {error}") from None


def write(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Writes a trace atomically.

    Raises:
        UmadviseError: the place cannot be written, or holds something that is no regular file.
    """
    write_atomically(path, encode(trace))
