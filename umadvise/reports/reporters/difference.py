"""Two runs or two plans side by side, for people."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from umadvise.records.units import format_bytes, format_duration_ns
from umadvise.reports.differences.quantities import ChangedSubject, Difference, Number, Quantity, Unit
from umadvise.reports.reporters.printing import DEFAULT_WIDTH, TABLE_WIDTH, new_grid, printed

MOST_SUBJECTS_SHOWN = 8
_SUBJECTS = {"module": "Modules that changed most", "tensor": "Tensors that changed most"}


def render(difference: Difference, width: int = DEFAULT_WIDTH) -> str:
    """What both were made with, the numbers that are not the same, who changed most, and the conditions."""
    return printed(_parts(difference), width, table_width=TABLE_WIDTH)


def _parts(difference: Difference) -> Iterator[RenderableType]:
    what = "runs" if difference.kind == "profile" else "plans"
    yield Text(f"Two {what}:", style="bold")
    for word, name in (("here", difference.here), ("there", difference.there)):
        yield Text(f"  {word:<7}{name}", no_wrap=True, overflow="ignore")
    yield from map(Text, difference.circumstances)
    changed = [each for each in difference.quantities if _tells(each)]
    yield Text()
    if changed:
        grid = new_grid("Of a step, what is not the same", ("",), ("here", "there", "change"))
        grid.add_column("name", no_wrap=True)
        for each in changed:
            grid.add_row(
                each.words, _value(each.unit, each.here), _value(each.unit, each.there), _change(each), each.name
            )
        yield grid
    else:
        yield Text("All numbers are the same.")
    yield from _subjects(difference)
    if difference.conditions:
        yield Text()
    for condition in difference.conditions:
        yield Text(f'{"failed" if condition.holds else "passed"}: --fail-if "{condition.condition}"')


def _tells(quantity: Quantity) -> bool:
    """Whether the two are not the same; where there was nothing of it, nobody need know what that came to."""
    return (quantity.here or None) != (quantity.there or None)


def _subjects(difference: Difference) -> Iterator[RenderableType]:
    for kind, title in _SUBJECTS.items():
        rows = [each for each in difference.subjects if each.kind == kind][:MOST_SUBJECTS_SHOWN]
        if not rows:
            continue
        timed = difference.kind == "profile"
        headings = ("moved here", "there", *(("waits here", "there") if timed else ()))
        grid = new_grid(title, (kind,), headings)
        for each in rows:
            grid.add_row(each.name, *_cells(each, timed=timed))
        yield from (Text(), grid)


def _cells(subject: ChangedSubject, *, timed: bool) -> tuple[str, ...]:
    moved = (_value("bytes", subject.here_bytes), _value("bytes", subject.there_bytes))
    return (*moved, _value("ns", subject.here_ns), _value("ns", subject.there_ns)) if timed else moved


def _value(unit: Unit, value: Number | None) -> str:
    if value is None:
        return "-"
    if unit == "count":
        return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    return format_bytes(round(value)) if unit == "bytes" else format_duration_ns(round(value))


def _change(quantity: Quantity) -> str:
    return "-" if quantity.change is None else f"{quantity.change:+.1%}"
