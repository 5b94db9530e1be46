"""What allocators take of a device beyond what is live, for people: a table a step, and the largest budgets."""

import io
from collections.abc import Iterator
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from umadvise.planners.judging.fragmentation import Fragmentation, Step, Taken
from umadvise.records.units import format_bytes
from umadvise.reports.reporters.tables import new_grid

DEFAULT_WIDTH = 120
_NO_WIDTH = 1000
_TOO_MUCH = "x"


def render(found: Fragmentation, width: int = DEFAULT_WIDTH) -> str:
    """For each step what each budget takes; then for all of them the largest budgets that the memory holds."""
    buffer = io.StringIO()
    console, tables = (
        Console(file=buffer, width=each, no_color=True, highlight=False, emoji=False) for each in (width, _NO_WIDTH)
    )
    chunks = f", chunks of {format_bytes(found.chunk_bytes)}" if "va_chunks" in found.allocators else ""
    console.print(
        Text(
            f"{format_bytes(found.memory_bytes)} on {found.device}, simulated, planned by {found.planner}{chunks}; "
            f'"{_TOO_MUCH}" takes more than that'
        )
    )
    for step in found.steps:
        console.print(Text(f"\n{step.name}, {format_bytes(step.peak_bytes)} in unlimited memory"))
        if step.rows:
            tables.print(_budgets(found, step))
        if step.without_plan is not None:
            console.print(Text(f"{'Less has' if step.rows else 'There is'} no plan: {step.without_plan}"))
    console.print(Text(f"\nBudgets that {format_bytes(found.memory_bytes)} hold"))
    tables.print(_largest(found))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _budgets(found: Fragmentation, step: Step) -> Table:
    grid = new_grid("")
    grid.add_column("budget", justify="right", no_wrap=True)
    for allocator in found.allocators:
        grid.add_column(allocator, justify="right", no_wrap=True)
        grid.add_column("not live", justify="right", no_wrap=True)
    for budget_bytes, rows in groupby(step.rows, key=lambda row: row.budget_bytes):
        cells = (cell for row in rows for cell in (_taken(row), _part(row)))
        grid.add_row(format_bytes(budget_bytes), *cells)
    return grid


def _taken(row: Taken) -> str:
    return f"{'' if row.fits else f'{_TOO_MUCH} '}{format_bytes(row.peak_reserved_bytes)}"


def _part(row: Taken) -> str:
    return f"{row.fragmentation_bytes / row.peak_reserved_bytes:.1%}" if row.peak_reserved_bytes else "-"


def _largest(found: Fragmentation) -> Table:
    grid = new_grid("")
    grid.add_column("step", no_wrap=True)
    grid.add_column("allocator", no_wrap=True)
    for heading in ("smallest", "largest", "takes then", "live", "not live"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for step in found.steps:
        for index, allocator in enumerate(found.allocators):
            grid.add_row(step.name if index == 0 else "", allocator, *_range(step.fitting(allocator)))
    return grid


def _range(fitting: list[Taken]) -> Iterator[str]:
    if not fitting:
        yield from (_TOO_MUCH,) * 5
        return
    largest = fitting[0]
    yield format_bytes(fitting[-1].budget_bytes)
    yield format_bytes(largest.budget_bytes)
    yield format_bytes(largest.peak_reserved_bytes)
    yield format_bytes(largest.peak_live_bytes)
    yield _part(largest)
