"""The published tables as figures: one number of one paper each, with what identifies it."""

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from umadvise.errors import FormatError

DIRECTORY = Path(__file__).resolve().parents[2] / "profiles" / "published"
OUT_OF_MEMORY = "x"

_NUMBERS: dict[str, dict[str, tuple[str, ...]]] = {
    "choi_bert_large": {"": ("value",)},
    "hayakawa_resnet50": {"": ("images_per_s",)},
    "hayakawa_models": {
        "baseline_max_batch": ("baseline_max_batch",),
        "schedule_factor": ("schedule_factor",),
        "va_extra_factor": ("va_extra_factor_low", "va_extra_factor_high"),
    },
    "vdnn": {"": ("value",)},
}
"""By table: the figures of a line, each with its column, or its two columns where the paper gives a range."""
_UNITS = {"images_per_s": "images/s", "baseline_max_batch": "images"}
_HIDDEN = {"gpu_memory_gb", "unit"}  # columns that do not identify a line


Meaning = TypeVar("Meaning")


@dataclass(frozen=True)
class Figure:
    """One published number.

    Attributes:
        table: the file's stem.
        line: the line of that file, from 1.
        key: what identifies it: the line's other columns, and the name of the figure where a line has several.
        low: the number, None where the paper ran out of memory.
        high: the same, or the upper end of a range.
        unit: the unit that the table says.
    """

    table: str
    line: int
    key: tuple[str, ...]
    low: float | None
    high: float | None
    unit: str

    @property
    def label(self) -> str:
        """The key for people."""
        return " ".join(word for word in self.key if word)

    @property
    def middle(self) -> float:
        """The number, or the middle of the range.

        Raises:
            FormatError: the paper ran out of memory where a number is needed.
        """
        if self.low is None or self.high is None:
            raise FormatError(f"{self.table}.csv line {self.line}: expected a number, found {OUT_OF_MEMORY!r}")
        return (self.low + self.high) / 2


def known(figure: Figure, word: str, meanings: Mapping[str, Meaning]) -> Meaning:
    """What a word of a figure's key means.

    Raises:
        FormatError: nothing that is known.
    """
    if word not in meanings:
        where = f"{figure.table}.csv line {figure.line}"
        raise FormatError(f"{where}: unknown word {word!r}: expected one of {', '.join(meanings)}")
    return meanings[word]


def read(directory: Path = DIRECTORY) -> list[Figure]:
    """Every figure of every table.

    Raises:
        FormatError: a table that nobody knows, a column that is missing, or a value that is no number.
    """
    paths = sorted(directory.glob("*.csv"))
    if not paths:
        raise FormatError(f"no tables in {directory}: expected {', '.join(f'{name}.csv' for name in _NUMBERS)}")
    return [figure for path in paths for figure in _figures(path)]


def _figures(path: Path) -> Iterator[Figure]:
    if path.stem not in _NUMBERS:
        raise FormatError(f"{path.name}: no such table; expected {', '.join(f'{name}.csv' for name in _NUMBERS)}")
    columns = _NUMBERS[path.stem]
    numeric = {column for names in columns.values() for column in names}
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, strict=True)
        missing = numeric - set(reader.fieldnames or ())
        if missing:
            raise FormatError(f"{path.name}: no column {', '.join(sorted(missing))}")
        for line, row in enumerate(reader, 2):
            if None in row or None in row.values():
                raise FormatError(f"{path.name} line {line}: expected {len(reader.fieldnames or ())} columns")
            identity = tuple(value for name, value in row.items() if name not in numeric | _HIDDEN)
            for name, numbers in columns.items():
                low, high = (_number(path, line, row[column]) for column in (numbers[0], numbers[-1]))
                unit = row.get("unit") or _UNITS.get(numbers[0], "times")
                yield Figure(path.stem, line, (*identity, name) if name else identity, low, high, unit)


def _number(path: Path, line: int, text: str) -> float | None:
    if text == OUT_OF_MEMORY:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise FormatError(f"{path.name} line {line}: expected a number or {OUT_OF_MEMORY!r}, found {text!r}")
    return value
