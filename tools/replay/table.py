"""The replayed tables as text: pure functions of outcomes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from replay.columns import aligned
from replay.outcome import FigureOutcome, Verdict, number
from replay.published import OUT_OF_MEMORY, Figure

_HEADINGS = ("figure", "predicted", "published", "error", "bound", "")


def lines(outcomes: Sequence[FigureOutcome]) -> Iterator[str]:
    """A block a table, one line a figure, notes below their block, and what it comes to."""
    for name, group in groupby(outcomes, key=lambda outcome: outcome.figure.table):
        members = list(group)
        rows = [_HEADINGS, *(_cells(outcome) for outcome in members)]
        yield f"{name}.csv"
        # The verdict is flush on its left, and so no column of its own.
        for line, row in zip(aligned([row[:-1] for row in rows]), rows, strict=True):
            yield f"{line}  {row[-1]}".rstrip()
        yield from _notes(members)
        yield ""
    yield summary(outcomes)


def summary(outcomes: Sequence[FigureOutcome]) -> str:
    """How many of which."""
    counts = Counter(outcome.status for outcome in outcomes)
    return f"{len(outcomes)} figures: " + ", ".join(f"{counts[status]} {status.value}" for status in Verdict)


def _cells(outcome: FigureOutcome) -> tuple[str, ...]:
    error = "" if outcome.error is None else f"{outcome.error:+.1%}"
    figure = outcome.figure
    return (figure.label, outcome.predicted, _published(figure), error, outcome.bound, outcome.status.value)


def _published(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return OUT_OF_MEMORY
    numbers = number(figure.low) if figure.low == figure.high else f"{number(figure.low)} to {number(figure.high)}"
    return f"{numbers} {figure.unit}"


def _notes(members: list[FigureOutcome]) -> Iterator[str]:
    noted: dict[str, list[str]] = {}
    for outcome in members:
        if outcome.note:
            noted.setdefault(outcome.note, []).append(outcome.figure.label)
    for note, labels in noted.items():
        more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
        yield f"  {labels[0]}{more}: {note}"
