"""The C ABI as its headers write it: their structures, functions and numbers, read when the core is first needed.

The headers are plain C: every declaration ends at a semicolon, and a structure's fields are numbers, arrays of
them, pointers (also to functions), or structures that stand above it. A test compares what is read here with what a
compiler reads.
"""

import ctypes
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from umadvise import _hooks

_SCALARS: Mapping[str, Any] = {
    "void": None,
    "char": ctypes.c_char,
    "double": ctypes.c_double,
    "int": ctypes.c_int,
    "size_t": ctypes.c_size_t,
    "ptrdiff_t": ctypes.c_ssize_t,
    **{f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_NUMBER = re.compile(r"\b(UM_\w+)(?:\s*=\s*|\s+\(?)(-?\d+)")
_ALIAS = re.compile(r"typedef (\w+) (um_\w+);")
_CALLBACK = re.compile(r"typedef (\w+) \(\*(um_\w+)\)\(([^)]*)\);")
_STRUCTURE = re.compile(r"typedef struct (um_\w+) \{(.*?)\} \1;", re.DOTALL)
_FUNCTION = re.compile(r"UM_API ([^;(]*[ *])(um_\w+)\(([^)]*)\);")
_TYPE = re.compile(r"\s*(?:const\s+)?(\w+)[\s*]*")
_FIELD = re.compile(r"(\w+)(?:\[(\w+)\])?")
_FUNCTION_FIELD = re.compile(r"\(\*(\w+)\)")


@dataclass(frozen=True, slots=True)
class Function:
    """What a function takes and returns; `checked`: a um_status, of which only success returns."""

    result: Any
    arguments: list[Any]
    checked: bool


@dataclass(frozen=True, slots=True)
class Header:
    """What a header declares.

    Attributes:
        numbers: members of enumerations, and macros that are numbers.
        types: structures, callbacks and other names of types, those of the headers that it includes among them.
        functions: all of them.
    """

    numbers: dict[str, int]
    types: dict[str, Any]
    functions: dict[str, Function]


def _parse(text: str, included: Mapping[str, Any]) -> Header:
    text = _COMMENT.sub(" ", text)
    numbers = {name: int(number) for name, number in _NUMBER.findall(text)}
    types = {**included}
    types.update((name, types[known]) for known, name in _ALIAS.findall(text) if known != "struct")
    for name, body in _STRUCTURE.findall(text):
        fields = [field for declaration in body.split(";")[:-1] for field in _fields(declaration, types, numbers)]
        types[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    for result, name, arguments in _CALLBACK.findall(text):
        types[name] = ctypes.CFUNCTYPE(types[result], *_arguments(arguments, types))
    functions = {
        name: Function(_type(result, types), _arguments(arguments, types), result.strip() == "um_status")
        for result, name, arguments in _FUNCTION.findall(text)
    }
    return Header(numbers, types, functions)


def _fields(declaration: str, types: Mapping[str, Any], numbers: Mapping[str, int]) -> list[tuple[str, Any]]:
    if function := _FUNCTION_FIELD.search(declaration):
        return [(function[1], ctypes.c_size_t)]
    start = _TYPE.match(declaration)
    assert start is not None, declaration
    kind = ctypes.c_size_t if "*" in declaration else _type(declaration, types)  # an address, which may be 0
    return [
        (name, kind * (numbers.get(length) or int(length)) if length else kind)
        for name, length in _FIELD.findall(declaration, start.end())
    ]


def _arguments(declarations: str, types: Mapping[str, Any]) -> list[Any]:
    return [_type(each, types) for each in declarations.split(",") if each.strip() not in ("", "void")]


def _type(declaration: str, types: Mapping[str, Any]) -> Any:
    start = _TYPE.match(declaration)
    assert start is not None, declaration
    if "*" not in declaration:
        return types[start[1]]
    return ctypes.c_char_p if start[1] == "char" and declaration.count("*") == 1 else ctypes.c_void_p


@functools.cache
def core() -> Header:
    """The parsed core header, csrc/include/umadvise.h.

    Raises:
        UmadviseError: it lies nowhere.
    """
    return _parse((_hooks.core_headers() / "umadvise.h").read_text(encoding="utf-8"), _SCALARS)


@functools.cache
def hooks() -> Header:
    """The parsed header of the hooks library, umadvise/_hooks/hooks.h."""
    return _parse(Path(_hooks.__file__).with_name("hooks.h").read_text(encoding="utf-8"), core().types)
