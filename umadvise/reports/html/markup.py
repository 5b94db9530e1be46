"""Tables and sections as HTML, readable without scripts; report.js makes the tables sort and filter."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

MOST_ROWS = 500
"""Rows of a table in a report."""


@dataclass(frozen=True)
class Cell:
    """A number as people read it, the number that it is sorted by, and the part of a bar, 0 to 1, behind it."""

    words: str
    value: float | None
    bar: float | None = None


Row = Sequence[str | Cell]


@dataclass(frozen=True)
class Section:
    """A part of the page: where links to it go, its heading as text, and HTML, some of which may be empty."""

    anchor: str
    title: str
    parts: Sequence[str]

    @property
    def body(self) -> str:
        """What it holds; nothing where the section is to be left out."""
        return "\n".join(filter(None, self.parts))

    @property
    def html(self) -> str:
        """The whole part, with its heading."""
        heading = f'<h2 id="{self.anchor}-title">{escape(self.title)}</h2>'
        return f'<section id="{self.anchor}" aria-labelledby="{self.anchor}-title">\n{heading}\n{self.body}\n</section>'

    @property
    def link(self) -> str:
        """A link to it."""
        return f'<a href="#{self.anchor}">{escape(self.title)}</a>'


def paragraph(text: str) -> str:
    """A paragraph of text."""
    return f"<p>{escape(text)}</p>"


def table(caption: str, headings: Sequence[str], rows: Iterable[Row], left_out: str = "") -> str:
    """A table, whose columns sort and whose rows filter where scripts run; nothing where it has no rows.

    Args:
        caption: what it is about, as text.
        headings: one for each column.
        rows: cells, as many as headings. The first one names the row.
        left_out: what is said of rows that are not there.
    """
    all_rows = list(rows)
    if not all_rows:
        return ""
    kinds = (' class="n"' if isinstance(cell, Cell) else "" for cell in all_rows[0])
    heads = "".join(
        f'<th scope="col"{kind}>{escape(heading)}</th>' for kind, heading in zip(kinds, headings, strict=True)
    )
    words = escape(caption)
    after = paragraph(left_out) if left_out else ""
    return (
        f'<div class="table">\n<div class="scroll" role="region" aria-label="{words}" tabindex="0">\n<table>\n'
        f"<caption>{words}</caption>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n"
        + "\n".join(map(_row, all_rows))
        + f"\n</tbody>\n</table>\n</div>\n{after}</div>"
    )


def _row(row: Row) -> str:
    first, *others = row
    name = first.words if isinstance(first, Cell) else first
    value = f' data-value="{first.value:.10g}"' if isinstance(first, Cell) and first.value is not None else ""
    return f'<tr><th scope="row"{value}>{escape(name)}</th>{"".join(map(_cell, others))}</tr>'


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return f"<td>{escape(cell)}</td>"
    value = "" if cell.value is None else f' data-value="{cell.value:.10g}"'
    bar = f' class="n bar" style="--part:{min(cell.bar, 1):.3f}"' if cell.bar else ' class="n"'
    return f"<td{bar}{value}>{escape(cell.words)}</td>"
