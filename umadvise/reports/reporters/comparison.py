"""Planners side by side, for people: a table a budget, why some cannot, and drawings."""

import math
import statistics
from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from umadvise.planners.judging.comparison import PlannerComparison
from umadvise.planners.judging.score import Score
from umadvise.records.plan import ActionKind, Plan
from umadvise.records.units import format_bytes, format_duration_ns
from umadvise.reports.reporters import svg
from umadvise.reports.reporters.printing import TABLE_WIDTH, new_grid, printed

DEFAULT_WIDTH = 120
CANNOT = "x"
_HEADINGS = (
    "peak",
    "step",
    "overhead",
    "to device",
    "to host",
    "recomputed",
    "frag-\nmented",
    "stalled",
    "regret",
    "planning",
)
_GIB = 1 << 30
_TIMES_THE_MEDIAN = 4
_LEAST_MOST = 100.0


def render(comparison: PlannerComparison, width: int = DEFAULT_WIDTH) -> str:
    """A table for each budget; below it why planners have an "x"."""
    return printed(_parts(comparison), width, table_width=TABLE_WIDTH)


def _parts(comparison: PlannerComparison) -> Iterator[RenderableType]:
    yield Text(
        f"{comparison.workload or 'the step'} on {comparison.device}, simulated: in unlimited memory "
        f"{format_duration_ns(comparison.unlimited_ns)} and {format_bytes(comparison.peak_bytes)}"
    )
    for budget_bytes, group in groupby(comparison.scores, key=lambda score: score.budget_bytes):
        scores = list(group)
        title = f"In {format_bytes(budget_bytes)}{_part(budget_bytes, comparison.peak_bytes)}"
        grid = new_grid(title, ("planner",), _HEADINGS)
        for score in scores:
            grid.add_row(_name(score), *_cells(score))
        yield from (Text(), grid)
        bounds = {score.bound: score.bound_ns for score in scores if score.bound is not None}
        for bound, bound_ns in bounds.items():
            yield Text(f"Regret is over the bound of {format_duration_ns(bound_ns)} ({bound}).")
        for score in scores:
            if score.problem is not None:
                yield Text(f"{score.planner}: {score.problem}")
    if comparison.missing:
        yield Text(f"\nInterrupted: {comparison.missing} more were not ready.")


def render_plan(plan: Plan) -> str:
    """A line about what a plan does."""
    counted = Counter(plan.actions.kind.tolist())
    what = ", ".join(f"{counted[kind]:,} {ActionKind(kind).name.lower()}" for kind in sorted(counted))
    options = "".join(f" {name}={value}" for name, value in plan.options.items())
    return f"{plan.planner}{options}: {what or 'nothing has to move'}\n"


def draw(comparison: PlannerComparison) -> str:
    """Overhead against memory, and memory over time where that was asked for, as SVG."""
    names = list(dict.fromkeys(score.planner for score in comparison.scores))
    overheads = {
        name: [
            (score.budget_bytes / _GIB, 100 * score.overhead)
            for score in reversed(comparison.scores)
            if score.planner == name and score.overhead is not None
        ]
        for name in names
    }
    where = f"{comparison.workload or 'the step'} on {comparison.device}"
    values = [value for points in overheads.values() for _, value in points]
    # One planner that thrashes would press all others down to the axis.
    most = max(_TIMES_THE_MEDIAN * statistics.median(values), _LEAST_MOST) if values else math.inf
    cut = any(value > most for value in values)
    panels = [
        svg.Panel(
            title=f"Overhead over unlimited memory: {where}",
            x_label="budget, GiB",
            y_label="overhead, % (some have more)" if cut else "overhead, %",
            series=[
                svg.Series(name, points, names.index(name), marks=True) for name, points in overheads.items() if points
            ],
            x_least=min((score.budget_bytes for score in comparison.scores), default=0) / _GIB,
            y_most=most,
        )
    ]
    if comparison.curves:
        size = comparison.curves[0].budget_bytes
        panels.append(
            svg.Panel(
                title=f"Memory over time, budget {format_bytes(size)}: {where}",
                x_label="time, ms",
                y_label="on the device, GiB",
                series=[
                    svg.Series(
                        curve.planner,
                        [(at / 1e6, size / _GIB) for at, size in zip(curve.time_ns, curve.bytes, strict=True)],
                        names.index(curve.planner),
                        steps=True,
                    )
                    for curve in comparison.curves
                ],
                limit=(size / _GIB, "budget"),
            )
        )
    return svg.render(panels)


def _name(score: Score) -> str:
    """Options below."""
    return score.planner.replace(":", ":\n  ").replace(",", ",\n  ")


def _part(budget_bytes: int, peak_bytes: int) -> str:
    return f", {budget_bytes / peak_bytes:.0%} of that" if peak_bytes else ""


def _cells(score: Score) -> tuple[str, ...]:
    if score.problem is not None:
        return (CANNOT,) * (len(_HEADINGS))
    return (
        format_bytes(score.peak_bytes),
        format_duration_ns(score.step_ns),
        _percent(score.overhead),
        format_bytes(score.bytes_h2d),
        format_bytes(score.bytes_d2h),
        format_duration_ns(score.recompute_ns),
        format_bytes(score.fragmentation_bytes),
        "-" if score.stalls is None or not score.step_ns else f"{score.stalls.total_ns / score.step_ns:.1%}",
        _percent(score.regret),
        format_duration_ns(score.planning_ns),
    )


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.1%}"
