"""What is said while a run goes on, and in one line when it has ended."""

import re
from statistics import median_low

from rich.table import Table as Grid

from umadvise.records.counters import ROLES, MemoryStats, SpentTime
from umadvise.records.fault_profile import FaultProfile, MeasuredStep
from umadvise.records.units import format_bytes, format_duration_ns
from umadvise.reports.reporters.printing import new_grid
from umadvise.reports.reporters.seconds import WORDS
from umadvise.reports.reporters.tables import percent_of, word

_WAITS = ("first_touch_ns", "migration_ns", "fault_room_ns", "prefetch_ns", "swap_in_ns", "on_demand_ns", "room_ns")


def waits_ns(step: MeasuredStep) -> int | None:
    """How long ops of a step stood still for memory; None where nobody can tell."""
    times = step.times
    return None if times is None else sum(getattr(times, field) for field in _WAITS)


def in_one_line(profile: FaultProfile) -> str:
    """What a run's budget cost, and what is to be changed first.

    Args:
        profile: profile of the run.
    """
    latest = profile.steps[len(profile.steps) // 2 :]
    if not latest:
        return "no step was completed"
    usual_ns = median_low(each.duration_ns for each in latest)
    waited = [waited for each in latest if (waited := waits_ns(each)) is not None]
    cost = f", {percent_of(median_low(waited), usual_ns)} of it waiting for memory" if waited else ""
    finding = next((each for each in profile.findings if each.severity == "warning"), None)
    change = f" To change first ({finding.id}): {_first_change(finding.advice)}" if finding is not None else ""
    return f"a step takes {format_duration_ns(usual_ns)}{cost}.{change}"


def _first_change(advice: str) -> str:
    """The first sentence of an advice, or two where the first only says how things are; the report has all of them."""
    sentences = re.split(r"(?<=[^.]\.) ", advice)
    return " ".join(sentences[: 1 if ":" in sentences[0] else 2])


def view(step: MeasuredStep, memory: MemoryStats, rung: str | None) -> Grid:
    """A few lines on the step that has just ended.

    Args:
        step: what it cost.
        memory: the device's memory when it ended.
        rung: rung of the ladder that it ran on; None where there is none.
    """
    grid = new_grid(f"Step {step.index}{f' on {rung}' if rung is not None else ''}")
    grid.show_header = False
    for _ in range(2):
        grid.add_column(overflow="fold")
    waited_ns = waits_ns(step)
    if waited_ns is None or step.times is None:
        grid.add_row("time", format_duration_ns(step.duration_ns))
    else:
        without_ns = step.duration_ns - waited_ns
        unlimited = (
            f"{step.duration_ns / without_ns:.2f} times as long as without waits for memory" if without_ns else ""
        )
        grid.add_row("time", f"{format_duration_ns(step.duration_ns)}, {unlimited}")
        grid.add_row("waits for", _waits(step.times) or "nothing")
    grid.add_row("on the device", _by_role(memory))
    to_device, to_host = moved_bytes(step)
    grid.add_row("moved", f"{format_bytes(to_device)} to the device, {format_bytes(to_host)} to the host")
    return grid


def _waits(times: SpentTime) -> str:
    spent = sorted(((getattr(times, field), WORDS[field]) for field in _WAITS), reverse=True)
    return ", ".join(f"{words} {format_duration_ns(ns)}" for ns, words in spent if ns)


def _by_role(memory: MemoryStats) -> str:
    asked = [(role, getattr(memory.requested_by_role, role)) for role in ROLES]
    live = ", ".join(f"{word(role)} {format_bytes(bytes_)}" for role, bytes_ in asked if bytes_)
    return (
        f"{format_bytes(memory.resident_bytes)} of what lives: {live}" if live else format_bytes(memory.resident_bytes)
    )


def moved_bytes(step: MeasuredStep) -> tuple[int | None, int | None]:
    """Bytes to the device and to the host in a step, paged and swapped; None where nobody can tell."""
    counters, swaps = step.counters, step.swaps
    paged = [each.total if each is not None else None for each in (counters.bytes_h2d, counters.bytes_d2h)]
    swapped = (swaps.swap_in_bytes, swaps.swap_out_bytes) if swaps is not None else (0, 0)
    to_device, to_host = (None if way is None else way + own for way, own in zip(paged, swapped, strict=True))
    return to_device, to_host
