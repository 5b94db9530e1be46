"""Tables of columns, and their numbers as bytes: what traces and plans are made of, and what their files hold."""

import functools
from collections.abc import Sequence
from types import NoneType
from typing import Any, ClassVar, TypeVar, get_args, get_type_hints

import numpy as np


class Columns:
    """Columns of equal length. Subclasses are frozen dataclasses whose annotations of arrays are the columns."""

    DTYPES: ClassVar[dict[str, type[np.generic]]]

    def __init_subclass__(cls) -> None:
        # NDArray[T] is ndarray[shape, dtype[T]], and from numpy 2.5 on an alias of its own, whose argument is T.
        arrays = {name: get_args(hint)[-1] for name, hint in cls.__annotations__.items() if get_args(hint)}
        cls.DTYPES = {name: next(iter(get_args(dtype)), dtype) for name, dtype in arrays.items()}

    def __post_init__(self) -> None:
        for name, dtype in self.DTYPES.items():
            column = np.ascontiguousarray(getattr(self, name), dtype=dtype)
            column.flags.writeable = False
            object.__setattr__(self, name, column)

    def __len__(self) -> int:
        return len(getattr(self, next(iter(self.DTYPES))))

    def lengths(self) -> dict[str, int]:
        """The length of each column."""
        return {name: len(getattr(self, name)) for name in self.DTYPES}


Kind = TypeVar("Kind", bound=Columns)
Words = TypeVar("Words")
_hints: Any = functools.cache(get_type_hints)


def in_words(kind: type[Words], table: Columns, row: int, strings: Sequence[str] = (), **others: Any) -> Words:
    """One row of a table, for people.

    Args:
        kind: record of such a row; its annotations say what a number is: the index of a string, a member of an
            enumeration, or None where it is -1.
        table: columns with the record's names.
        row: index of the row.
        strings: texts that columns of names index.
        others: fields that are no columns.
    """
    fields: dict[str, Any] = {}
    for name, hint in _hints(kind).items():
        if name not in others:
            number = int(getattr(table, name)[row])
            optional = NoneType in get_args(hint)
            fields[name] = strings[number] if hint is str else hint(number) if not optional else _known(number)
    return kind(**fields, **others)


def _known(number: int) -> int | None:
    return None if number == -1 else number


def pack(table: Columns) -> dict[str, bytes]:
    """A table's columns as little-endian numbers."""
    return {
        name: getattr(table, name).astype(np.dtype(dtype).newbyteorder("<")).tobytes()
        for name, dtype in table.DTYPES.items()
    }


def unpack(kind: type[Kind], name: str, columns: dict[str, bytes]) -> Kind:
    """The table of such columns.

    Args:
        kind: class of the table to make.
        name: what error messages call the table.
        columns: little-endian bytes of each column by its name, as `pack` returns them.

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
