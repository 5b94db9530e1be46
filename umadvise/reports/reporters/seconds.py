"""Of the report, where a step's time went: each kind measured by itself, and what nobody has measured."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from umadvise.records.counters import SpentTime
from umadvise.records.fault_profile import FaultProfile
from umadvise.records.units import format_duration_ns
from umadvise.reports.reporters.printing import new_grid
from umadvise.reports.reporters.tables import percent_of

WORDS = {
    "compute_ns": "ops",
    "first_touch_ns": "faults: first touch",
    "migration_ns": "faults: bytes come",
    "fault_room_ns": "faults: others leave",
    "prefetch_ns": "late prefetches",
    "swap_in_ns": "late swap-ins",
    "on_demand_ns": "swap-ins on demand",
    "room_ns": "room for swap-ins",
    "guard_ns": "guard",
    "script_ns": "script",
    "planning_ns": "planning",
    "observing_ns": "observing",
}
"""What the fields of `SpentTime` are called, in the order in which they are shown."""
_SHOWN = 0.0005
"""Least part of the time for which a kind has a line."""
_ODD = 1.25
"""How much longer than the median a step is that is named, and at most how many of them."""
_MOST_ODD = 4
_FEW = 4
"""Steps from which on medians say more than sums."""


@dataclass(frozen=True)
class _Step:
    index: int
    duration_ns: int
    times: SpentTime

    @property
    def unexplained_ns(self) -> int:
        return self.duration_ns - self.times.sum_ns


def steps_of(profile: FaultProfile) -> list[_Step]:
    """The steps of a profile of which is known where their time went."""
    return [_Step(each.index, each.duration_ns, each.times) for each in profile.steps if each.times is not None]


def section(profile: FaultProfile) -> Iterator[RenderableType]:
    """A table with a line for each kind of time, and lines on what is odd; nothing where it is not known."""
    steps = steps_of(profile)
    if not steps or profile.times is None:
        return
    grid = new_grid("Where a step's time goes", ["what"], ["median", "least", "most", "of all steps"])
    for field, words in WORDS.items():
        spent = sorted(getattr(each.times, field) for each in steps)
        total_ns = getattr(profile.times, field)
        if total_ns >= _SHOWN * profile.counted_ns and total_ns > 0:
            shown = (statistics.median_low(spent), spent[0], spent[-1])
            grid.add_row(words, *map(format_duration_ns, shown), percent_of(total_ns, profile.counted_ns))
    grid.add_row("unexplained", *_unexplained(steps), percent_of(_left_ns(profile), profile.counted_ns))
    yield grid
    yield from map(Text, odd_steps(steps))


def _left_ns(profile: FaultProfile) -> int:
    return profile.counted_ns - (profile.times.sum_ns if profile.times is not None else 0)


def _unexplained(steps: Sequence[_Step]) -> tuple[str, str, str]:
    left = sorted(each.unexplained_ns for each in steps)
    median, least, most = map(format_duration_ns, (statistics.median_low(left), left[0], left[-1]))
    return median, least, most


def odd_steps(steps: Sequence[_Step]) -> Iterator[str]:
    """A line for each of the steps that took much longer than the median: what that time went into."""
    if len(steps) < _FEW:
        return
    usual_ns = statistics.median_low(each.duration_ns for each in steps)
    usual = {field: statistics.median_low(getattr(each.times, field) for each in steps) for field in WORDS}
    odd = [each for each in steps if each.duration_ns > _ODD * usual_ns]
    for each in sorted(sorted(odd, key=lambda each: -each.duration_ns)[:_MOST_ODD], key=lambda each: each.index):
        more = {field: getattr(each.times, field) - usual[field] for field in WORDS}
        field = max(more, key=lambda field: more[field])
        yield (
            f"Step {each.index} took {format_duration_ns(each.duration_ns)}, not {format_duration_ns(usual_ns)}: "
            f"{format_duration_ns(more[field])} more of it is {WORDS[field]}"
        )
    if len(odd) > _MOST_ODD:
        yield f"... and {len(odd) - _MOST_ODD:,} more steps took longer than {_ODD:g} times the median"
