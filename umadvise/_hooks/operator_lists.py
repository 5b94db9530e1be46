"""The lists of `operator_lists.h`, for recorders, which also run where nothing has been compiled."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path

_ARRAY = re.compile(r"std::array<(?:std::string_view|SilentWrite), (\d+)> (k\w+) = \{(.*?)\};", re.DOTALL)
_STRING = re.compile(r'"([^"]+)"')
_ROW = re.compile(r'\{"([^"]+)", "([^"]+)", Write::(\w+)\}')


@functools.cache
def _arrays() -> dict[str, tuple[int, str]]:
    """By name, how many elements an array has, and its source text."""
    text = Path(__file__).with_name("operator_lists.h").read_text(encoding="utf-8")
    return {name: (int(count), body) for count, name, body in _ARRAY.findall(text)}


def operators(name: str) -> frozenset[str]:
    """The operators of one list, as "aten::empty", without overloads."""
    count, body = _arrays()[name]
    found = frozenset(_STRING.findall(body))
    assert len(found) == count, name
    return found


def silent_writes() -> Mapping[str, Mapping[str, str]]:
    """By operator and argument, when the operator writes an argument that its schema calls read: a word of `Write`."""
    count, body = _arrays()["kSilentWrites"]
    rows = _ROW.findall(body)
    assert len(rows) == count
    return {op: {argument: when for name, argument, when in rows if name == op} for op, _, _ in rows}
