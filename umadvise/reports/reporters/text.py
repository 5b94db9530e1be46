"""The report for people: what faulted, what was swapped, and what would help."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from umadvise.records.counters import CAUSES, PHASES, ROLES, BytesByCause, MemoryKind, MemoryStats, Placed
from umadvise.records.fault_profile import FaultProfile, Pattern, RunEnvironment
from umadvise.records.units import format_bytes, format_duration_ns
from umadvise.reports.findings.facts import role_words
from umadvise.reports.reporters import picture, seconds, swapping
from umadvise.reports.reporters.printing import DEFAULT_WIDTH, LEAST_WIDTH, new_grid, printed
from umadvise.reports.reporters.tables import PerStep, grids, word

_INDENT = 9


def render(profile: FaultProfile, width: int = DEFAULT_WIDTH, *, color: bool = False) -> str:
    """The report as text.

    Args:
        profile: what to report.
        width: columns of the terminal; fewer than LEAST_WIDTH count as LEAST_WIDTH.
        color: whether to use ANSI colours.

    Returns:
        Lines without trailing spaces; the same text for the same arguments, whatever the environment says.
    """
    width = max(width, LEAST_WIDTH)
    return printed(_parts(profile, width), width, color=color)


def _parts(profile: FaultProfile, width: int) -> Iterator[RenderableType]:
    for index, section in enumerate(_sections(profile, width)):
        if index:
            yield Text()
        yield from section


def _sections(profile: FaultProfile, width: int) -> Iterator[list[RenderableType]]:
    yield [*_heading(profile), *(Text(line) for line in _rungs(profile))]
    yield _totals(profile)
    if profile.step_count == 0:
        return
    time = [*seconds.section(profile)]
    if time:
        yield time
    for grid in swapping.steps(profile):
        yield [grid]
    if profile.pattern is not None and any(profile.pattern.fault_groups):
        yield _pattern(profile, profile.pattern, width - _INDENT)
    if profile.tables is None:
        yield [Text("Nobody recorded events: which tensors faulted, or were swapped, is unknown.")]
    else:
        for grid in grids(profile, profile.tables):
            if grid.row_count:
                yield [grid]
    yield _findings(profile)


def _rungs(profile: FaultProfile) -> Iterator[str]:
    for change in profile.rungs:
        yield f"Rung {change.rung} from step {change.step} on: {change.reason}"


def _heading(profile: FaultProfile) -> list[RenderableType]:
    title, *lines = heading(profile)
    return [Text(title, style="bold"), *map(Text, lines)]


def heading(profile: FaultProfile) -> list[str]:
    """Lines that say what ran, where and with what: the first is the title."""
    environment = profile.environment
    budget = f", budget {format_bytes(environment.budget_bytes)}" if environment.budget_bytes is not None else ""
    policy = f", policy {environment.policy}" if environment.policy is not None else ""
    lines = [
        f"Memory traffic of {environment.script or 'this run'}",
        f"{environment.device_name} ({environment.provider}, {environment.counting} counting), "
        f"{format_bytes(environment.capacity_bytes)}{budget}{policy}",
        *_places(profile.placed),
        f"umadvise {environment.umadvise_version}, torch {environment.torch_version or '-'}",
    ]
    if profile.steps_are_found:
        lines.append("Steps: found by their repetition, as none were marked")
    return lines


_MEMORY_WORDS: dict[MemoryKind, str] = {"managed": "Unified memory", "device": "Plain memory", "chunked": "Chunks"}


def _places(placed: tuple[Placed, ...]) -> Iterator[str]:
    """Where tensors really lay, a line a kind of memory and word of advice."""
    by_role = {role: sum(each.bytes for each in placed if each.role == role) for role in ROLES}
    for memory, words in _MEMORY_WORDS.items():
        for advice in dict.fromkeys(each.advice for each in placed if each.memory == memory):
            here = [each for each in placed if (each.memory, each.advice) == (memory, advice)]
            parts = (f"{role_words(each.role)}{_part(each.bytes, by_role[each.role])}" for each in here)
            advised = "" if memory != "managed" else ", no advice" if advice == "none" else f", {advice}"
            yield f"{words}{advised}: {', '.join(parts)}"


def _part(bytes_: int, all_bytes: int) -> str:
    return "" if bytes_ == all_bytes else f" ({format_bytes(bytes_)} of {format_bytes(all_bytes)})"


_NO_STEP = (
    "No step was completed, so nothing can be said of one: no optimizer stepped twice, and nothing was seen to come "
    "again often enough. Mark the steps: open a session in the script, and put `with um.step():` around each of them."
)


def _totals(profile: FaultProfile) -> list[RenderableType]:
    if profile.step_count == 0:
        return [Text(_NO_STEP), *_outside(profile)]
    grid = new_grid("Per step")
    for _ in range(3):
        grid.add_column(overflow="fold")
    grid.show_header = False
    for row in total_rows(profile):
        grid.add_row(*map(Text, row))
    planned = swapping.planned_steps(profile.planned) if profile.planned is not None else ()
    nothing = () if profile.pages or profile.swaps else ("All of it lay in plain memory: nothing faults there.",)
    sampled = _sampling(profile) if profile.pages else []
    return [grid, *map(Text, planned), *map(Text, nothing), *sampled, *_outside(profile)]


def total_rows(profile: FaultProfile) -> list[tuple[str, str, str]]:
    """What a step costs: what it is, how much of it, and what that consists of. There is a step at least."""
    every = PerStep(profile.step_count, profile.duration_ns)
    rows = [("step time", every.time(profile.duration_ns), f"mean of {profile.step_count:,}")]
    if profile.pages:
        rows += _paging(profile)
    if profile.swaps is not None:
        rows += swapping.totals(profile, profile.swaps, every)
    return rows + _peaks(profile)


def _paging(profile: FaultProfile) -> list[tuple[str, str, str]]:
    counters, scale = profile.counters, PerStep(max(profile.counted_steps, 1), profile.counted_ns)
    rows = [
        (
            "fault service",
            scale.time(counters.fault_service_ns),
            f"{scale.share(counters.fault_service_ns)} of the step",
        ),
        ("fault groups", scale.count(counters.fault_groups), _kinds_of_faults(profile, scale)),
        ("to device", scale.bytes(_total(counters.bytes_h2d)), _causes(counters.bytes_h2d, scale)),
        ("to host", scale.bytes(_total(counters.bytes_d2h)), _causes(counters.bytes_d2h, scale)),
        (
            "evictions",
            scale.count(counters.evictions),
            f"with a copy; {scale.count(counters.evictions_dropped)} without",
        ),
    ]
    if counters.collapses != 0:
        rows.append(("collapses", scale.count(counters.collapses), "read-mostly duplicates ended by a write"))
    if counters.remote_maps != 0 or counters.remote_accesses not in (0, None):
        accesses = scale.count(counters.remote_accesses)
        rows.append(("remote", scale.count(counters.remote_maps), f"maps; {accesses} accesses"))
    return rows


def _peaks(profile: FaultProfile) -> list[tuple[str, str, str]]:
    memory = profile.memory
    resident, live = (memory.resident_peak_bytes, memory.requested_peak_bytes) if memory else (None, None)
    return [
        ("resident peak", format_bytes(resident), _limit(profile.environment)),
        ("live peak", format_bytes(live), _live_by_role(memory)),
    ]


def _sampling(profile: FaultProfile) -> list[RenderableType]:
    sampling = profile.sampling
    if sampling is None:
        return []
    if sampling.every == 0:
        return [Text("Faults were not counted: sample_every=0.")]
    why = f": {sampling.reason}" if sampling.reason is not None else ""
    if sampling.steps == 0:
        return [Text(f"Faults could not be counted{why}")]
    mean = format_duration_ns(sampling.duration_ns // sampling.steps)
    which = f"{sampling.steps:,} of {profile.step_count:,} steps (the first three, then one in {sampling.every:,})"
    lines: list[RenderableType] = [Text(f"Counted in {which}, which took {mean} each: counting takes time.")]
    if sampling.failed_steps or why:
        lines.append(Text(f"{sampling.failed_steps:,} more should have been counted and were not{why}"))
    return lines


def _total(by_cause: BytesByCause | None) -> int | None:
    return by_cause.total if by_cause else None


def _causes(by_cause: BytesByCause | None, scale: PerStep) -> str:
    numbers = [(cause, getattr(by_cause, cause)) for cause in CAUSES] if by_cause else []
    return ", ".join(f"{cause.replace('_', ' ')} {scale.bytes(number)}" for cause, number in numbers if number != 0)


def _kinds_of_faults(profile: FaultProfile, scale: PerStep) -> str:
    counters = profile.counters
    unordered = f", {scale.count(counters.unordered_faults)} unordered" if counters.unordered_faults else ""
    return f"{scale.count(counters.first_touches)} first touches, prefetches included{unordered}"


def _live_by_role(memory: MemoryStats | None) -> str:
    peaks = [(role, getattr(memory.requested_peak_by_role, role)) for role in ROLES] if memory else []
    by_role = ", ".join(f"{word(role)} {format_bytes(peak)}" for role, peak in peaks if peak > 0)
    return "all tensors, wherever they are" + (f"; by role at most {by_role}" if by_role else "")


def _limit(environment: RunEnvironment) -> str:
    limits = [environment.capacity_bytes, environment.budget_bytes]
    return f"of {format_bytes(min(limit for limit in limits if limit is not None))}"


def _outside(profile: FaultProfile) -> list[RenderableType]:
    lines: list[RenderableType] = []
    outside, swaps = profile.outside, profile.outside_swaps
    if profile.pages and outside is not None and outside.fault_groups is not None:
        to_device, to_host = format_bytes(_total(outside.bytes_h2d)), format_bytes(_total(outside.bytes_d2h))
        faults = f"{outside.fault_groups:,} fault groups"
        lines.append(Text(f"Outside of the steps: {faults}, {to_device} to the device, {to_host} to the host"))
    if swaps is not None:
        lines.append(Text(swapping.outside(swaps)))
    return lines


def _pattern(profile: FaultProfile, pattern: Pattern, width: int) -> list[RenderableType]:
    columns = picture.columns_for(width)
    faults = picture.joined(pattern.fault_groups, columns)
    most = max(faults)
    column_ns = pattern.duration_ns // columns
    grid = Grid.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=_INDENT - 1, no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_row(Text("phase"), Text(picture.phase_ruler(picture.joined_phases(pattern.phases, columns))))
    grid.add_row(Text("service"), picture.blocks(picture.shares(pattern, columns), heat=True))
    grid.add_row(Text("faults"), picture.blocks([count / most for count in faults], heat=False))
    stalls = [(phase, pattern.stall_share(phase)) for phase in PHASES if phase]
    legend = [
        f"Time in fault service: {', '.join(f'{phase} {share:.1%}' for phase, share in stalls if share is not None)}",
        f"A column is {format_duration_ns(column_ns)}; a full block is all of that time, or {most:,} fault groups.",
    ]
    return [
        Text(f"Faults over step {pattern.step}", style="bold"),
        grid,
        *(Padding(Text(line), (0, 0, 0, _INDENT)) for line in legend),
        *_steps(profile),
    ]


def _steps(profile: FaultProfile) -> list[RenderableType]:
    steps = profile.steps
    if profile.sampling is not None:
        steps = tuple(step for step in steps if step.counters.fault_service_ns is not None)
    step_shares = picture.step_shares(steps)
    if step_shares is None or len(steps) < 2:
        return []
    line = Text("steps".ljust(_INDENT)).append_text(picture.blocks(step_shares, heat=True))
    ends = f"  {step_shares[0]:.1%} of step {steps[0].index} to {step_shares[-1]:.1%} of {steps[-1].index}"
    return [line.append(ends)]


def _findings(profile: FaultProfile) -> list[RenderableType]:
    findings = profile.findings
    if not findings:
        counted = profile.swaps is not None or not profile.pages or profile.counters.fault_groups is not None
        return [Text("Findings: none" if counted else "Findings: nothing was counted that could be looked at")]
    grid = new_grid("Findings")
    grid.show_header = False
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for finding in findings:
        style = "yellow" if finding.severity == "warning" else "cyan"
        grid.add_row(Text(finding.severity, style=style), Text(f"{finding.id} ({finding.subject})", style="bold"))
        grid.add_row(Text(""), Text(finding.message))
        grid.add_row(Text(""), Text(f"-> {finding.advice}"))
    return [grid]
