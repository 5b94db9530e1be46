"""What a simulator predicts of a step, for people: one line for each way to run it."""

from rich.text import Text

from umadvise.planners.judging.prediction import PLAN, SWAP, PredictedWay, StepPrediction
from umadvise.records.units import format_bytes, format_duration_ns
from umadvise.reports.reporters.printing import DEFAULT_WIDTH, new_grid, printed

_HEADINGS = ("step", "compute", "stalled", "to device", "to host", "faults", "evictions", "memory")
_LABELS = {
    "resident": "resident",
    "noadvise": "unified, no advice",
    "advise": "unified, advice by role",
    "advice": "unified, your advice",
    SWAP: "swap on demand",
    PLAN: "your plan",
}


def render(prediction: StepPrediction, width: int = DEFAULT_WIDTH) -> str:
    """A table of the ways, and below it why the others do not work."""
    size = format_bytes(prediction.budget_bytes)
    title = f"{prediction.workload or 'the step'} in {size} on {prediction.device}, simulated"
    grid = new_grid(title, ("way",), _HEADINGS)
    for way in prediction.ways:
        if way.problem is None:
            grid.add_row(_LABELS[way.name], *_cells(way))
    problems = [Text(f"{_LABELS[way.name]}: {way.problem}{_need(way)}") for way in prediction.ways if way.problem]
    return printed([*([grid] if grid.rows else []), *problems], width)


def _need(way: PredictedWay) -> str:
    return "" if way.needed_bytes is None else f", it needs {format_bytes(way.needed_bytes)}"


def _cells(way: PredictedWay) -> tuple[str, ...]:
    return (
        format_duration_ns(way.step_ns),
        format_duration_ns(way.compute_ns),
        "-" if way.stalls is None or not way.step_ns else f"{way.stalls.total_ns / way.step_ns:.1%}",
        format_bytes(way.bytes_h2d),
        format_bytes(way.bytes_d2h),
        "-" if way.fault_groups is None else f"{way.fault_groups:,}",
        "-" if way.evictions is None else f"{way.evictions:,}",
        format_bytes(way.needed_bytes),
    )
