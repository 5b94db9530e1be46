"""What the demo shows of its runs: pure functions of the rows and profiles that examples/bert_large.py wrote."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_row import Row
from rich.box import SIMPLE_HEAD
from rich.table import Table

from umadvise.records.fault_profile import FaultProfile, MeasuredStep
from umadvise.records.units import format_bytes, format_duration_ns
from umadvise.reports.reporters import svg
from umadvise.reports.reporters.running import moved_bytes, waits_ns
from umadvise.reports.reporters.tables import percent_of

PART = 3
"""The runs after the first get the memory that this one took, divided by so much."""


@dataclass(frozen=True)
class DemoRun:
    """One run of the demo.

    Attributes:
        name: what the table calls it.
        options: its options of examples/bert_large.py.
        steps: number of steps that it trains.
        limited: it gets a third of the memory that the first run took.
        runs_out: it is meant to run out of memory.
        naive: it is what others are compared with: the driver alone decides what lies where.
    """

    name: str
    options: tuple[str, ...]
    steps: int
    limited: bool = True
    runs_out: bool = False
    naive: bool = False

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
    """What a run left behind: its row, None when it died before it wrote one, its log, and its profile, if any."""

    run: DemoRun
    row: Row | None
    log: Path
    profile: FaultProfile | None = None

    @property
    def as_meant(self) -> bool:
        """It finished, or ran out of memory where it should."""
        return self.row is not None and (self.row.error is not None) == self.run.runs_out

    @property
    def finished(self) -> Row | None:
        """The row of a run whose steps have all ended; None where they have not."""
        return self.row if self.row is not None and self.row.error is None else None

    @property
    def last(self) -> MeasuredStep | None:
        """The last step of a run that finished and has a profile: by then plans drive."""
        return self.profile.steps[-1] if self.finished and self.profile and self.profile.steps else None


@dataclass(frozen=True)
class DemoCard:
    """The card whose times the emulated device keeps.

    Attributes:
        name: the card in the catalogue.
        label: the card's name in full.
    """

    name: str
    label: str


def losses_differ(results: Sequence[DemoResult]) -> bool:
    """Whether two runs that finished have losses that differ in any bit, as far as both went."""
    losses = [result.finished.losses_hex for result in results if result.finished]
    longest = max(losses, key=len, default=[])
    return any(each != longest[: len(each)] for each in losses)


def unlimited_ns(results: Sequence[DemoResult], card: DemoCard | None) -> int | None:
    """Nanoseconds of a step of plain PyTorch with all the memory it wants; None where that is not known.

    On a GPU that is measured. In a card's time it is what the ops of the naive run take there, which are plain
    PyTorch's: they wait for nothing where there is room for everything.
    """
    if card is None:
        return results[0].finished.step_ns[-1] if results[0].finished else None
    naive = next((result.last for result in results if result.run.naive), None)
    return naive.times.compute_ns if naive and naive.times else None


def table(title: str, results: Sequence[DemoResult], card: DemoCard | None) -> Table:
    """One line a run, about its last step. The losses of all its steps are compared with those of the first run."""
    rendered = Table(title=title, box=SIMPLE_HEAD, collapse_padding=True)
    rendered.add_column("run")
    headings = ("steps", "last loss", "equal?", "step", "x plain", "waiting", "faults", "to device", "to host", "peak")
    for heading in headings:
        rendered.add_column(heading, justify="right")
    plain_ns = unlimited_ns(results, card)
    for result in results:
        rendered.add_row(result.run.name, *_cells(result, results[0], plain_ns))
    return rendered


def _cells(result: DemoResult, reference: DemoResult, plain_ns: int | None) -> Iterator[str]:
    row, last = result.finished, result.last
    if row is None:
        yield "-"
        yield "refused" if result.row else "failed"
        yield from ("-",) * 7
        yield format_bytes(result.row.peak_bytes) if result.row else "-"
        return
    yield str(len(row.losses_hex))
    yield f"{float.fromhex(row.losses_hex[-1]):.4f}"
    yield (
        "-"
        if result is reference or reference.finished is None
        else "NO"
        if losses_differ([reference, result])
        else "yes"
    )
    step_ns = plain_ns if last is None else last.duration_ns
    yield format_duration_ns(step_ns)
    yield f"{step_ns / plain_ns:.2f}" if step_ns and plain_ns else "-"
    waited_ns = waits_ns(last) if last else None
    yield "-" if last is None or waited_ns is None else percent_of(waited_ns, last.duration_ns)
    yield "-" if last is None or last.counters.fault_groups is None else f"{last.counters.fault_groups:,}"
    yield from map(format_bytes, moved_bytes(last) if last else (None, None))
    yield format_bytes(row.peak_bytes)


def factor(results: Sequence[DemoResult], card: DemoCard) -> str | None:
    """By how much this machine computes the step slower than the card, in words; None where a run is missing."""
    here, card_ns = results[0].finished, unlimited_ns(results, card)
    if here is None or not card_ns:
        return None
    here_ns = min(here.step_ns)
    return (
        f"Times are as on this card, {card.label}: what its rates say for each op, its link for each copy, its driver "
        f"for each page fault (`umadvise devices {card.name}` shows every number with its source). A step of plain "
        f"PyTorch takes {format_duration_ns(card_ns)} by these rates and {format_duration_ns(here_ns)} here: this "
        f"machine computes it {here_ns / card_ns:.0f} times slower. Copies and faults made as much slower would give "
        "the same factors (x plain)."
    )


def conclusion(results: Sequence[DemoResult], plain_ns: int | None) -> str | None:
    """What the table says, in one sentence; None where runs that it is about did not end as they should."""
    needs = results[0].finished
    steps = {result.run: last.duration_ns for result in results if (last := result.last) is not None}
    naive = next((run for run in steps if run.naive), None)
    others = [run for run in steps if not run.naive]
    refused = next((result.row for result in results if result.run.runs_out and result.as_meant), None)
    if needs is None or needs.peak_bytes is None or refused is None or naive is None or not others or not plain_ns:
        return None
    best = min(others, key=lambda run: steps[run])
    losses = "other losses" if losses_differ(results) else "the same losses to the last bit"
    ratio = steps[naive] / steps[best]
    beside = f"{ratio:.1f} times as fast as" if ratio > 1 else "no faster than"
    budget, needed = format_bytes(needs.peak_bytes // PART), format_bytes(needs.peak_bytes)
    return (
        f"In {budget} of the {needed} that it needs, plain PyTorch runs out of memory, and {best.name} trains on with "
        f"{losses}: a step takes {steps[best] / plain_ns:.1f} times as long as in all the memory, {beside} "
        f"{naive.name} ({steps[naive] / plain_ns:.1f} times as long)."
    )


def draw(title: str, results: Sequence[DemoResult], plain_ns: int | None) -> str:
    """Each step of each run as a multiple of plain PyTorch's, as SVG."""
    lines = [
        svg.Series(
            result.run.name,
            [(float(number), step.duration_ns / plain_ns) for number, step in enumerate(result.profile.steps, 1)],
            style,
            marks=True,
        )
        for style, result in enumerate(result for result in results if result.last)
        if result.profile is not None and plain_ns
    ]
    panel = svg.Panel(
        title=title, x_label="step", y_label="times a step of plain PyTorch", series=lines, limit=(1.0, "plain PyTorch")
    )
    return svg.render([panel], conclusion(results, plain_ns))


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
    elif sum(result.finished is not None for result in results) > 1:
        yield "All losses are equal to the last bit."
