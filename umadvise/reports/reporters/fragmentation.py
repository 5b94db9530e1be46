"""What allocators take of a device beyond what is live, for people: a table a step, and the largest budgets."""

from collections.abc import Iterator
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from umadvise.planners.judging.fragmentation import Fragmentation, FragmentedStep, Taken
from umadvise.records.units import format_bytes
from umadvise.reports.reporters.printing import TABLE_WIDTH, new_grid, printed

DEFAULT_WIDTH = 120
_TOO_MUCH = "x"


def render(found: Fragmentation, width: int = DEFAULT_WIDTH) -> str:
    """For each step what each budget takes; then for all of them the largest budgets that the memory holds."""
    return printed(_parts(found), width, table_width=TABLE_WIDTH)


def _parts(found: Fragmentation) -> Iterator[RenderableType]:
    chunks = f", chunks of {format_bytes(found.chunk_bytes)}" if "va_chunks" in found.allocators else ""
    yield Text(
        f"{format_bytes(found.memory_bytes)} on {found.device}, simulated, planned by {found.planner}{chunks}; "
        f'"{_TOO_MUCH}" takes more than that'
    )
    for step in found.steps:
        yield Text(f"\n{step.name}, {format_bytes(step.peak_bytes)} in unlimited memory")
        if step.rows:
            yield _budgets(found, step)
        if step.without_plan is not None:
            yield Text(f"{'Less has' if step.rows else 'There is'} no plan: {step.without_plan}")
    yield Text(f"\nBudgets that {format_bytes(found.memory_bytes)} hold")
    yield _largest(found)


def _budgets(found: Fragmentation, step: FragmentedStep) -> Table:
    headings = (heading for allocator in found.allocators for heading in (allocator, "not live"))
    grid = new_grid("", (), ("budget", *headings))
    for budget_bytes, rows in groupby(step.rows, key=lambda row: row.budget_bytes):
        cells = (cell for row in rows for cell in (_taken(row), _part(row)))
        grid.add_row(format_bytes(budget_bytes), *cells)
    return grid


def _taken(row: Taken) -> str:
    return f"{'' if row.fits else f'{_TOO_MUCH} '}{format_bytes(row.peak_reserved_bytes)}"


def _part(row: Taken) -> str:
    return f"{row.fragmentation_bytes / row.peak_reserved_bytes:.1%}" if row.peak_reserved_bytes else "-"


def _largest(found: Fragmentation) -> Table:
    grid = new_grid("", ("step", "allocator"), ("smallest", "largest", "takes then", "live", "not live"))
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
