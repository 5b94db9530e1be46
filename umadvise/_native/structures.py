"""The header's structures from records and to them, by the names of their fields.

A record of this package is that of the structure of its name: `Placement` is um_placement. Its annotations say how a
field is read: `str` is an array of characters or an interned name, what may be None is so where the core says
UM_UNKNOWN, and a record of an array has a field for each of its numbers.
"""

import ctypes
import functools
import re
from collections.abc import Callable, Iterable
from operator import attrgetter
from types import NoneType
from typing import Any, TypeAlias, TypeVar, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from umadvise._native import header
from umadvise._native.abi import UNKNOWN
from umadvise._native.library import string

Structure: TypeAlias = ctypes.Structure
Record = TypeVar("Record")
Made = TypeVar("Made", bound=Callable[..., Any])
_UNUSED = "reserved"


def _once(make: Made) -> Made:
    """`functools.cache` for functions of a type."""
    return functools.cache(make)  # type: ignore[return-value]  # mypy takes types for not hashable


@functools.cache
def structure(name: str) -> type[Structure]:
    """A structure of umadvise.h."""
    kind: type[Structure] = header.core().types[name]
    return kind


@functools.cache
def layout(name: str) -> np.dtype[Any]:
    """The rows of a NumPy array of a structure of umadvise.h."""
    return np.dtype(structure(name))


def structure_name(record: type[Any]) -> str:
    """What the header calls the structure of a record: um_swap_counters for `SwapCounters`."""
    return "um" + re.sub("([A-Z])", r"_\1", record.__name__).lower()


@_once
def _structure_of(record: type[Any]) -> type[Structure]:
    return structure(structure_name(record))


def make(name: str, **fields: Any) -> Structure:
    """A structure of umadvise.h with values in all of its fields but those that are reserved.

    Raises:
        TypeError: the header has other fields.
    """
    kind = structure(name)
    _check(name, fields)
    return kind(**fields)


def _check(name: str, fields: Iterable[str]) -> None:
    declared = {field[0] for field in structure(name)._fields_} - {_UNUSED}
    if declared != set(fields):
        raise TypeError(f"{name} has other fields: {', '.join(sorted(declared ^ set(fields)))}")


def to_c(record: Any) -> Structure:
    """The structure of a record, with the records in it."""
    kind, names = _order(type(record))
    values = [getattr(record, name) for name in names]
    return kind(*[to_c(value) if hasattr(value, "__dataclass_fields__") else value for value in values])


@_once
def _order(record: type[Any]) -> tuple[type[Structure], list[str]]:
    name = structure_name(record)
    _check(name, record.__dataclass_fields__)
    return structure(name), [field[0] for field in structure(name)._fields_]


def filled(record: type[Record], fill: Callable[[Any], Any]) -> Record:
    """A record that a function of the core writes through the pointer that it is given."""
    native = _structure_of(record)()
    fill(ctypes.byref(native))
    made: Record = _maker(record)(native)
    return made


def read(record: type[Record], native: Any, **others: Any) -> Record:
    """The record of a structure, or of an array with a number for each of its fields.

    Args:
        record: type of the record, with some or all of the structure's fields.
        native: the structure or array.
        others: values of fields that the structure lacks, or has in another form.
    """
    made: Record = _maker(record, *others)(native, **others)
    return made


def read_known(record: type[Record], native: Structure) -> Record | None:
    """The record of a structure; None where its first field is UM_UNKNOWN, as all of them are then."""
    return None if getattr(native, native._fields_[0][0]) == UNKNOWN else read(record, native)


@_once
def _maker(record: type[Any], *others: str) -> Callable[..., Any]:
    """What makes a record of a structure or an array: torch asks often where a tensor is."""
    hints = {name: hint for name, hint in get_type_hints(record).items() if name not in others}
    values_of = attrgetter(*hints)
    readers = [(place, reader) for place, hint in enumerate(hints.values()) if (reader := _reader(hint)) is not None]
    optional = [place for place, reader in readers if reader is known]
    readers = [(place, reader) for place, reader in readers if reader is not known]
    by_place = hasattr(record, "__dataclass_fields__") and not others

    def made(native: Any, **others: Any) -> Any:
        values = list(native if isinstance(native, ctypes.Array) else values_of(native))
        if optional and UNKNOWN in values:  # seldom, and each edge of a step makes records of a hundred numbers
            for place in optional:
                values[place] = known(values[place])
        for place, reader in readers:
            values[place] = reader(values[place])
        return record(*values) if by_place else record(**dict(zip(hints, values, strict=True)), **others)

    return made


def _reader(hint: Any) -> Callable[[Any], Any] | None:
    """What makes a field of the structure's; None where they are the same."""
    kind, optional = hint, NoneType in get_args(hint)
    if optional:
        (kind,) = {*get_args(hint)} - {NoneType}
    if hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__struct_fields__"):
        return _maker(kind)
    if kind is str:
        return (lambda value: _text(value) or None) if optional else _text
    if optional:
        return known
    return {bool: bool, int: None}.get(kind, tuple)


def _text(value: bytes | int) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else string(value)


def rows(kind: np.dtype[Any], tell: Callable[[Any, int], int], usual: int = 0) -> NDArray[Any]:
    """Reads all rows of a table of the core: a function of it fills what room it is given, and says how many there are.

    Args:
        kind: layout of a row.
        tell: the function, which takes a place for rows and how many fit there.
        usual: number of rows that the table has at most as a rule: so many are read with one call.
    """
    found = np.empty(usual, kind)
    count = int(tell(found.ctypes.data if usual else None, usual))
    if count > usual:
        found = np.empty(count, kind)
        count = min(count, int(tell(found.ctypes.data, count)))
    return found[:count]


def each(name: str, tell: Callable[[Any, int], int]) -> list[Structure]:
    """Reads all rows of a table of the core as structures of umadvise.h: see `rows`."""
    found = rows(layout(name), tell)
    return list((structure(name) * len(found)).from_buffer(found.data)) if len(found) else []


def known(value: int) -> int | None:
    """The number, or None where it is UM_UNKNOWN."""
    return None if value == UNKNOWN else value
