"""Two runs or two plans side by side: numbers with names, what they are of, and the subjects that changed most."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from umadvise.records.counters import Record

SCHEMA = "umadvise.difference/1"
MOST_SUBJECTS = 64
Unit = Literal["ns", "bytes", "count"]
Number = int | float
Kind = Literal["profile", "plan"]
Source = TypeVar("Source")


@dataclass(frozen=True)
class QuantityKind(Generic[Source]):
    """A number that a file has.

    Attributes:
        name: what conditions call it.
        unit: what it counts.
        words: what it is, for people.
        of: function that reads it from what the file holds; None is what nobody knows.
    """

    name: str
    unit: Unit
    words: str
    of: Callable[[Source], Number | None]


class Quantity(Record, frozen=True):
    """A number in both files; None where a file does not have it.

    Attributes:
        name: what conditions call it.
        unit: nanoseconds, bytes, or a number of things.
        words: what it is, for people.
        here: its value in the first file.
        there: its value in the second file.
    """

    name: str
    unit: Unit
    words: str
    here: Number | None
    there: Number | None

    @property
    def change(self) -> float | None:
        """Part of the first value by which the second one is larger; None where one is unknown, or the first is 0."""
        return None if self.here is None or self.there is None or self.here == 0 else self.there / self.here - 1


class ChangedSubject(Record, frozen=True):
    """A module or tensor that costs something else: of a run per step.

    Attributes:
        kind: what it is.
        name: its name in reports.
        here_ns: nanoseconds that were waited because of it, in the first file; 0 in plans, which know no times.
        there_ns: the same in the second file.
        here_bytes: bytes that moved because of it, both ways, in the first file.
        there_bytes: the same in the second file.
    """

    kind: Literal["module", "tensor"]
    name: str
    here_ns: Number = 0
    there_ns: Number = 0
    here_bytes: Number = 0
    there_bytes: Number = 0

    @property
    def weight(self) -> tuple[float, float]:
        """How much changed: first by time, then by bytes."""
        return abs(self.there_ns - self.here_ns), abs(self.there_bytes - self.here_bytes)


class CheckedCondition(Record, frozen=True):
    """A condition as it was given, and whether it holds."""

    condition: str
    holds: bool


class Difference(Record, frozen=True, tag_field="schema", tag=SCHEMA):
    """Two files of one kind.

    Attributes:
        kind: what both files are.
        here: name of the first file.
        there: name of the second file.
        circumstances: sentences on what both were made with and is not the same, what makes numbers hard to compare
            first.
        quantities: every number that one of them has.
        subjects: modules and tensors that changed, most first.
        conditions: what was asked for.
    """

    kind: Kind
    here: str
    there: str
    circumstances: tuple[str, ...]
    quantities: tuple[Quantity, ...]
    subjects: tuple[ChangedSubject, ...] = ()
    conditions: tuple[CheckedCondition, ...] = ()


def quantities(kinds: Sequence[QuantityKind[Source]], here: Source, there: Source) -> tuple[Quantity, ...]:
    """The numbers that at least one of two files has.

    Args:
        kinds: numbers that such a file may have.
        here: what the first file holds.
        there: what the second file holds.
    """
    rows = (
        Quantity(name=each.name, unit=each.unit, words=each.words, here=each.of(here), there=each.of(there))
        for each in kinds
    )
    return tuple(row for row in rows if row.here is not None or row.there is not None)


def most_changed(subjects: Sequence[ChangedSubject]) -> tuple[ChangedSubject, ...]:
    """Those that changed, most first, of each kind at most MOST_SUBJECTS."""
    ranked = sorted((each for each in subjects if any(each.weight)), key=lambda each: each.weight, reverse=True)
    kinds = dict.fromkeys(each.kind for each in subjects)
    return tuple(each for kind in kinds for each in [row for row in ranked if row.kind == kind][:MOST_SUBJECTS])


def parted(words: Sequence[tuple[str, Callable[[Source], str | None]]], here: Source, there: Source) -> tuple[str, ...]:
    """A sentence for each thing that the second file says otherwise.

    Args:
        words: what it is, and the function that reads it from what a file holds; None is what a file does not say.
        here: what the first file holds.
        there: what the second file holds.
    """
    both = ((what, of(here), of(there)) for what, of in words)
    return tuple(f"{what}: {ours or '-'} here, {theirs or '-'} there." for what, ours, theirs in both if ours != theirs)
