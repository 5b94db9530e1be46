"""What runs on a card, for people: the largest batch first, then tables of batches and rungs, and a drawing."""

from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.text import Text

from umadvise.records.fit_report import BatchFit, FitReport, LargestFit, RungFit
from umadvise.records.units import format_bytes, format_duration_ns
from umadvise.reports.reporters import svg
from umadvise.reports.reporters.printing import DEFAULT_WIDTH, TABLE_WIDTH, new_grid, printed

CANNOT = "x"
_GIB = 1 << 30


def render(report: FitReport, width: int = DEFAULT_WIDTH) -> str:
    """The largest batch on each rung, what a step of each batch takes, and why some do not run."""
    return printed(_parts(report), width, table_width=TABLE_WIDTH)


def _parts(report: FitReport) -> Iterator[RenderableType]:
    yield Text(f"{_title(report)}, predicted", style="bold")
    yield Text(f"Largest batch: {', '.join(map(_largest, report.largest))}")
    fastest = max(_running(report), key=lambda pair: pair[1].samples_per_s or 0, default=None)
    if fastest is not None:
        batch, fit = fastest
        yield Text(f"Fastest: {_speed(fit)} samples a second, batch {batch.batch} on {fit.rung}")
    yield Text("x: by how many times a step is as long as with everything on the device, however much that is.")
    rungs = [each.rung for each in report.largest]
    steps = new_grid("A step", ("batch",), ("tensors",))
    speeds = new_grid("Samples a second", ("batch",))
    for rung in rungs:
        steps.add_column(rung, justify="right", no_wrap=True)
        speeds.add_column(rung, justify="right", no_wrap=True)
    for batch in report.batches:
        steps.add_row(str(batch.batch), format_bytes(batch.peak_bytes), *(_step(batch.on(rung)) for rung in rungs))
        speeds.add_row(str(batch.batch), *(_speed(batch.on(rung)) for rung in rungs))
    yield from (Text(), steps, Text(), speeds)
    refusals = [_refusal(report, rung) for rung in rungs]
    if any(refusals):
        yield Text()
    yield from (Text(each) for each in refusals if each)


def draw(report: FitReport) -> str:
    """Samples a second, and the memory that tensors need, against the batch, as SVG."""
    rungs = [each.rung for each in report.largest]

    def panel(title: str, label: str, value: Callable[[RungFit], float | None]) -> svg.Panel:
        lines = {
            rung: [(float(each.batch), found) for each in report.batches if (found := value(each.on(rung))) is not None]
            for rung in reversed(rungs)  # what costs least is drawn over the others
        }
        return svg.Panel(
            title=f"{title}: {_title(report)}",
            x_label="batch",
            y_label=label,
            series=[
                svg.Series(rung, points, rungs.index(rung), marks=True) for rung, points in lines.items() if points
            ],
        )

    needed = [(float(each.batch), each.peak_bytes / _GIB) for each in report.batches]
    return svg.render(
        [
            panel("Speed", "samples a second", lambda fit: fit.samples_per_s),
            panel("Step", "times that with everything on the device", lambda fit: fit.times_unlimited),
            svg.Panel(
                title=f"All tensors at once: {_title(report)}",
                x_label="batch",
                y_label="GiB",
                series=[svg.Series("tensors", needed, len(rungs), marks=True)],
                limit=(report.budget_bytes / _GIB, "memory"),
            ),
        ]
    )


def _title(report: FitReport) -> str:
    card = f"the emulated device in the times of {report.device}" if report.emulated else report.device
    return f"{report.workload or 'the step'} in {format_bytes(report.budget_bytes)} of {card}"


def _running(report: FitReport) -> Iterator[tuple[BatchFit, RungFit]]:
    for batch in report.batches:
        yield from ((batch, each) for each in batch.rungs if each.problem is None)


def _largest(largest: LargestFit) -> str:
    if largest.batch is None:
        return f"none on {largest.rung}"
    return f"{largest.batch}{' or more' if largest.more else ''} on {largest.rung}"


def _step(fit: RungFit) -> str:
    if fit.problem is not None:
        return CANNOT
    times = "" if fit.times_unlimited is None else f" x{fit.times_unlimited:.2f}"
    return f"{format_duration_ns(fit.step_ns)}{times}"


def _speed(fit: RungFit) -> str:
    if fit.problem is not None or fit.samples_per_s is None:
        return CANNOT
    return f"{fit.samples_per_s:,.0f}" if fit.samples_per_s >= 100 else f"{fit.samples_per_s:.3g}"


def _refusal(report: FitReport, rung: str) -> str:
    """Why the smallest batch that does not run on a rung does not."""
    refused = next((each for each in report.batches if each.on(rung).problem is not None), None)
    return "" if refused is None else f"Batch {refused.batch} on {rung}: {refused.on(rung).problem}"
