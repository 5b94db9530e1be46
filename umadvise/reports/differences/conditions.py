"""Conditions on what two files say, for programs that have to decide: `step_ns > +5%`, `faults > 100`."""

import difflib
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from umadvise.errors import InvalidSizeError, UmadviseError, UsageError
from umadvise.records.units import parse_bytes
from umadvise.reports.differences.quantities import CheckedCondition, Quantity, QuantityKind, Unit

_FORM = re.compile(
    r"(?P<name>\w+)\s*(?P<relation>[<>]=?)\s*(?P<sign>[+-]?)\s*(?P<number>\d[\d.]*)\s*(?P<unit>[a-z]*|%)", re.I
)
_RELATIONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_NS = {"": 1, "ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_EXPECTED = (
    'expected a quantity, < or >, and a number, such as "step_ns > +5%", "faults > 100" or "swap_in_bytes > 2GiB"'
)


@dataclass(frozen=True)
class Condition:
    """A condition on one quantity.

    Attributes:
        text: the condition as it was given.
        name: name of the quantity.
        relation: one of <, <=, > and >=.
        limit: what the value is compared with: in the quantity's unit, or a part of the first file's value.
        change: whether the value is the change from the first file to the second, and not that of the second file.
        relative: whether the change is a part of the first file's value.
    """

    text: str
    name: str
    relation: str
    limit: float
    change: bool
    relative: bool

    def holds(self, quantity: Quantity) -> bool:
        """Whether it is so.

        Raises:
            UmadviseError: a file does not have the quantity.
        """
        here, there = quantity.here, quantity.there
        if there is None or (here is None and self.change):
            which = "second" if there is None else "first"
            raise UmadviseError(f"condition {self.text!r} cannot be checked: the {which} file does not say {self.name}")
        value: float = there
        if self.change:
            assert here is not None
            value = there - here
            if self.relative:
                value = value / here if here else math.copysign(math.inf, value) if value else 0.0
        return _RELATIONS[self.relation](value, self.limit)


def parse_condition(text: str, kinds: Sequence[QuantityKind[Any]]) -> Condition:
    """Reads a condition.

    Args:
        text: a quantity's name, <, <=, > or >=, and a number. With a sign or % the number is about the change from the
            first file to the second, with % as a part of the first; else it is about the second file. Numbers of bytes
            and of time may have units: "64MiB", "2ms".
        kinds: quantities that the files may have.

    Raises:
        UsageError: it is none, or there is no such quantity.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"cannot read the condition {text!r}: {_EXPECTED}")
    known = {each.name: each.unit for each in kinds}
    if match["name"] not in known:
        near = difflib.get_close_matches(match["name"], known, 3, 0.5) or sorted(known)
        raise UsageError(
            f"condition {text!r}: there is no quantity {match['name']!r}; the nearest are {', '.join(near)}"
        )
    relative = match["unit"] == "%"
    value = _number(text, match["number"], match["unit"], "count" if relative else known[match["name"]])
    limit = (-value if match["sign"] == "-" else value) / (100 if relative else 1)
    return Condition(text, match["name"], match["relation"], limit, bool(match["sign"]) or relative, relative)


def checked(conditions: Sequence[Condition], quantities: Sequence[Quantity]) -> tuple[CheckedCondition, ...]:
    """Each condition, and whether it holds.

    Raises:
        UmadviseError: a file does not have a quantity that a condition is about.
    """
    by_name = {each.name: each for each in quantities}

    def holds(condition: Condition) -> bool:
        nowhere = Quantity(name=condition.name, unit="count", words="", here=None, there=None)
        return condition.holds(by_name.get(condition.name, nowhere))

    return tuple(CheckedCondition(condition=each.text, holds=holds(each)) for each in conditions)


def _number(text: str, digits: str, suffix: str, unit: Unit) -> float:
    try:
        if unit == "bytes":
            return parse_bytes(digits + suffix)
        factor = _NS[suffix] if unit == "ns" else {"": 1, "%": 1}[suffix]
        return float(digits) * factor
    except (KeyError, ValueError, InvalidSizeError):
        units = {"ns": "ns, us, ms or s", "bytes": "a unit of bytes such as MiB", "count": "no unit, or %"}[unit]
        raise UsageError(f"condition {text!r}: {digits}{suffix} is no such number: expected {units}") from None
