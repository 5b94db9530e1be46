"""The device catalogue: finding and reading the files that describe devices.

One TOML file a device in `profiles/devices`; what all devices, or all with the same link, have in common stands once,
in `profiles/devices/shared/defaults.toml`, and a device's file overrides it. Every number is a table
`{ value = 900e9, source = "...", uncertain = true }`; one without a value is unknown, and its source says why. A file
is read whole or refused whole.
"""

import difflib
import functools
import os
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from umadvise.errors import FormatError, UsageError
from umadvise.records.counters import Record
from umadvise.records.device import SCHEMA, DeviceProfile
from umadvise.records.files import read_bounded, read_whole, require_schema

DEFAULTS_SCHEMA = "umadvise.device-defaults/1"
MOST_FILE_BYTES = 64 << 10
MOST_LINE_CHARACTERS = 2000
"""A file of the catalogue has a tenth of both. Long keys and deep nesting cost the parser their square."""


class _Defaults(Record, frozen=True, tag_field="schema", tag=DEFAULTS_SCHEMA):
    device: dict[str, Any]
    links: dict[str, dict[str, Any]]


def directory() -> Path:
    """The folder of the catalogue: in the package, or beside it in a checkout."""
    import umadvise

    places = [Path(root, "profiles", "devices") for root in umadvise.__path__]
    places.append(Path(__file__).parents[2] / "profiles" / "devices")
    return next((place for place in places if place.is_dir()), places[0])


def device_names() -> tuple[str, ...]:
    """Names of the devices in the catalogue, in alphabetical order."""
    return tuple(sorted(path.stem for path in directory().glob("*.toml")))


def load_device(name: str | os.PathLike[str] | DeviceProfile) -> DeviceProfile:
    """Reads a device: of the catalogue by name or alias, or from a file of one's own.

    Args:
        name: such as "v100-16gb"; what ends in ".toml" or has a "/" is a path; a profile is taken as it is.

    Raises:
        UsageError: no such device; the message names similar ones.
        FormatError: the file is damaged, of another version, or holds something impossible.
        UmadviseError: there is no such file, or it cannot be read.
    """
    if isinstance(name, DeviceProfile):
        return name
    word = os.fspath(name)
    if not isinstance(name, str) or word.endswith(".toml") or "/" in word:
        return read(word)
    if word in device_names():
        return _from_catalogue(word)
    aliases = _aliases()
    if word in aliases:
        return _from_catalogue(aliases[word])
    known = [*device_names(), *aliases]
    close = [each for each in known if word in each] if len(word) > 1 else []
    close += [each for each in difflib.get_close_matches(word.lower(), known, n=4, cutoff=0.5) if each not in close]
    hint = f"did you mean {', '.join(close[:4])}?" if close else f"expected one of {', '.join(device_names())}."
    raise UsageError(
        f"no device {word[:100]!r} in the catalogue: {hint} `umadvise devices` lists all; "
        "a path to a .toml file works too"
    )


def read(path: str | os.PathLike[str]) -> DeviceProfile:
    """Reads a device's file.

    Raises:
        FormatError: truncated, of another schema version, larger than MOST_FILE_BYTES, or holding impossible values.
        UmadviseError: there is no such file, or it cannot be read.
    """
    return read_whole(path, MOST_FILE_BYTES, "device file", decode)


def decode(document: bytes) -> DeviceProfile:
    """Reads a device from the bytes of its file.

    Raises:
        FormatError: not such a document, of another version, or holding a value that no device has.
    """
    tables = _parse(document)
    try:
        require_schema(tables, SCHEMA, "use the version that wrote it")
        return complete(tables)
    except (msgspec.ValidationError, RecursionError) as error:
        raise FormatError(f"is no device file: {error}. Expected what `umadvise devices --probe` writes") from None


def complete(tables: dict[str, Any]) -> DeviceProfile:
    """A device from the tables of its file, with the defaults of all devices and of its link.

    Raises:
        msgspec.ValidationError: a value is missing, or one that no device has.
    """
    defaults = _defaults()
    link = tables.get("link")
    kind = link.get("kind") if isinstance(link, dict) else None
    of_link = {"link": defaults.links.get(kind, {}) if isinstance(kind, str) else {}}
    return msgspec.convert(_merge(_merge(defaults.device, of_link), tables), DeviceProfile)


def encode(profile: DeviceProfile) -> bytes:
    """The profile as the bytes of a file that needs no defaults; its last line is one that no file may lack."""
    tables = msgspec.to_builtins(profile)
    plain = {key: value for key, value in tables.items() if not isinstance(value, dict) or "source" in value}
    lines = [f"{key} = {_toml(value)}" for key, value in plain.items()]
    for key in tables:
        if key not in plain:
            lines += _table(key, tables[key])
    return ("\n".join(lines) + "\n").encode()


def _table(name: str, table: dict[str, Any]) -> list[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, dict) and "source" not in value}
    lines: list[str] = []
    for key, value in inner.items():
        lines += _table(f"{name}.{key}", value)
    return [*lines, "", f"[{name}]", *[f"{key} = {_toml(table[key])}" for key in table if key not in inner]]


def _toml(value: Any) -> str:
    if isinstance(value, dict):  # a fact, whose defaults go without saying
        said = {key: value[key] for key in ("value", "source", "uncertain") if value[key] is not None}
        if not value["uncertain"]:
            del said["uncertain"]
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in said.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _parse(document: bytes) -> dict[str, Any]:
    try:
        text = document.decode()
        if max(map(len, text.split("\n"))) > MOST_LINE_CHARACTERS:
            raise FormatError(f"has a line of more than {MOST_LINE_CHARACTERS} characters: expected a device file")
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # tomllib's own errors, and those of numbers and UTF-8
        raise FormatError(f"is no device file: {error}. Expected TOML as in profiles/devices") from None


def _merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key, facts replaced whole: half a fact would keep another one's source."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict) and "source" not in value and "source" not in below:
            merged[key] = _merge(below, value)
        else:
            merged[key] = value
    return merged


@functools.cache
def _defaults() -> _Defaults:
    path = directory() / "shared" / "defaults.toml"
    try:
        return msgspec.convert(_parse(read_bounded(path, MOST_FILE_BYTES, "device file")), _Defaults)
    except (FormatError, msgspec.ValidationError) as error:
        raise FormatError(f"{str(path)!r}: {error}. Reinstall umadvise") from None


@functools.cache
def _from_catalogue(name: str) -> DeviceProfile:
    return read(directory() / f"{name}.toml")


@functools.cache
def _aliases() -> dict[str, str]:
    return {alias: name for name in device_names() for alias in _from_catalogue(name).aliases}
