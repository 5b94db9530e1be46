"""Pictures made of characters: how faults spread over a step, and over the steps of a run."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from umadvise.records.counters import PhaseWord
from umadvise.records.fault_profile import BIN_COUNT, MeasuredStep, Pattern

_BLOCKS = " ▁▂▃▄▅▆▇█"
_JOINS = (1, 2, 3, 4, 6, 8)
# The profiler of Choi and Lee (2021), figure 11, is green at 40 to 50 % of the time and yellow at 60 to 70 %.
_HEAT = ((0.55, "green"), (0.80, "yellow"), (float("inf"), "red"))


def columns_for(width: int) -> int:
    """Number of columns of a pattern where `width` are there: all its bins, or two, three, ... bins joined to one."""
    return next((BIN_COUNT // join for join in _JOINS if BIN_COUNT // join <= width), BIN_COUNT // _JOINS[-1])


def joined(values: Sequence[int], columns: int) -> list[int]:
    """The values of neighbouring bins added up, so that `columns` are left."""
    join = len(values) // columns
    return [sum(values[start : start + join]) for start in range(0, len(values), join)]


def joined_phases(phases: Sequence[PhaseWord | None], columns: int) -> list[PhaseWord | None]:
    """The phase that most of the joined bins have; the earlier one of two."""
    join = len(phases) // columns
    groups = [phases[start : start + join] for start in range(0, len(phases), join)]
    return [max(group, key=group.count) for group in groups]


def shares(pattern: Pattern, columns: int) -> list[float]:
    """Part of each column's time that went into fault service."""
    column_ns = pattern.duration_ns / columns
    return [service_ns / column_ns if column_ns else 0.0 for service_ns in joined(pattern.service_ns, columns)]


def blocks(shares_: Sequence[float], *, heat: bool) -> Text:
    """A row of blocks, full at 1; whatever is more than 0 is seen.

    Args:
        shares_: a height for each column; above 1 is drawn as 1.
        heat: whether the height is a part of time, and coloured as the paper's profiler does.
    """
    text = Text()
    for share in shares_:
        level = 0 if share <= 0 else min(max(1, round(share * (len(_BLOCKS) - 1))), len(_BLOCKS) - 1)
        colour = next(colour for limit, colour in _HEAT if share <= limit)
        text.append(_BLOCKS[level], style=colour if heat else None)
    return text


def phase_ruler(phases: Sequence[PhaseWord | None]) -> str:
    """A line that says which columns are which phase: "├forward───├backward──"; spaces where that is unknown."""
    return "".join(_ruler_part(phase, length) for phase, length in _runs(phases))


def _ruler_part(phase: PhaseWord | None, length: int) -> str:
    return " " * length if phase is None else f"├{phase}"[:length].ljust(length, "─")


def _runs(phases: Sequence[PhaseWord | None]) -> Iterator[tuple[PhaseWord | None, int]]:
    start = 0
    for end in range(1, len(phases) + 1):
        if end == len(phases) or phases[end] != phases[start]:
            yield phases[start], end - start
            start = end


def step_shares(steps: Sequence[MeasuredStep]) -> list[float] | None:
    """Part of each step's time that went into fault service; None when that is unknown of any."""
    if any(step.counters.fault_service_ns is None for step in steps):
        return None
    return [(step.counters.fault_service_ns or 0) / step.duration_ns if step.duration_ns else 0.0 for step in steps]
