"""The tables of the page: what the terminal's report has, and what it has no room for."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from umadvise.records.fault_profile import FaultProfile, ResidentTally, Table
from umadvise.records.step_picture import STALLS, StepPicture
from umadvise.records.units import format_bytes, format_duration_ns
from umadvise.reports.html.markup import MOST_ROWS, Cell, Row, table
from umadvise.reports.reporters.seconds import WORDS, odd_steps, steps_of
from umadvise.reports.reporters.tables import (
    PerStep,
    columns_of,
    op_cells,
    percent_of,
    scales_of,
    tensor_cells,
    word,
)

Line = TypeVar("Line", bound=ResidentTally)


def time_cell(time_ns: int | None) -> Cell:
    """A duration in nanoseconds; None is unknown."""
    return Cell(format_duration_ns(time_ns), time_ns)


def bytes_cell(bytes_: int | None) -> Cell:
    """Bytes; None is unknown."""
    return Cell(format_bytes(bytes_), bytes_)


def count_cell(number: int | None) -> Cell:
    """A number of things; None is unknown."""
    return Cell("-" if number is None else f"{number:,}", number)


def by_subject(profile: FaultProfile) -> Iterator[str]:
    """What happened by module, tensor, op, role and phase, for one step."""
    tables, scales = profile.tables, scales_of(profile)
    if tables is None:
        return
    yield _sums("By module, per step", ("module",), tables.module, lambda row: (word(row.module),), scales)
    yield _sums("By tensor, per step", ("tensor",), tables.tensor, tensor_cells, scales)
    yield _sums("By op, per step", ("op", "phase"), tables.op, op_cells, scales)
    yield _sums("By role, per step", ("role",), tables.role, lambda row: (word(row.role),), scales)
    yield _sums("By phase, per step", ("phase",), tables.phase, lambda row: (word(row.phase),), scales)


def _sums(
    caption: str,
    subject: tuple[str, ...],
    sums: Table[Line],
    names: Callable[[Line], tuple[str, ...]],
    scales: Mapping[str, PerStep],
) -> str:
    shown = sums.rows[:MOST_ROWS]
    columns = columns_of(shown, scales)

    def cells(row: Line) -> Iterator[Cell]:
        for column in columns:
            total, scale = column.total(row), scales[column.about]
            part = total / scale.duration_ns if column.heading.endswith("of step") and total else None
            yield Cell(column.words(scale, total), total, part)

    hidden = len(sums.rows) - len(shown)
    rest = " and a rest too small to keep" if sums.rest is not None else ""
    left_out = f"{hidden:,} more{rest} are in the profile only." if hidden or rest else ""
    headings = (*subject, *(column.heading.replace("\n", " ") for column in columns))
    return table(caption, headings, ((*names(row), *cells(row)) for row in shown), left_out)


def steps(profile: FaultProfile) -> str:
    """A row a step that the profile keeps."""
    swaps = any(step.swaps is not None for step in profile.steps)
    headings = ["step", "time", "fault service", "fault groups"]
    headings += ["waits for copies", "waits for room", "stood still", "swapped in", "swapped out"] if swaps else []

    def rows() -> Iterator[Row]:
        for step in profile.steps:
            counted = step.counters
            row: list[str | Cell] = [Cell(str(step.index), step.index), time_cell(step.duration_ns)]
            row += [time_cell(counted.fault_service_ns), count_cell(counted.fault_groups)]
            if step.swaps is not None:
                copies, room = step.swaps.wait_copy_ns, step.swaps.wait_room_ns
                part = (copies + room) / step.duration_ns if step.duration_ns else None
                row += [
                    time_cell(copies),
                    time_cell(room),
                    Cell(percent_of(copies + room, step.duration_ns), part, part),
                ]
                row += [bytes_cell(step.swaps.swap_in_bytes), bytes_cell(step.swaps.swap_out_bytes)]
            yield row

    kept, all_ = len(profile.steps), profile.step_count
    return table(
        "Each step", headings, rows(), f"The first and the latest {kept:,} of {all_:,}." if kept < all_ else ""
    )


def seconds(profile: FaultProfile) -> str:
    """What the time of each step went into, where that is known; kinds that never came up are left out."""
    steps = steps_of(profile)
    kinds = [field for field in WORDS if any(getattr(each.times, field) for each in steps)]
    rows = (
        (
            Cell(str(each.index), each.index),
            time_cell(each.duration_ns),
            *(time_cell(getattr(each.times, field)) for field in kinds),
            time_cell(each.unexplained_ns),
        )
        for each in steps
    )
    headings = ("step", "time", *(WORDS[field] for field in kinds), "unexplained")
    return table("Where each step's time went", headings, rows, " ".join(f"{line}." for line in odd_steps(steps)))


def tensors(picture: StepPicture) -> str:
    """The largest tensors of the step, and how long they lived in it."""
    rows = (
        (
            picture.names[each.name] or "(none)",
            word(each.role),
            bytes_cell(each.bytes),
            time_cell(each.start_ns),
            time_cell(each.end_ns),
            time_cell(each.end_ns - each.start_ns),
        )
        for each in picture.tensors
    )
    return table("Largest tensors and their lifetimes", ("tensor", "role", "bytes", "from", "to", "lived"), rows)


_STALL_WORDS = {"fault_group": "fault service", "wait_copy": "wait for a copy", "wait_room": "wait for room"}


def stalls(picture: StepPicture) -> str:
    """The longest times that ops stood still in the step."""
    found = sorted((span for span in picture.spans if span.kind in STALLS), key=lambda span: -span.duration_ns)
    rows = (
        (
            picture.names[span.op] or "(none)",
            _STALL_WORDS[span.kind],
            picture.names[span.subject] or "(none)",
            span.cause.replace("_", " "),
            time_cell(span.start_ns),
            time_cell(span.duration_ns),
        )
        for span in found[:MOST_ROWS]
    )
    return table("Longest stalls", ("op", "stall", "tensor", "cause", "at", "time"), rows)


def predicted(profile: FaultProfile) -> str:
    """What the simulator says of each rung, beside what was measured on those that the run was on."""
    measured = _measured(profile)
    rows = []
    for each in profile.predictions:
        if each.more_bytes or each.change is not None:  # of another run than this one
            continue
        steps_ns = measured.get(each.rung, [])
        mean_ns = sum(steps_ns) // len(steps_ns) if steps_ns else None
        apart = (each.step_ns - mean_ns) / mean_ns if mean_ns else None
        beside = Cell("-" if apart is None else f"{apart:+.1%}", apart)
        row: Row = (each.rung, time_cell(each.step_ns), time_cell(mean_ns), count_cell(len(steps_ns)), beside)
        rows.append(row)
    headings = ("rung", "predicted step", "measured step", "steps measured", "prediction is off by")
    return table("A step by rung", headings, rows)


def _measured(profile: FaultProfile) -> dict[str, list[int]]:
    """Durations of the steps that the profile keeps, by the rung that they were on, without the first of each."""
    found: dict[str, list[int]] = {}
    for index, change in enumerate(profile.rungs):
        ends = profile.rungs[index + 1].step if index + 1 < len(profile.rungs) else profile.step_count + 1
        found.setdefault(change.rung, []).extend(
            step.duration_ns for step in profile.steps if change.step < step.index < ends
        )
    return found
