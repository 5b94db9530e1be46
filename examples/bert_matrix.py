"""The paper's grid on this device: figures 6 to 9 and table 3 of Choi and Lee (Applied Sciences 2021, section 5).

Parameters and inputs in three advices each, intermediates in five: 45 runs in memory that holds everything (figures 6
and 7, against PyTorch without unified memory) and 45 in memory that does not (figures 8 and 9, against no advice).
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from bert_row import Row, read, run
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from umadvise.records.counters import BytesByCause
from umadvise.records.units import format_bytes, parse_bytes

LEGENDS = {"preferredlocation": "PL", "noadvise": "NA", "readmostly": "RM"}  # the paper's own
INTERMEDIATES = ("noadvise", "preferredlocation", "accessby", "readmostly", "prefetch")


class Point(NamedTuple):
    """The advice of one run, by role."""

    parameter: str
    input: str
    intermediate: str


GRID = [Point(*advices) for advices in product(LEGENDS, LEGENDS, INTERMEDIATES)]
NO_ADVICE = Point("noadvise", "noadvise", "noadvise")
Times = Mapping[Point, float]


class RunFailedError(Exception):
    """A run of the grid ended early."""


def step_seconds(row: Row) -> float:
    """Mean over the steps but the first, which also loads kernels and makes the optimizer's state."""
    return mean(row.step_ns[1:]) / 1e9


def figure(title: str, values: Times, digits: int) -> Table:
    """One line a legend (parameters-inputs), one column an advice for intermediates: the figure as numbers."""
    table = Table(title=title)
    table.add_column("parameters-inputs")
    for intermediate in INTERMEDIATES:
        table.add_column(intermediate, justify="right")
    for parameter, input_ in product(LEGENDS, LEGENDS):
        cells = (f"{values[Point(parameter, input_, intermediate)]:.{digits}f}" for intermediate in INTERMEDIATES)
        table.add_row(f"{LEGENDS[parameter]}-{LEGENDS[input_]}", *cells)
    return table


def percent_above(times: Times, reference: float) -> Times:
    """How much longer each point's step takes than the reference, in percent."""
    return {point: 100 * (seconds / reference - 1) for point, seconds in times.items()}


def percent_below(times: Times, reference: float) -> Times:
    """How much shorter each point's step takes than the reference, in percent."""
    return {point: 100 * (1 - seconds / reference) for point, seconds in times.items()}


def fault_table(rows: Mapping[Point, Row], times: Times) -> Table:
    """Table 3: no advice, the fastest and the slowest point. Bytes stand where the paper has seconds of migration."""
    best, worst = min(times, key=times.__getitem__), max(times, key=times.__getitem__)
    table = Table(title="Table 3: page faults and data migration")
    table.add_column("")
    columns = (("no advice", NO_ADVICE), ("best", best), ("worst", worst))
    for name, point in columns:
        table.add_column(f"{name}\n{_legend(point)}", justify="right")
    counters = [rows[point].counters for _, point in columns]
    table.add_row("page fault groups", *(str(each.fault_groups) if each else "-" for each in counters))
    table.add_row("device to host", *(_moved(each.bytes_d2h) if each else "-" for each in counters))
    table.add_row("host to device", *(_moved(each.bytes_h2d) if each else "-" for each in counters))
    return table


def _legend(point: Point) -> str:
    return f"{LEGENDS[point.parameter]}-{LEGENDS[point.input]}, {point.intermediate}"


def _moved(moved: BytesByCause | None) -> str:
    return format_bytes(moved.total if moved else None)


def tables(original: Row, fitting: Mapping[Point, Row], limited: Mapping[Point, Row]) -> Iterator[Table]:
    """Everything the grid shows."""
    inside = {point: step_seconds(row) for point, row in fitting.items()}
    outside = {point: step_seconds(row) for point, row in limited.items()}
    reference = step_seconds(original)
    yield figure(f"Figure 6: seconds a step in memory that holds it all (original: {reference:.3f} s)", inside, 3)
    yield figure("Figure 7: increase by unified memory, %", percent_above(inside, reference), 1)
    yield figure("Figure 8: seconds a step in memory that does not hold it", outside, 3)
    yield figure("Figure 9: reduction by advice, %", percent_below(outside, outside[NO_ADVICE]), 1)
    yield fault_table(limited, outside)


class Grid:
    """Runs points of the grid, each in a process of its own."""

    def __init__(self, options: argparse.Namespace, folder: Path, progress: Progress) -> None:
        """Takes the options of bert_large.py; rows and logs go into the folder."""
        self._folder = folder
        self._progress = progress
        self._task = progress.add_task("original", total=1 + 2 * len(GRID))
        self._cuda = options.device == "cuda"
        self._common = [
            *("--size", options.size, "--steps", str(options.steps), "--seed", str(options.seed)),
            *("--batch-size", str(options.batch_size), "--seq-length", str(options.seq_length)),
        ]

    def original(self) -> Row:
        """PyTorch without unified memory."""
        return self._run("original", ["--no-unified", "--device", "cuda" if self._cuda else "cpu"])

    def rows(self, name: str, limit_bytes: int) -> dict[Point, Row]:
        """Runs all 45 points of the grid with that much memory on the device."""
        device = ["--device", "cuda", "--budget"] if self._cuda else ["--device", "emulated", "--capacity"]
        rows = {}
        for point in GRID:
            advice = (f"--{role}-advice={value}" for role, value in point._asdict().items())
            words = ["--unified", *device, str(limit_bytes), *advice]
            rows[point] = self._run(f"{name} {_legend(point)}", words)
        return rows

    def _run(self, name: str, words: list[str]) -> Row:
        self._progress.update(self._task, description=name)
        log = self._folder / "run.log"
        for _ in run([*words, *self._common], self._folder / "row.json", log):
            pass
        row = read(self._folder / "row.json")
        if row is None or row.error is not None:
            raise RunFailedError(f"{name} failed: {log.read_text()[-2000:]}")
        self._progress.advance(self._task)
        return row


def run_matrix(options: argparse.Namespace) -> None:
    """Runs the grid and prints it: --capacity (on a GPU --budget) is the memory that does not hold it, else a third."""
    with tempfile.TemporaryDirectory() as folder, Progress(console=Console(stderr=True)) as progress:
        grid = Grid(options, Path(folder), progress)
        original = grid.original()
        needed_bytes = original.peak_bytes or 0
        given = options.budget if options.device == "cuda" else options.capacity
        limit_bytes = parse_bytes(given) if given is not None else needed_bytes // 3
        fitting = grid.rows("all fits", 2 * needed_bytes)
        limited = grid.rows("limited", limit_bytes)
    console = Console()
    console.print(f"limited to {format_bytes(limit_bytes)} of the {format_bytes(needed_bytes)} needed")
    for table in tables(original, fitting, limited):
        console.print(table)
