"""Of the report, what is about explicit swaps and plans: totals, and a line a step."""

from collections.abc import Iterator

from rich.table import Table as Grid
from rich.text import Text

from umadvise.records.counters import Swaps
from umadvise.records.fault_profile import FaultProfile, MeasuredStep, PlannedSteps
from umadvise.records.units import format_bytes, format_duration_ns
from umadvise.reports.reporters.printing import new_grid
from umadvise.reports.reporters.tables import PerStep, percent_of, swap_sums

_FIRST_SHOWN, _LATEST_SHOWN = 4, 8


def totals(profile: FaultProfile, swaps: Swaps, scale: PerStep) -> Iterator[tuple[str, str, str]]:
    """Lines of the table of totals: what it is, how much a step, and what that consists of."""
    demanded = swap_sums(profile.tables)
    copies, room = swaps.wait_copy_ns, swaps.wait_room_ns
    by_demand = f", {scale.share(demanded.on_demand_wait_ns)} on demand" if demanded and copies else ""
    yield "copy waits", scale.time(copies), f"{scale.share(copies)} of the step, for bytes on their way{by_demand}"
    yield "room waits", scale.time(room), f"{scale.share(room)} of the step, until others had left"
    part = f": {scale.bytes(demanded.on_demand_bytes)}" if demanded and demanded.on_demand_bytes else ""
    on_demand = f"{scale.count(swaps.on_demand_swap_ins)} on demand{part}"
    yield "swapped in", scale.bytes(swaps.swap_in_bytes), f"{scale.count(swaps.swap_ins)} copies, {on_demand}"
    without = f"{scale.count(swaps.clean_drops)} left without one"
    unforeseen = f"{scale.count(swaps.evictions)} for room that no plan had made"
    yield (
        "swapped out",
        scale.bytes(swaps.swap_out_bytes),
        f"{scale.count(swaps.swap_outs)} copies, {without}; {unforeseen}",
    )
    chunks = profile.chunks
    if chunks is not None:
        each = f"of {format_bytes(chunks.budget_bytes)}, in chunks of {format_bytes(chunks.chunk_bytes)}"
        host = f"; {format_bytes(chunks.host_peak_bytes)} of the host held what was swapped out"
        yield "chunks' peak", format_bytes(chunks.used_peak_bytes), f"{each}, in the last step{host}"


def outside(swaps: Swaps) -> str:
    """What happened before, between and after the steps."""
    waits = format_duration_ns(swaps.wait_copy_ns + swaps.wait_room_ns)
    ways = f"{format_bytes(swaps.swap_in_bytes)} swapped in, {format_bytes(swaps.swap_out_bytes)} swapped out"
    return f"Outside of the steps: {ways}, {waits} of waits"


def planned_steps(planned: PlannedSteps) -> Iterator[str]:
    """Lines on how many steps plans drove, and why not the others."""
    count = planned.driven + sum(each.last - each.first + 1 for each in planned.undriven)
    yield f"Plans drove {planned.driven:,} of {count:,} steps" + (". Not driven:" if planned.undriven else ".")
    shown = planned.undriven[:_FIRST_SHOWN] + planned.undriven[_FIRST_SHOWN:][-_LATEST_SHOWN:]
    for each in shown:
        which = f"step {each.first}" if each.first == each.last else f"steps {each.first} to {each.last}"
        yield f"  {which}: {each.reason}"
    if len(shown) < len(planned.undriven):
        yield f"  ... and {len(planned.undriven) - len(shown):,} more"


def steps(profile: FaultProfile) -> Iterator[Grid]:
    """A line a step, of the first ones and the latest."""
    swapped = [step for step in profile.steps if step.swaps is not None]
    if len(swapped) < 2:
        return
    times = ("step", "time", "waits for\ncopies", "waits for\nroom", "waits\nof step")
    grid = new_grid("By step", (), (*times, "swapped\nin", "swapped\nout", "on\ndemand", "for\nroom"))
    grid.add_column("plan", no_wrap=True)
    shown = swapped[:_FIRST_SHOWN] + swapped[_FIRST_SHOWN:][-_LATEST_SHOWN:]
    for step in shown:
        grid.add_row(*map(Text, _step_cells(step, profile.planned)))
    if len(shown) < profile.step_count:
        grid.caption = f"... and {profile.step_count - len(shown):,} more"
    yield grid


def _step_cells(step: MeasuredStep, planned: PlannedSteps | None) -> tuple[str, ...]:
    swaps = step.swaps
    assert swaps is not None
    return (
        str(step.index),
        format_duration_ns(step.duration_ns),
        format_duration_ns(swaps.wait_copy_ns),
        format_duration_ns(swaps.wait_room_ns),
        percent_of(swaps.wait_copy_ns + swaps.wait_room_ns, step.duration_ns),
        format_bytes(swaps.swap_in_bytes),
        format_bytes(swaps.swap_out_bytes),
        f"{swaps.on_demand_swap_ins:,}",
        f"{swaps.evictions:,}",
        _drive(step.index, planned),
    )


def _drive(index: int, planned: PlannedSteps | None) -> str:
    if planned is None:
        return "-"
    return "no" if any(each.first <= index <= each.last for each in planned.undriven) else "drove it"
