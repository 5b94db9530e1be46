"""Reading and writing whole documents: a bad file is refused, and there is never half of one."""

import contextlib
import gzip
import os
import secrets
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from umadvise.errors import FormatError, UmadviseError

Whole = TypeVar("Whole")
_GZIP = 16 + zlib.MAX_WBITS
_GZIP_MAGIC = b"\x1f\x8b"
_OPEN_FILES = Path("/proc/self/fd")
MOST_FILE_BYTES, MOST_DOCUMENT_BYTES = 256 << 20, 1 << 30
"""Of the largest kind of file, a trace, packed and unpacked; a step of a million ops is a quarter of this."""
MOST_UNPACKING, FREE_BYTES = 64, 1 << 20
"""How many times its packed size a document may have, beyond `FREE_BYTES`: gzip alone would allow a thousand times, so
that a small file could take much memory and time. A step of ResNet-50 has 10 times."""
OR_RECORD_AGAIN = "use the version of umadvise that wrote it, or record again"


class _Header(msgspec.Struct):
    schema: str


_header_decoder = msgspec.json.Decoder(_Header)


def require_schema(document: bytes | dict[str, Any], schema: str, remedy: str = OR_RECORD_AGAIN) -> None:
    """Checks that a document is of the schema version that this code reads.

    Args:
        document: JSON, or the tables that were read of another format.
        schema: what its field `schema` has to say.
        remedy: what to do about another version.

    Raises:
        FormatError: it is of another version.
        msgspec.DecodeError: it has no such field, or is no JSON.
    """
    header = _header_decoder.decode(document) if isinstance(document, bytes) else msgspec.convert(document, _Header)
    if header.schema != schema:
        raise FormatError(f"has the schema {header.schema[:64]!r}: expected {schema!r}; {remedy}")


def schema_of(path: str | os.PathLike[str]) -> str:
    """What kind of document of umadvise a file holds: its field `schema`, such as "umadvise.plan/2".

    Raises:
        FormatError: it holds none, whether packed or not.
        UmadviseError: there is no such file, or it cannot be read.
    """
    document = read_bounded(path, MOST_FILE_BYTES, "file of umadvise")
    try:
        unpacked = inflate(document, MOST_DOCUMENT_BYTES) if document.startswith(_GZIP_MAGIC) else document
        return _header_decoder.decode(unpacked).schema
    except (ValueError, zlib.error, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise FormatError(
            f"{os.fspath(path)!r} is none of umadvise's files: {error}. Expected a trace, a plan or a fault profile"
        ) from None


def read_whole(path: str | os.PathLike[str], most_bytes: int, what: str, decode: Callable[[bytes], Whole]) -> Whole:
    """What a file holds.

    Args:
        path: a regular file.
        most_bytes: largest size of such a file; a larger one is refused unread.
        what: what it should be, for the messages ("fault profile").
        decode: reads its bytes, or raises FormatError.

    Raises:
        FormatError: larger, no regular file, or refused by `decode`; the message names the file.
        UmadviseError: there is no such file, or it cannot be read.
    """
    document = read_bounded(path, most_bytes, what)
    try:
        return decode(document)
    except FormatError as error:
        raise FormatError(f"{os.fspath(path)!r} {error}") from None


def read_bounded(path: str | os.PathLike[str], most_bytes: int, what: str) -> bytes:
    """The bytes of a file.

    Args:
        path: a regular file.
        most_bytes: a larger one is refused unread.
        what: what it should be, for the messages ("fault profile").

    Raises:
        FormatError: larger, or no regular file.
        UmadviseError: there is no such file, or it cannot be read.
    """
    shown = os.fspath(path)
    try:
        # O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise FormatError(f"{shown!r} is no regular file: expected a {what}")
            size_bytes = os.fstat(descriptor).st_size
            # One byte more than there should be: a file that grows meanwhile is being written, and is refused below.
            document = file.read(size_bytes + 1) if size_bytes <= most_bytes else b""
    except (OSError, ValueError) as error:
        raise UmadviseError(f"cannot read {shown!r}: {error}") from error
    if size_bytes > most_bytes:
        raise FormatError(f"{shown!r} is larger than any {what}: expected at most {most_bytes} bytes")
    if len(document) > size_bytes:
        raise FormatError(f"{shown!r} grew while it was read: expected a {what} that no process writes to. Try again")
    return document


def deflate(document: bytes) -> bytes:
    """gzip; equal documents give equal bytes.

    What would unpack to more than `inflate` takes is packed less densely: by Huffman's codes alone, of which no byte
    has less than one bit.
    """
    packed = gzip.compress(document, compresslevel=6, mtime=0)
    if len(document) <= _most_unpacked(packed):
        return packed
    packer = zlib.compressobj(wbits=_GZIP, strategy=zlib.Z_HUFFMAN_ONLY)
    return packer.compress(document) + packer.flush()


def _most_unpacked(packed: bytes) -> int:
    return FREE_BYTES + MOST_UNPACKING * len(packed)


def inflate(packed: bytes, most_bytes: int) -> bytes:
    """What gzip packed.

    Raises:
        ValueError: it is more than `most_bytes` or than `MOST_UNPACKING` times its packed size, cut short, or goes on
            after its end.
        zlib.error: it is damaged.
    """
    inflater = zlib.decompressobj(_GZIP)
    most_bytes = min(most_bytes, _most_unpacked(packed))
    document = inflater.decompress(packed, most_bytes)
    if inflater.unconsumed_tail:
        raise ValueError(f"unpacks to more than {most_bytes} bytes, the most for {len(packed)} packed ones")
    if not inflater.eof or inflater.unused_data:
        raise ValueError("is cut short, or goes on after its end")
    return document


def write_atomically(path: str | os.PathLike[str], document: bytes) -> None:
    """Writes a file atomically: a reader sees the old one or the new one, also after a crash.

    Raises:
        UmadviseError: the place cannot be written, or holds something that is no regular file.
    """
    try:
        target = Path(path).resolve()  # a symbolic link stays one: its target is replaced
        if target.exists() and not target.is_file():
            raise UmadviseError(f"cannot write {os.fspath(path)!r}: expected a place for a regular file")
        temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}")
        try:
            _write_durably(temporary, document)
            temporary.replace(target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
        _sync_directory(target.parent)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links that point at each other
        raise UmadviseError(f"cannot write {os.fspath(path)!r}: {error}") from error


def _write_durably(path: Path, document: bytes) -> None:
    """Writes a new file, which has no name before it is whole, where the file system can: a kill leaves none behind."""
    # 0o666 is cut by the user's umask, as for any file they make.
    try:
        if not _OPEN_FILES.is_dir():
            raise FileNotFoundError(_OPEN_FILES)  # /proc is not mounted: a file without a name could get none
        descriptor, named = os.open(path.parent, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o666), False
    except OSError:
        descriptor, named = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), True
    with os.fdopen(descriptor, "wb") as file:
        file.write(document)
        file.flush()
        os.fsync(descriptor)
        if not named:
            # With a descriptor Python calls linkat, which alone follows.
            os.link(_OPEN_FILES / str(descriptor), path, src_dir_fd=descriptor, follow_symlinks=True)


def _sync_directory(path: Path) -> None:
    # Without this the rename may not survive a power cut, although the new file's bytes would.
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
