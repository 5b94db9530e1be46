"""What the page's pictures are drawn from: few enough points, in the units of their axes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umadvise.records.counters import ROLES
from umadvise.records.fault_profile import FaultProfile
from umadvise.records.step_picture import TO_DEVICE, TO_HOST, SpanWord, StepPicture
from umadvise.reports.reporters.tables import word

BINS = 600
"""Equal parts of a step in the pictures of links and stalls."""
_MIB = 1 << 20
Chart = dict[str, Any]
Floats = NDArray[np.float64]


def payload(profile: FaultProfile, against: FaultProfile | None) -> list[Chart]:
    """The charts in the order of the page. Those of one step share its time, in milliseconds, as `x`."""
    charts = [_steps(profile, against)] if profile.steps else []
    picture = profile.picture
    if picture is None:
        return charts
    if picture.times_ns:
        charts.append(_memory(profile, picture, against.picture if against else None))
    if picture.tensors:
        charts.append(_lifetimes(picture))
    return [*charts, _links(picture), _stalls(picture)]


def _chart(name: str, title: str, kind: str, unit: str, x: Sequence[float], series: list[Chart], **more: Any) -> Chart:
    return {"name": name, "title": title, "kind": kind, "unit": unit, "x": x, "series": series, **more}


def _series(name: str, values: Floats | Sequence[float | None], colour: int, *, dashed: bool = False) -> Chart:
    numbers = [None if value is None else float(f"{value:.5g}") for value in values]
    return {"name": name, "values": numbers, "colour": colour, "dashed": dashed}


def _steps(profile: FaultProfile, against: FaultProfile | None) -> Chart:
    steps = {step.index: step for step in profile.steps}
    others = {step.index: step for step in against.steps} if against else {}
    x = sorted(steps.keys() | others.keys())

    def of(values: dict[int, int | None]) -> list[float | None]:
        found = (values.get(index) for index in x)
        return [None if value is None else value / 1e6 for value in found]

    stood = {
        index: (step.counters.fault_service_ns or 0)
        + (step.swaps.wait_copy_ns + step.swaps.wait_room_ns if step.swaps is not None else 0)
        for index, step in steps.items()
    }
    series = [
        _series("step time", of({index: step.duration_ns for index, step in steps.items()}), 0),
        _series("stood still", of({**stood}), 1),
    ]
    if against is not None:
        series.append(
            _series("step time, other run", of({i: each.duration_ns for i, each in others.items()}), 2, dashed=True)
        )
    return _chart("steps", "Time of each step", "line", "ms", x, series, axis="step")


def _memory(profile: FaultProfile, picture: StepPicture, other: StepPicture | None) -> Chart:
    x = np.array(picture.times_ns) / 1e6
    series = [
        _series(word(role), np.array(picture.live_bytes[role]) / _MIB, number)
        for number, role in enumerate(ROLES)
        if any(picture.live_bytes.get(role, ()))
    ]
    environment = profile.environment
    limits = [each for each in (environment.capacity_bytes, environment.budget_bytes) if each is not None]
    more: Chart = {"stepped": True, "limit": {"name": "what the device may hold", "value": min(limits) / _MIB}}
    if other is not None and other.times_ns:
        live = np.sum([other.live_bytes[role] for role in other.live_bytes], axis=0) / _MIB
        there = live[np.maximum(np.searchsorted(np.array(other.times_ns) / 1e6, x, "right") - 1, 0)]
        values = [value if at <= other.duration_ns / 1e6 else None for at, value in zip(x, there.tolist(), strict=True)]
        more["lines"] = [_series("all of the other run", values, 7, dashed=True)]
    return _chart("memory", "Live tensors by role", "stack", "MiB", _rounded(x), series, **more)


def _lifetimes(picture: StepPicture) -> Chart:
    rows = [
        [
            round(each.start_ns / 1e6, 4),
            round(each.end_ns / 1e6, 4),
            each.bytes,
            ROLES.index(each.role),
            picture.names[each.name] or "(none)",
        ]
        for each in picture.tensors
    ]
    title = f"Lifetimes of the {len(rows):,} largest tensors"
    series = [
        {"name": word(role), "values": [], "colour": number, "dashed": False}
        for number, role in enumerate(ROLES)
        if any(row[3] == number for row in rows)
    ]
    return _chart("lifetimes", title, "lives", "", [0, picture.duration_ns / 1e6], series, lives=rows)


def _links(picture: StepPicture) -> Chart:
    part_s = picture.duration_ns / BINS / 1e9 or 1
    ways = (("to the device", TO_DEVICE), ("to the host", TO_HOST))
    series = [
        _series(name, _spread(picture, kinds, "bytes") / part_s / 1e9, number)
        for number, (name, kinds) in enumerate(ways)
    ]
    return _chart("links", "Both ways of the link", "line", "GB/s", _middles(picture), series)


def _stalls(picture: StepPicture) -> Chart:
    part_ns = picture.duration_ns / BINS or 1
    causes: tuple[tuple[str, SpanWord], ...] = (
        ("fault service", "fault_group"),
        ("waits for copies", "wait_copy"),
        ("waits for room", "wait_room"),
    )
    series = [
        _series(name, _spread(picture, (kind,), "duration_ns") / part_ns * 100, number)
        for number, (name, kind) in enumerate(causes)
    ]
    return _chart("stalls", "Part of the time that ops stood still", "stack", "%", _middles(picture), series)


def _middles(picture: StepPicture) -> list[float]:
    return _rounded((np.arange(BINS) + 0.5) * picture.duration_ns / BINS / 1e6)


def _rounded(values: Floats) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def _spread(picture: StepPicture, kinds: Sequence[SpanWord], what: str) -> Floats:
    """Sums of the spans' bytes or durations in each part of the step, shared out by time."""
    spans = [span for span in picture.spans if span.kind in kinds]
    if not spans or not picture.duration_ns:
        return np.zeros(BINS)
    starts = np.array([span.start_ns for span in spans], np.float64)
    ends = starts + [max(span.duration_ns, 1) for span in spans]
    amounts = np.array([getattr(span, what) for span in spans], np.float64)
    edges = np.linspace(0, picture.duration_ns, BINS + 1)
    edges[-1] = max(edges[-1], ends.max())
    parts = np.clip((edges[:, None] - starts) / np.maximum(ends - starts, 1), 0, 1)
    return np.diff(parts @ amounts)
