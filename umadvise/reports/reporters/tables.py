"""The tables of the report: what happened by role, phase, module, tensor and op, per step."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from rich.table import Table as Grid
from rich.text import Text

from umadvise.records.fault_profile import FaultProfile, OpRow, ResidentTally, Table, Tables, Tally, TensorRow
from umadvise.records.units import BLOCK_BYTES, format_bytes, format_duration_ns
from umadvise.reports.reporters.printing import new_grid

MOST_ROWS_SHOWN = 12
Row = TypeVar("Row", bound=ResidentTally)


@dataclass(frozen=True)
class PerStep:
    """Turns sums over all steps into words about one step; None, which is unknown, becomes "-"."""

    steps: int
    duration_ns: int

    def count(self, total: int | None) -> str:
        """A number of things: whole from ten up, else with one decimal where it has one."""
        if total is None:
            return "-"
        mean = total / self.steps
        return f"{mean:,.0f}" if mean >= 10 or total % self.steps == 0 else f"{mean:.1f}"

    def bytes(self, total: int | None) -> str:
        """Bytes."""
        return format_bytes(None if total is None else total // self.steps)

    def time(self, total_ns: int | None) -> str:
        """A duration."""
        return format_duration_ns(None if total_ns is None else total_ns // self.steps)

    def share(self, total_ns: int | None) -> str:
        """Part of the step's time."""
        return "-" if total_ns is None or self.duration_ns == 0 else f"{total_ns / self.duration_ns:.1%}"


def percent_of(part_ns: int, whole_ns: int) -> str:
    """Part of a time."""
    return "-" if whole_ns == 0 else f"{part_ns / whole_ns:.1%}"


@dataclass(frozen=True)
class TallyColumn:
    """A column of numbers; one that is not there `always` is left out where it would be all zeros.

    `about` is "paging" or "ops", which CUDA counts in sampled steps only, "swaps", which are counted in every step, or
    "both".
    """

    heading: str
    total: Callable[[ResidentTally], int | None]
    words: Callable[[PerStep, int | None], str]
    always: bool
    about: str = "paging"


COLUMNS = (
    # On two lines, which leaves names more room. A peak is not per step, but of the step where it was highest.
    TallyColumn(
        "resident\npeak", lambda row: row.resident_peak_bytes, lambda _, peak: format_bytes(peak), True, "both"
    ),
    TallyColumn("ops\nrun", lambda row: row.compute_ns, PerStep.time, False, "ops"),
    TallyColumn("faults", lambda row: row.fault_groups, PerStep.count, always=True),
    TallyColumn("unordered", lambda row: row.unordered_faults, PerStep.count, always=False),
    TallyColumn("to device", lambda row: row.bytes_h2d.total, PerStep.bytes, always=True),
    TallyColumn("to host", lambda row: row.bytes_d2h.total, PerStep.bytes, always=True),
    TallyColumn("evictions", lambda row: row.evictions + (row.evictions_dropped or 0), PerStep.count, always=False),
    TallyColumn("collapses", lambda row: row.collapses, PerStep.count, always=False),
    TallyColumn("of step", lambda row: row.service_ns, PerStep.share, always=True),
    TallyColumn("swapped\nin", lambda row: row.swap_in_bytes, PerStep.bytes, True, "swaps"),
    TallyColumn("on\ndemand", lambda row: row.on_demand_bytes, PerStep.bytes, False, "swaps"),
    TallyColumn("swapped\nout", lambda row: row.swap_out_bytes, PerStep.bytes, True, "swaps"),
    TallyColumn("waits", lambda row: row.wait_copy_ns + row.wait_room_ns, PerStep.time, True, "swaps"),
    TallyColumn("waits\nof step", lambda row: row.wait_copy_ns + row.wait_room_ns, PerStep.share, True, "swaps"),
)
_MOST_NEIGHBOURS = 255


def scales_of(profile: FaultProfile) -> dict[str, PerStep]:
    """What columns are divided by, by what they are about; those that are missing have no meaning in this profile."""
    scales = {"both": PerStep(max(profile.step_count, 1), profile.duration_ns)}
    if profile.counted_steps:
        scales["ops"] = PerStep(profile.counted_steps, profile.counted_ns)
        if profile.pages:
            scales["paging"] = scales["ops"]
    if profile.swaps is not None:
        scales["swaps"] = scales["both"]
    return scales


def columns_of(rows: Sequence[ResidentTally], scales: Mapping[str, PerStep]) -> list[TallyColumn]:
    """The columns that say something of rows."""
    return [
        column
        for column in COLUMNS
        if column.about in scales and (column.always or any(column.total(row) for row in rows))
    ]


def grids(profile: FaultProfile, tables: Tables) -> Iterator[Grid]:
    """The five tables of a profile; each is two where it tells of paging and of swaps: names need the room."""
    scales = scales_of(profile)
    per_step = ", per step" if scales.keys() & {"paging", "swaps"} else ""
    yield from _grids(f"By role{per_step}", ("role",), tables.role, lambda row: (word(row.role),), scales)
    yield from _grids(f"By phase{per_step}", ("phase",), tables.phase, lambda row: (word(row.phase),), scales)
    yield from _grids(f"By module{per_step}", ("module",), tables.module, lambda row: (word(row.module),), scales)
    yield from _grids(f"By tensor{per_step}", ("tensor",), tables.tensor, tensor_cells, scales)
    yield from _grids(f"By op{per_step}", ("op", "phase"), tables.op, op_cells, scales)


def swap_sums(tables: Tables | None) -> Tally | None:
    """What events of explicit swaps add up to, as one row; None where nobody recorded any."""
    if tables is None:
        return None
    rows = [*tables.role.rows, *([tables.role.rest] if tables.role.rest else [])]
    if not rows:
        return None
    fields = ("on_demand_bytes", "on_demand_wait_ns", "wait_copy_ns", "wait_room_ns", "swap_in_bytes", "swap_out_bytes")
    return msgspec.structs.replace(rows[0], **{field: sum(getattr(row, field) for row in rows) for field in fields})


def word(name: str | None) -> str:
    """A name as a table shows it."""
    return "(none)" if name is None else "optimizer state" if name == "optimizer_state" else name


def tensor_name(row: TensorRow) -> str:
    """A tensor as a table shows it: its name, or where it was born."""
    if row.name is not None or row.birth_op is None:
        return word(row.name)
    return row.birth_op if row.birth_module is None else f"{row.birth_op} in {row.birth_module}"


def tensor_cells(row: TensorRow) -> tuple[str, ...]:
    """The tensor, with its role, its size, and with how many others it shares its block."""
    # One cell, so that a narrow terminal still has room for the name.
    return (f"{tensor_name(row)} ({word(row.role)}, {format_bytes(row.bytes)}{_neighbours(row)})",)


def _neighbours(row: TensorRow) -> str:
    """The driver moves blocks of 2 MiB: what is smaller has its neighbours' traffic too."""
    if row.neighbours == 0 or row.bytes >= BLOCK_BYTES:
        return ""
    more = "+" if row.neighbours == _MOST_NEIGHBOURS else ""
    return f", shares its block with {row.neighbours}{more} other{'s' if row.neighbours > 1 else ''}"


def op_cells(row: OpRow) -> tuple[str, ...]:
    """The operator and the phase."""
    return (word(row.op), word(row.phase))


def _grids(
    title: str,
    subject: Sequence[str],
    table: Table[Row],
    cells: Callable[[Row], tuple[str, ...]],
    scales: Mapping[str, PerStep],
) -> Iterator[Grid]:
    columns = columns_of(table.rows[:MOST_ROWS_SHOWN], scales)
    swaps = [column for column in columns if column.about == "swaps"]
    if "paging" in scales and swaps:
        others = [column for column in columns if column.about != "swaps"]
        yield _grid(f"{title}: paging", subject, table, cells, others, scales)
        yield _grid(f"{title}: swaps", subject, table, cells, swaps, scales)
    else:
        yield _grid(title, subject, table, cells, columns, scales)


def _grid(
    title: str,
    subject: Sequence[str],
    table: Table[Row],
    cells: Callable[[Row], tuple[str, ...]],
    columns: Sequence[TallyColumn],
    scales: Mapping[str, PerStep],
) -> Grid:
    grid = new_grid(title)
    rows = table.rows[:MOST_ROWS_SHOWN]
    for index, heading in enumerate(subject):
        # Only the first column gives way when the terminal is narrow, and it loses nothing: it takes more lines.
        grid.add_column(heading, overflow="fold", no_wrap=index > 0)
    for column in columns:
        grid.add_column(column.heading, justify="right", no_wrap=True)
    for row in rows:
        numbers = (column.words(scales[column.about], column.total(row)) for column in columns)
        grid.add_row(*map(Text, cells(row)), *map(Text, numbers))
    hidden = len(table.rows) - MOST_ROWS_SHOWN
    if hidden > 0 or table.rest is not None:
        grid.caption = f"... and {max(hidden, 0):,} more{', and a rest too small to keep' if table.rest else ''}"
    return grid
