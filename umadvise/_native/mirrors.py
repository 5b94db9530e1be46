"""Records of `_abi` to ctypes structures and back."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from umadvise._native.abi import UNKNOWN
from umadvise._native.library import string

_C_TYPES: dict[str, Any] = {
    "char": ctypes.c_char,
    "uint8_t": ctypes.c_uint8,
    "uint16_t": ctypes.c_uint16,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "double": ctypes.c_double,
    "void*": ctypes.c_void_p,
}

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class Mirror:
    """What a record is in C.

    Attributes:
        structure: with the record's fields.
        read: makes the record of one.
    """

    structure: type[ctypes.Structure]
    read: Callable[[Any], Any]


_derived: dict[type[Any], Mirror] = {}


def mirror(record: type[Any]) -> Mirror:
    """The ctypes structure of a record of `_abi`, and the function that reads one out of the other."""
    if record not in _derived:
        _derived[record] = _derive_mirror(record)
    return _derived[record]


def _derive_mirror(record: type[Any]) -> Mirror:
    fields: list[tuple[str, Any]] = []
    readers: list[tuple[str, Callable[[Any], Any]]] = []
    for name, hint in get_type_hints(record, include_extras=True).items():
        if get_origin(hint) is Annotated:
            python_type, c_type, *length = get_args(hint)
            fields.append((name, _C_TYPES[c_type] * length[0] if length else _C_TYPES[c_type]))
            readers.append((name, _reader(python_type, is_array=bool(length))))
        else:  # a record inside a record
            fields.append((name, mirror(hint).structure))
            readers.append((name, mirror(hint).read))
    structure = type(record.__name__, (ctypes.Structure,), {"_fields_": fields})
    return Mirror(structure, lambda value: record(*[read(getattr(value, name)) for name, read in readers]))


def _reader(python_type: Any, *, is_array: bool) -> Callable[[Any], Any]:
    if python_type is str:
        return (lambda value: value.decode(errors="replace")) if is_array else string
    if is_array:
        always_known = python_type in (tuple[int, ...], tuple[float, ...])
        return tuple if always_known else lambda values: tuple(map(known, values))
    if python_type is bool:
        return bool
    if python_type == int | None:
        return known
    return lambda value: value or 0  # ctypes reads a null pointer as None


def known(value: int) -> int | None:
    """The number, None for UM_UNKNOWN."""
    return None if value == UNKNOWN else value


def to_c(record: Any) -> ctypes.Structure:
    """The structure of a record, with the records in it."""
    structure = mirror(type(record)).structure
    values = [getattr(record, name) for name in record.__dataclass_fields__]
    return structure(*[to_c(value) if hasattr(value, "__dataclass_fields__") else value for value in values])


def filled(record: type[Record], fill: Callable[[Any], Any]) -> Record:
    """A record that a function of the core writes through the pointer that it is given."""
    record_mirror = mirror(record)
    structure = record_mirror.structure()
    fill(ctypes.byref(structure))
    result: Record = record_mirror.read(structure)
    return result
