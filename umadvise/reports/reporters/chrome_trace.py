"""A step as a trace in Chrome's JSON form, which Perfetto and chrome://tracing open.

The form is that of "Trace Event Format" (Google, section "Event Descriptions"): metadata (M), complete events (X) in
microseconds, counters (C), and flows (s, f) between slices.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import msgspec

from umadvise.errors import UsageError
from umadvise.records.counters import ROLES
from umadvise.records.fault_profile import FaultProfile
from umadvise.records.step_picture import TO_DEVICE, TO_HOST, PicturedOp, PicturedSpan, SpanWord, StepPicture
from umadvise.reports.reporters.tables import word

TraceEvent = dict[str, Any]
_PROCESS = 1
_TRACKS: tuple[tuple[str, tuple[SpanWord, ...]], ...] = (
    ("stalls: faults", ("fault_group",)),
    ("stalls: waits for copies", ("wait_copy",)),
    ("stalls: waits for room", ("wait_room",)),
    ("link: to the device", TO_DEVICE),
    ("link: to the host", TO_HOST),
)
_COMPUTE = 1
_LANES = 100
"""Threads that a track may have: spans that overlap lie beside each other."""


def render(profile: FaultProfile) -> bytes:
    """The document.

    Raises:
        UsageError: the profile has no picture of a step.
    """
    picture = profile.picture
    if picture is None:
        raise UsageError("the profile has no step, so there is nothing to trace: expected a run that ended one")
    environment = profile.environment
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"umadvise": environment.umadvise_version, "device": environment.device_name},
        "traceEvents": list(_events(picture, environment.script)),
    }
    return msgspec.json.encode(document) + b"\n"


def _events(picture: StepPicture, script: str | None) -> Iterator[TraceEvent]:
    yield _metadata("process_name", 0, name=f"step {picture.step} of {script or 'this run'}")
    yield from _thread(_COMPUTE, "compute")
    yield from (_op(op, picture.names) for op in picture.ops)
    flows, within = count(1), _Within(picture.ops)
    for track, (name, kinds) in enumerate(_TRACKS, 1):
        lanes = _lanes([span for span in picture.spans if span.kind in kinds])
        for lane, spans in enumerate(lanes):
            thread = track * _LANES + lane
            yield from _thread(thread, name if lane == 0 else f"{name} ({lane + 1})")
            for span in spans:
                yield _slice(span, picture.names, thread)
                if span.kind == "swap_in" and picture.ops:
                    yield from _flow(span, within, thread, flows)
    for at_ns, *live in zip(picture.times_ns, *(picture.live_bytes.get(role, ()) for role in ROLES), strict=False):
        by_role = {word(role): bytes_ for role, bytes_ in zip(ROLES, live, strict=True)}
        yield {"name": "live bytes", "ph": "C", "ts": _us(at_ns), "pid": _PROCESS, "args": by_role}


def _us(time_ns: int) -> float:
    return time_ns / 1000


def _metadata(kind: str, thread: int, **arguments: Any) -> TraceEvent:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": thread, "args": arguments}


def _thread(thread: int, name: str) -> Iterator[TraceEvent]:
    yield _metadata("thread_name", thread, name=name)
    yield _metadata("thread_sort_index", thread, sort_index=thread)


def _op(op: PicturedOp, names: Sequence[str]) -> TraceEvent:
    place = {"ts": _us(op.start_ns), "dur": _us(op.duration_ns), "pid": _PROCESS, "tid": _COMPUTE}
    about = {"module": names[op.module], "phase": op.phase or ""}
    return {"name": names[op.name], "cat": "op", "ph": "X", **place, "args": about}


def _slice(span: PicturedSpan, names: Sequence[str], thread: int) -> TraceEvent:
    place = {"ts": _us(span.start_ns), "dur": _us(_length_ns(span)), "pid": _PROCESS, "tid": thread}
    about = {"cause": span.cause, "bytes": span.bytes, "count": span.count, "tensor": names[span.subject]}
    name = names[span.subject] or span.kind
    return {"name": name, "cat": span.kind, "ph": "X", **place, "args": {**about, "op": names[span.op]}}


def _lanes(spans: Iterable[PicturedSpan]) -> list[list[PicturedSpan]]:
    """Spans so that none overlaps another one of its lane; there is one lane at least."""
    lanes: list[list[PicturedSpan]] = [[]]
    for span in spans:
        free = next(
            (lane for lane in lanes if not lane or lane[-1].start_ns + _length_ns(lane[-1]) <= span.start_ns), None
        )
        if free is None and len(lanes) < _LANES:
            lanes.append(free := [])
        (free if free is not None else lanes[-1]).append(span)
    return lanes


def _length_ns(span: PicturedSpan) -> int:
    """What has no length is drawn all the same: an arrow ends only at what has one."""
    return max(span.duration_ns, 1)


class _Within:
    """Moves a time into an op, as arrows are drawn only between slices: between two ops it counts for the first."""

    def __init__(self, ops: Sequence[PicturedOp]) -> None:
        self._starts = [op.start_ns for op in ops]
        self._ends = [op.start_ns + op.duration_ns for op in ops]

    def __call__(self, at_ns: int) -> int:
        place = max(bisect_right(self._starts, at_ns) - 1, 0)
        return max(min(at_ns, self._ends[place]), self._starts[place])


def _flow(span: PicturedSpan, within: _Within, thread: int, numbers: Iterator[int]) -> Iterator[TraceEvent]:
    """Arrows from the op that ran when a swap was ordered to the copy, and from the copy to the op that uses it."""
    if span.ordered_ns is not None:
        yield from _arrow("order", next(numbers), (within(span.ordered_ns), _COMPUTE), (span.start_ns, thread))
    if span.used_ns is not None and span.used_ns >= span.start_ns:
        yield from _arrow("use", next(numbers), (span.start_ns, thread), (within(span.used_ns), _COMPUTE))


def _arrow(name: str, number: int, begin: tuple[int, int], end: tuple[int, int]) -> Iterator[TraceEvent]:
    for phase, (at_ns, thread) in (("s", begin), ("f", end)):
        binding = {"bp": "e"} if phase == "f" else {}
        place = {"ts": _us(at_ns), "pid": _PROCESS, "tid": thread}
        yield {"name": name, "cat": "swap", "ph": phase, "id": number, **place, **binding}
