"""Printing a report into text, and tables without lines, as all reports have."""

import io
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.table import Table as Grid

DEFAULT_WIDTH, LEAST_WIDTH = 110, 80
"""Columns of a terminal: where nobody says how many, and what fewer count as."""
TABLE_WIDTH = 1000
"""Of tables that are as wide as they are: numbers that are cut off say nothing."""


def printed(parts: Iterable[RenderableType], width: int, *, color: bool = False, table_width: int | None = None) -> str:
    """A report as text.

    Args:
        parts: what is printed, one below the other.
        width: columns of the terminal.
        color: whether to use ANSI colours.
        table_width: columns that tables may take; None: the terminal's.

    Returns:
        Lines without trailing spaces; the same text for the same arguments, whatever the environment says.
    """
    output = io.StringIO()
    console, tables = (
        Console(
            file=output,
            width=columns,
            force_terminal=color,
            color_system="standard" if color else None,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
            _environ={},
        )
        for columns in (width, table_width or width)
    )
    for part in parts:
        (tables if isinstance(part, Grid) else console).print(part)
    return "".join(f"{line.rstrip()}\n" for line in output.getvalue().splitlines())


def new_grid(title: str, names: Sequence[str] = (), numbers: Sequence[str] = ()) -> Grid:
    """A table without lines.

    Args:
        title: text above it.
        names: headings of its first columns.
        numbers: headings of the columns of numbers after them.
    """
    grid = Grid(
        title=title,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        caption_style="dim",
        header_style="underline",
        box=None,
        pad_edge=False,
    )
    for heading in names:
        grid.add_column(heading, no_wrap=True)
    for heading in numbers:
        grid.add_column(heading, justify="right", no_wrap=True)
    return grid
