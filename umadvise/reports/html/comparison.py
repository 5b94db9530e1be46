"""Two runs beside each other, for one step: what costs more, and what less."""

from collections.abc import Iterator
from typing import Any

from umadvise.records.fault_profile import FaultProfile, ResidentTally, Table
from umadvise.records.units import format_bytes, format_duration_ns
from umadvise.reports.html.markup import MOST_ROWS, Cell, Row, table
from umadvise.reports.html.tables import bytes_cell, count_cell, time_cell
from umadvise.reports.reporters.tables import op_cells, scales_of, tensor_cells, word


def totals(here: FaultProfile, there: FaultProfile) -> str:
    """The costs of a step in both runs, of which each has one at least."""
    ours, theirs = _totals(here), _totals(there)
    words = {"time": time_cell, "bytes": bytes_cell, "count": count_cell}
    rows: list[Row] = []
    for name, (kind, number) in ours.items():
        other = theirs[name][1]
        if number is not None or other is not None:
            rows.append((name, words[kind](number), words[kind](other), _change(number, other)))
    return table("A step of both runs", ("cost", "this run", "other run", "change"), rows)


def _change(number: int | None, other: int | None) -> Cell:
    """From the other run to this one."""
    if number is None or not other:
        return Cell("-", None)
    return Cell(f"{number / other - 1:+.1%}", number / other - 1)


def _totals(profile: FaultProfile) -> dict[str, tuple[str, int | None]]:
    steps, counted = max(profile.step_count, 1), max(profile.counted_steps, 1)
    counters, swaps, memory = profile.counters, profile.swaps, profile.memory
    to_device, to_host = (each.total if each else None for each in (counters.bytes_h2d, counters.bytes_d2h))

    def swapped(field: str) -> int | None:
        return None if swaps is None else int(getattr(swaps, field)) // steps

    return {
        "step time": ("time", profile.duration_ns // steps),
        "fault service": ("time", _per(counters.fault_service_ns, counted)),
        "waits for copies": ("time", swapped("wait_copy_ns")),
        "waits for room": ("time", swapped("wait_room_ns")),
        "fault groups": ("count", _per(counters.fault_groups, counted)),
        "paged to the device": ("bytes", _per(to_device, counted)),
        "paged to the host": ("bytes", _per(to_host, counted)),
        "swapped in": ("bytes", swapped("swap_in_bytes")),
        "swapped out": ("bytes", swapped("swap_out_bytes")),
        "live peak": ("bytes", memory.requested_peak_bytes if memory else None),
        "resident peak": ("bytes", memory.resident_peak_bytes if memory else None),
    }


def _per(total: int | None, steps: int) -> int | None:
    return None if total is None else total // steps


def by_subject(here: FaultProfile, there: FaultProfile) -> Iterator[str]:
    """What stood still and moved by module, tensor and op in both runs, the largest differences first."""
    if here.tables is None or there.tables is None:
        return
    for name, names in (("module", lambda row: (word(row.module),)), ("tensor", tensor_cells), ("op", op_cells)):
        ours, theirs = (_costs(getattr(profile.tables, name), names, profile) for profile in (here, there))
        nothing = (0, 0)
        both = {each: (ours.get(each, nothing), theirs.get(each, nothing)) for each in ours | theirs}
        order = sorted(both, key=lambda each: [-abs(left - right) for left, right in zip(*both[each], strict=True)])
        rows = (_row(each, *both[each]) for each in order[:MOST_ROWS])
        headings = [f"{what}, {which}" for what in ("stood still", "moved") for which in ("this", "other", "change")]
        yield table(f"Both runs by {name}, per step", (name, *headings), rows)


def _row(name: str, here: tuple[int, int], there: tuple[int, int]) -> Row:
    (still, moved), (other_still, other_moved) = here, there
    later, more = still - other_still, moved - other_moved
    return (
        name,
        *map(time_cell, (still, other_still)),
        Cell(_signed(format_duration_ns(later), later), later),
        *map(bytes_cell, (moved, other_moved)),
        Cell(_signed(format_bytes(more), more), more),
    )


def _signed(words: str, number: int) -> str:
    return f"+{words}" if number > 0 else words


def _costs(sums: Table[Any], names: Any, profile: FaultProfile) -> dict[str, tuple[int, int]]:
    """Nanoseconds that a step stood still, and bytes that moved, by the row's name."""
    scales = scales_of(profile)
    paged, all_ = scales.get("paging", scales["both"]).steps, scales["both"].steps
    found: dict[str, tuple[int, int]] = {}
    for row in sums.rows:
        still, moved = found.get(name := ", ".join(names(row)), (0, 0))
        found[name] = (still + _still_ns(row, paged, all_), moved + _moved_bytes(row, paged, all_))
    return found


def _still_ns(row: ResidentTally, paged: int, all_: int) -> int:
    return row.service_ns // paged + (row.wait_copy_ns + row.wait_room_ns) // all_


def _moved_bytes(row: ResidentTally, paged: int, all_: int) -> int:
    by_paging = (row.bytes_h2d.total or 0) + (row.bytes_d2h.total or 0)
    return by_paging // paged + (row.swap_in_bytes + row.swap_out_bytes) // all_
