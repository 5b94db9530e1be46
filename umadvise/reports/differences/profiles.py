"""Two fault profiles: what a step took, what moved and what was waited for, by cause, and where that changed most."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Literal

from umadvise.records.counters import BytesByCause, Counters, MemoryStats, SpentTime, Swaps
from umadvise.records.fault_profile import FaultProfile, MeasuredStep, Tally
from umadvise.records.units import format_bytes
from umadvise.reports.differences.quantities import (
    ChangedSubject,
    Difference,
    Number,
    QuantityKind,
    Unit,
    most_changed,
    parted,
    quantities,
)
from umadvise.reports.reporters.seconds import WORDS
from umadvise.reports.reporters.tables import swap_sums, tensor_name, word

_CAUSES = tuple(BytesByCause.__struct_fields__)
Kind = QuantityKind[FaultProfile]


def _per_step(total: int | None, steps: int, unit: Unit) -> Number | None:
    if total is None or steps == 0:
        return None
    return round(total / steps, 3) if unit == "count" and total % steps else total // steps


def _paging(name: str, unit: Unit, words: str, of: Callable[[Counters], int | None]) -> Kind:
    """Of unified memory, per step in which faults were counted."""

    def value(profile: FaultProfile) -> Number | None:
        return _per_step(of(profile.counters), profile.counted_steps, unit) if profile.pages else None

    return Kind(name, unit, words, value)


def _swapping(name: str, unit: Unit, words: str, of: Callable[[Swaps], int]) -> Kind:
    """Of explicit swaps, per step."""

    def value(profile: FaultProfile) -> Number | None:
        return None if profile.swaps is None else _per_step(of(profile.swaps), profile.step_count, unit)

    return Kind(name, unit, words, value)


def _on_demand(name: str, unit: Unit, words: str, of: Callable[[Tally], int]) -> Kind:
    """Of swaps that no plan had asked for in time, per step; it takes events."""

    def value(profile: FaultProfile) -> Number | None:
        sums = swap_sums(profile.tables)
        return None if profile.swaps is None or sums is None else _per_step(of(sums), profile.step_count, unit)

    return Kind(name, unit, words, value)


def _moved(direction: str, words: str) -> Iterator[Kind]:
    """Bytes of one direction, in all and by cause."""

    def by_cause(counters: Counters, cause: str) -> int | None:
        found: BytesByCause | None = getattr(counters, f"bytes_{direction}")
        value: int | None = None if found is None else getattr(found, cause)
        return value

    for cause in ("total", *_CAUSES):
        name = f"bytes_{direction}" if cause == "total" else f"bytes_{direction}_{cause}"
        by = "" if cause == "total" else f", {cause.replace('_', ' ')}"
        yield _paging(name, "bytes", f"paged {words}{by}", lambda counters, cause=cause: by_cause(counters, cause))  # type: ignore[misc]


def _peak(name: str, words: str, of: Callable[[MemoryStats], int | None]) -> Kind:
    """Of the run, the most at once."""
    return Kind(name, "bytes", words, lambda profile: None if profile.memory is None else of(profile.memory))


def _spent() -> Iterator[Kind]:
    """What a step's time goes into, the median of the steps of which that is known."""

    def median(of: Callable[[MeasuredStep, SpentTime], int]) -> Callable[[FaultProfile], Number | None]:
        def value(profile: FaultProfile) -> Number | None:
            known = [of(step, step.times) for step in profile.steps if step.times is not None]
            return round(statistics.median(known)) if known else None

        return value

    for field, words in WORDS.items():
        yield Kind(field, "ns", f"of it, {words}", median(lambda _step, times, field=field: getattr(times, field)))  # type: ignore[misc]
    unexplained = median(lambda step, times: step.duration_ns - times.sum_ns)
    yield Kind("unexplained_ns", "ns", "of it, unexplained", unexplained)


def _median_step(profile: FaultProfile) -> Number | None:
    """Of the steps that the profile keeps: one slow step moves no median."""
    return round(statistics.median(step.duration_ns for step in profile.steps)) if profile.steps else None


def _waits(profile: FaultProfile) -> Number | None:
    parts = (each.of(profile) for each in KINDS if each.name in ("fault_ns", "wait_copy_ns", "wait_room_ns"))
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _undriven(profile: FaultProfile) -> Number | None:
    return None if profile.planned is None else profile.step_count - profile.planned.driven


KINDS: tuple[Kind, ...] = (
    Kind("step_ns", "ns", "a step, the median", _median_step),
    *_spent(),
    Kind("steps", "count", "steps", lambda profile: profile.step_count),
    Kind("waits_ns", "ns", "waits of all causes, the mean", _waits),
    _paging("fault_ns", "ns", "waits for page faults", lambda counters: counters.fault_service_ns),
    _swapping("wait_copy_ns", "ns", "waits for copies", lambda swaps: swaps.wait_copy_ns),
    _on_demand("wait_on_demand_ns", "ns", "of these, on demand", lambda row: row.on_demand_wait_ns),
    _swapping("wait_room_ns", "ns", "waits for room", lambda swaps: swaps.wait_room_ns),
    _paging("faults", "count", "groups of page faults", lambda counters: counters.fault_groups),
    *_moved("h2d", "to the device"),
    *_moved("d2h", "to the host"),
    _paging("evictions", "count", "blocks evicted with a copy", lambda counters: counters.evictions),
    _paging("evictions_dropped", "count", "blocks evicted without one", lambda counters: counters.evictions_dropped),
    _swapping("swap_in_bytes", "bytes", "swapped in", lambda swaps: swaps.swap_in_bytes),
    _on_demand("on_demand_bytes", "bytes", "of these, on demand", lambda row: row.on_demand_bytes),
    _swapping("swap_out_bytes", "bytes", "swapped out", lambda swaps: swaps.swap_out_bytes),
    _swapping("swap_ins", "count", "copies in", lambda swaps: swaps.swap_ins),
    _swapping("on_demand_swap_ins", "count", "of these, on demand", lambda swaps: swaps.on_demand_swap_ins),
    _swapping("swap_outs", "count", "copies out", lambda swaps: swaps.swap_outs),
    _swapping("clean_drops", "count", "left without a copy", lambda swaps: swaps.clean_drops),
    _swapping("swap_evictions", "count", "left for room that no plan had made", lambda swaps: swaps.evictions),
    Kind("undriven_steps", "count", "steps that no plan drove to their ends", _undriven),
    _peak("live_peak_bytes", "all tensors at once", lambda memory: memory.requested_peak_bytes),
    _peak("resident_peak_bytes", "on the device at once", lambda memory: memory.resident_peak_bytes),
    Kind(
        "chunks_peak_bytes",
        "bytes",
        "chunks at once",
        lambda profile: None if profile.chunks is None else profile.chunks.used_peak_bytes,
    ),
)
"""What two profiles are compared by, and what conditions may be about. Where nothing else is said it is of one step."""


def _rungs(profile: FaultProfile) -> str | None:
    """The rungs in the order in which a run was on them."""
    names = [each.rung for each in profile.rungs]
    return ", then ".join(name for index, name in enumerate(names) if index == 0 or names[index - 1] != name) or None


def _size(bytes_: int | None) -> str | None:
    return None if bytes_ is None else format_bytes(bytes_)


_CIRCUMSTANCES: tuple[tuple[str, Callable[[FaultProfile], str | None]], ...] = (
    ("Device", lambda profile: profile.environment.device_name),
    ("Kind of device", lambda profile: profile.environment.provider),
    ("Counting", lambda profile: profile.environment.counting),
    ("umadvise", lambda profile: profile.environment.umadvise_version),
    ("torch", lambda profile: profile.environment.torch_version),
    ("Script", lambda profile: profile.environment.script),
    ("Steps are", lambda profile: "found" if profile.steps_are_found else "marked"),
    ("Faults are counted in", lambda profile: "all steps" if profile.sampling is None else "some steps"),
    ("Capacity", lambda profile: _size(profile.environment.capacity_bytes)),
    ("Budget", lambda profile: _size(profile.environment.budget_bytes)),
    ("Policy", lambda profile: profile.environment.policy),
    ("Rung", _rungs),
)


def difference(here: FaultProfile, there: FaultProfile, names: tuple[str, str]) -> Difference:
    """Two runs side by side.

    Args:
        here: profile of the first run.
        there: profile of the second run.
        names: names of their files.
    """
    return Difference(
        kind="profile",
        here=names[0],
        there=names[1],
        circumstances=parted(_CIRCUMSTANCES, here, there),
        quantities=quantities(KINDS, here, there),
        subjects=most_changed(list(_subjects(here, there))),
    )


def _cost(profile: FaultProfile, row: Tally) -> tuple[int, int]:
    """Nanoseconds and bytes of a row, per step."""
    counted, steps = max(profile.counted_steps, 1), max(profile.step_count, 1)
    waited_ns = row.service_ns // counted + (row.wait_copy_ns + row.wait_room_ns) // steps
    paged = (row.bytes_h2d.total or 0) + (row.bytes_d2h.total or 0)
    return waited_ns, paged // counted + (row.swap_in_bytes + row.swap_out_bytes) // steps


def _subjects(here: FaultProfile, there: FaultProfile) -> Iterator[ChangedSubject]:
    for kind in ("module", "tensor"):
        ours, theirs = _costs(here, kind), _costs(there, kind)
        for name in ours | theirs:
            (here_ns, here_bytes), (there_ns, there_bytes) = ours[name], theirs[name]
            yield ChangedSubject(
                kind=kind,
                name=name,
                here_ns=here_ns,
                there_ns=there_ns,
                here_bytes=here_bytes,
                there_bytes=there_bytes,
            )


def _costs(profile: FaultProfile, kind: Literal["module", "tensor"]) -> defaultdict[str, tuple[int, int]]:
    """Nanoseconds and bytes of each, by name; tensors of one birthplace and size are one."""
    found: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    if profile.tables is None:
        return found
    named: list[tuple[str, Tally]] = (
        [(word(row.module), row) for row in profile.tables.module.rows]
        if kind == "module"
        else [
            (f"{tensor_name(row)} ({word(row.role)}, {format_bytes(row.bytes)})", row)
            for row in profile.tables.tensor.rows
        ]
    )
    for name, row in named:
        waited_ns, moved_bytes = _cost(profile, row)
        found[name] = found[name][0] + waited_ns, found[name][1] + moved_bytes
    return found
