"""What the demo shows of its runs: pure functions of the rows that examples/bert_large.py wrote."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_row import Row, Swaps
from rich.table import Table

from umadvise.records.counters import BytesByCause, Counters
from umadvise.records.units import format_bytes


@dataclass(frozen=True)
class DemoRun:
    """One run of the demo.

    Attributes:
        name: what the table calls it.
        options: its options of examples/bert_large.py.
        limited: it gets a third of the memory that the first run took.
        runs_out: it is meant to run out of memory.
    """

    name: str
    options: tuple[str, ...]
    limited: bool = True
    runs_out: bool = False

    @property
    def managed(self) -> bool:
        """It uses unified memory, or whatever its policy says."""
        return "--no-unified" not in self.options

    @property
    def chooses(self) -> bool:
        """Its policy chooses a rung of the ladder."""
        return "--policy=auto" in self.options

    @property
    def file_stem(self) -> str:
        """Its name as a file's."""
        return "-".join("".join(letter if letter.isalnum() else " " for letter in self.name.lower()).split())


@dataclass(frozen=True)
class DemoResult:
    """What a run left behind: its row, None when it died before it wrote one, and its log."""

    run: DemoRun
    row: Row | None
    log: Path

    @property
    def as_meant(self) -> bool:
        """It finished, or ran out of memory where it should."""
        return self.row is not None and (self.row.error is not None) == self.run.runs_out


def losses_differ(results: Sequence[DemoResult]) -> bool:
    """Whether two runs that finished have losses that differ in any bit."""
    return len({tuple(result.row.losses_hex) for result in results if result.row and result.row.error is None}) > 1


def table(title: str, results: Sequence[DemoResult]) -> Table:
    """One line a run. Losses are compared with those of the first run."""
    rendered = Table(title=title)
    rendered.add_column("run")
    for heading in ("losses", "equal?", "step times (s)", "faults", "to device", "to host", "evictions", "peak"):
        rendered.add_column(heading, justify="right")
    rendered.add_column("report")
    reference = results[0].row
    for result in results:
        rendered.add_row(result.run.name, *_cells(result.row, reference))
    return rendered


def _cells(row: Row | None, reference: Row | None) -> Iterator[str]:
    if row is None or row.error is not None:
        yield "failed" if row is None else "out of memory"
        yield from ("-",) * 6
        yield format_bytes(row.peak_bytes) if row else "-"
        yield "-"
        return
    yield " ".join(f"{float.fromhex(loss):.4f}" for loss in row.losses_hex)
    yield "-" if row is reference or reference is None else "yes" if row.losses_hex == reference.losses_hex else "NO"
    yield " ".join(f"{step_ns / 1e9:.1f}" for step_ns in row.step_ns)
    counters = row.counters or Counters()
    swaps = row.swaps or Swaps(bytes_h2d=0, bytes_d2h=0, evictions=0)
    yield _number(counters.fault_groups)
    yield _total(counters.bytes_h2d, swaps.bytes_h2d)
    yield _total(counters.bytes_d2h, swaps.bytes_d2h)
    yield _number(None if counters.evictions is None else counters.evictions + swaps.evictions)
    yield format_bytes(row.peak_bytes)
    yield Path(row.report).name if row.report else "-"


def _number(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _total(paged: BytesByCause | None, swapped_bytes: int) -> str:
    paged_bytes = None if paged is None else paged.total
    return format_bytes(None if paged_bytes is None else paged_bytes + swapped_bytes)


def notes(results: Sequence[DemoResult]) -> Iterator[str]:
    """What the table has no room for, a line each."""
    for result in results:
        if result.row is not None and result.row.report is not None:
            yield f"{result.run.name}: umadvise report {result.row.report}"
        if result.row is not None and result.row.error is not None:
            yield f"{result.run.name}: {result.row.error}"
        if result.row is not None and result.run.chooses and result.row.rungs:
            last = result.row.rungs[-1]
            yield f"{result.run.name} ended on {last.rung}, from step {last.step} on: {last.reason}"
        if not result.as_meant:
            yield f"{result.run.name} did not end as it should: see {result.log}"
    if losses_differ(results):
        yield "Losses differ: they should be equal to the last bit."
    elif sum(result.row is not None and result.row.error is None for result in results) > 1:
        yield "All losses are equal to the last bit."
