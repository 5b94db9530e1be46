"""A step's events and the recorded step, put into one picture in time."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umadvise.records.counters import PHASES, ROLES, Event
from umadvise.records.names import clean_name
from umadvise.records.step_picture import (
    MOST_OPS,
    MOST_POINTS,
    MOST_SPANS,
    MOST_TENSORS,
    SPAN_KINDS,
    STALLS,
    PicturedOp,
    PicturedSpan,
    PicturedTensor,
    StepPicture,
)
from umadvise.records.trace import EventKind, Trace

MOST_EVENTS = 1 << 17
"""Moves and stalls that are kept of one step, until it is pictured."""
_SAME_STEP = 0.9
"""Part of the events' ops that must be the recorded step's, for its ops to stand in the picture."""
Numbers = NDArray[np.int64]


@dataclass
class SeenStep:
    """What was seen of a step.

    Attributes:
        index: number of the step.
        start_ns: its begin, by the events' clock.
        duration_ns: length of the step.
        moves: its fault services, waits and copies.
        left_out: how many more there were.
        tensor_of: gives the name and birthplace that an allocation had last, as (name, module, op).
    """

    index: int
    start_ns: int = 0
    duration_ns: int = 0
    moves: list[Event] = field(default_factory=list)
    left_out: int = 0
    tensor_of: Callable[[int], tuple[Any, ...]] = lambda _: (None, None, None)


@dataclass(frozen=True)
class KnownStep:
    """A recorded step that the one that was seen may be like.

    Attributes:
        trace: trace of the step, as it was recorded or told.
        link_bytes_per_s: speed of the link to the device and from it; 0 where it is not known.
    """

    trace: Trace
    link_bytes_per_s: tuple[int, int] = (0, 0)


def pictured(seen: SeenStep, known: KnownStep | None) -> StepPicture:
    """The picture of a step.

    Args:
        seen: what was seen of it.
        known: a recorded step; where its ops are others than those of the events, or it is None, there are only events.
    """
    names = _Names()
    moves = sorted(seen.moves, key=lambda event: event.start_ns)
    spans = [_Span(event, event.start_ns - seen.start_ns, event.duration_ns, event.bytes) for event in moves]
    recorded: dict[str, Any] = {"ops": (), "ops_left_out": 0, "tensors": (), "times_ns": (), "live_bytes": {}}
    if known is not None and _is_like(moves, known.trace):
        times = _OpTimes(known.trace, seen)
        _queue_swaps(spans, known.link_bytes_per_s)
        _find_uses(spans, seen, known.trace, times)
        recorded = {
            "ops": _ops(known.trace, times, names),
            "ops_left_out": max(len(known.trace.ops) - MOST_OPS, 0),
            "tensors": _tensors(known.trace, times, names),
        } | _memory(known.trace, times)
    kept = [span for kind in SPAN_KINDS for span in bounded([each for each in spans if each.event.kind == kind])]
    return StepPicture(
        step=seen.index,
        duration_ns=seen.duration_ns,
        spans=tuple(span.named(names, seen) for span in sorted(kept, key=lambda span: span.start_ns)),
        events_left_out=seen.left_out,
        names=names.all,
        **recorded,
    )


class _Names:
    def __init__(self) -> None:
        self._index = {"": 0}

    def index(self, text: str | None) -> int:
        return self._index.setdefault(clean_name(text or ""), len(self._index))

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(self._index)


def _is_like(moves: Iterable[Event], trace: Trace) -> bool:
    names, count = trace.ops.name, len(trace.ops)
    inside = [event for event in moves if event.op_index > 0]
    same = sum(event.op_index <= count and trace.strings[names[event.op_index - 1]] == event.op for event in inside)
    return bool(same >= _SAME_STEP * len(inside))


class _OpTimes:
    """When each op of a recorded step ran in the step that was seen: what was measured stays, the rest goes between.

    Attributes:
        start_ns: when each op began, to stand still or to compute.
        compute_ns: when it began to compute.
        end_ns: when it ended.
    """

    def __init__(self, trace: Trace, seen: SeenStep) -> None:
        stalled = np.zeros(len(trace.ops), np.int64)
        span: dict[int, tuple[int, int]] = {}  # from its first stall to the end of its last one
        for event in seen.moves:
            if event.kind in STALLS and 0 < event.op_index <= len(trace.ops):
                op, start_ns = event.op_index - 1, event.start_ns - seen.start_ns
                stalled[op] += event.duration_ns
                first, last = span.get(op, (start_ns, 0))
                span[op] = min(first, start_ns), max(last, start_ns + event.duration_ns)
        clock = np.concatenate([[0], np.cumsum(np.maximum(trace.ops.duration_ns, 1) + stalled)])
        anchors = [
            pair
            for op, (first, last) in sorted(span.items())
            for pair in ((clock[op], first), (clock[op] + stalled[op], last))
        ]
        known, measured = np.array([(0, 0), *anchors, (clock[-1], seen.duration_ns)], np.float64).T
        measured = np.maximum.accumulate(np.clip(measured, 0, seen.duration_ns))
        self.start_ns, self.compute_ns, self.end_ns = (
            np.interp(places, known, measured).astype(np.int64)
            for places in (clock[:-1], clock[:-1] + stalled, clock[1:])
        )

    def of_events(self, trace: Trace) -> Numbers:
        """When each event of the trace happened."""
        op = trace.events.op
        inside = (trace.events.inside == 1) & (op >= 0)
        place = np.maximum(op, 0)
        at_ns = np.where(op < 0, 0, np.where(inside, self.start_ns[place], self.end_ns[place]))
        return np.maximum.accumulate(at_ns).astype(np.int64)


@dataclass
class _Span:
    event: Event
    start_ns: int
    duration_ns: int
    bytes: int
    count: int = 1
    used_ns: int | None = None

    def named(self, names: _Names, seen: SeenStep) -> PicturedSpan:
        event = self.event
        swap = event.kind in ("swap_in", "swap_out")
        return PicturedSpan(
            kind=event.kind,  # type: ignore[arg-type]  # one of SPAN_KINDS
            cause=event.cause,
            start_ns=max(self.start_ns, 0),
            duration_ns=self.duration_ns,
            bytes=self.bytes,
            count=self.count,
            subject=names.index(_tensor(*seen.tensor_of(event.allocation))),
            op=names.index(event.op),
            ordered_ns=max(event.start_ns - seen.start_ns, 0) if swap else None,
            used_ns=self.used_ns,
        )


def bounded(spans: Sequence[_Span], most: int = MOST_SPANS) -> list[_Span]:
    """As many spans of one kind, in order of time: those with the least time between them become one.

    Bytes and durations are added up, so that no sum changes; the longest says what they are about.
    """
    if len(spans) <= most:
        return list(spans)
    starts = np.array([span.start_ns for span in spans])
    ends = np.maximum.accumulate(starts + [span.duration_ns for span in spans])
    widest = np.argsort(ends[:-1] - starts[1:], kind="stable")[: most - 1]
    edges = [0, *np.sort(widest + 1).tolist(), len(spans)]
    return [_joined(spans[first:end]) for first, end in pairwise(edges)]


def _joined(spans: Sequence[_Span]) -> _Span:
    return replace(
        max(spans, key=lambda span: (span.duration_ns, span.bytes)),
        start_ns=spans[0].start_ns,
        duration_ns=sum(span.duration_ns for span in spans),
        bytes=sum(span.bytes for span in spans),
        count=len(spans),
    )


def _queue_swaps(spans: Iterable[_Span], link_bytes_per_s: tuple[int, int]) -> None:
    """Swaps follow each other on the link, in the order in which they were ordered: only the orders are measured."""
    free_ns = {"swap_in": 0, "swap_out": 0}
    speeds = dict(zip(free_ns, link_bytes_per_s, strict=True))
    for span in spans:
        kind = span.event.kind
        if kind in speeds and speeds[kind] > 0:
            span.start_ns = max(span.start_ns, free_ns[kind])
            span.duration_ns = round(span.bytes * 1e9 / speeds[kind])
            free_ns[kind] = span.start_ns + span.duration_ns


def _find_uses(spans: Iterable[_Span], seen: SeenStep, trace: Trace, times: _OpTimes) -> None:
    """When what was swapped in is used next."""
    swaps = [span for span in spans if span.event.kind == "swap_in"]
    between = np.searchsorted(times.start_ns, [span.start_ns for span in swaps]).tolist()
    ordered_in = [
        span.event.op_index - 1 if span.event.op_index else op for span, op in zip(swaps, between, strict=True)
    ]
    storage_of = _storages([(span.event, op) for span, op in zip(swaps, ordered_in, strict=True)], seen, trace)
    count = len(trace.ops)
    uses = np.unique(trace.accesses.storage.astype(np.int64) * count + trace.accesses.op)
    for span, op in zip(swaps, ordered_in, strict=True):
        storage = storage_of.get(span.event.allocation)
        if storage is None:
            continue
        place = int(np.searchsorted(uses, storage * count + op))
        if place < len(uses) and uses[place] // count == storage:
            span.used_ns = int(times.compute_ns[uses[place] % count])


def _storages(swaps: Iterable[tuple[Event, int]], seen: SeenStep, trace: Trace) -> dict[int, int]:
    """Storages of the recorded step that what is swapped in is; those that nobody can tell are left out.

    Swaps come with the op in which they are ordered. Both have the same size and the same name or birthplace, and the
    storage lives then. Several that are alike are told by their order, where as many allocations are swapped in.
    """
    alike: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for storage in np.lexsort((np.arange(len(trace.births)), trace.births)).tolist():
        alike[int(trace.storages.bytes[storage]), _name_of(trace, storage)].append(storage)
    ops: defaultdict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    for event, op in swaps:
        key = event.allocation_bytes, _tensor(*seen.tensor_of(event.allocation))
        ops[key].setdefault(event.allocation, op)
    found: dict[int, int] = {}
    for key, ordered_in in ops.items():
        storages = alike.get(key, [])
        if len(storages) == len(ordered_in):  # serial numbers are given in order of birth
            found |= zip(sorted(ordered_in), storages, strict=True)
            continue
        for allocation, op in ordered_in.items():
            live = [each for each in storages if trace.births[each] < op <= trace.deaths[each]]
            if len(live) == 1:
                found[allocation] = live[0]
    return found


def _tensor(name: str | None, module: str | None, op: str | None) -> str:
    """A tensor by its name, or where it was born."""
    return clean_name(name or (f"{op} in {module}" if op and module else op or module or ""))


def _name_of(trace: Trace, storage: int) -> str:
    birth, storages, strings = int(trace.births[storage]), trace.storages, trace.strings
    op = strings[trace.ops.name[birth]] if birth >= 0 else None
    return _tensor(strings[storages.name[storage]], strings[storages.module[storage]], op)


def _ops(trace: Trace, times: _OpTimes, names: _Names) -> tuple[PicturedOp, ...]:
    lengths = times.end_ns - times.compute_ns
    chosen = np.sort(np.argsort(-lengths, kind="stable")[:MOST_OPS])
    columns = (times.compute_ns, lengths, trace.ops.name, trace.ops.module, trace.ops.phase)
    return tuple(
        PicturedOp(
            start_ns=start_ns,
            duration_ns=duration_ns,
            name=names.index(trace.strings[name]),
            module=names.index(trace.strings[module]),
            phase=PHASES[phase],
        )
        for start_ns, duration_ns, name, module, phase in zip(*(each[chosen].tolist() for each in columns), strict=True)
    )


def _tensors(trace: Trace, times: _OpTimes, names: _Names) -> tuple[PicturedTensor, ...]:
    """The largest storages, in order of birth, and by role where they were there before."""
    at_ns, events, storages = times.of_events(trace), trace.events, trace.storages
    first = np.zeros(len(storages), np.int64)
    last = np.full(len(storages), times.end_ns[-1] if len(times.end_ns) else 0)
    for kind, column in ((EventKind.ALLOCATE, first), (EventKind.FREE, last)):
        rows = events.kind == kind
        column[events.storage[rows]] = at_ns[rows]
    chosen = np.argsort(-storages.bytes, kind="stable")[:MOST_TENSORS]
    chosen = chosen[np.lexsort((storages.role[chosen], first[chosen]))]
    return tuple(
        PicturedTensor(
            start_ns=int(first[each]),
            end_ns=int(last[each]),
            bytes=int(storages.bytes[each]),
            role=ROLES[storages.role[each]],
            name=names.index(_name_of(trace, each)),
        )
        for each in chosen.tolist()
    )


def _memory(trace: Trace, times: _OpTimes) -> dict[str, Any]:
    """Live bytes by role: of each of MOST_POINTS / 2 equal parts of the step its most and its last."""
    events, end_ns = trace.events, int(times.end_ns[-1]) if len(trace.ops) else 0
    at_ns = times.of_events(trace)
    sign = (events.kind == EventKind.ALLOCATE).astype(np.int64) - (events.kind == EventKind.FREE)
    change = sign * trace.storages.bytes[events.storage]
    role = trace.storages.role[events.storage]
    live = np.stack([np.cumsum(np.where(role == number, change, 0)) for number in range(len(ROLES))])
    part = np.minimum(at_ns * (MOST_POINTS // 2) // max(end_ns, 1), MOST_POINTS // 2 - 1)
    order = np.lexsort((live.sum(axis=0), part))  # the most of each part comes last
    ends = np.append(np.flatnonzero(np.diff(part)), len(part) - 1) if len(part) else np.array([], np.int64)
    rows = np.unique(np.concatenate([order[ends], ends]))
    return {
        "times_ns": tuple(at_ns[rows].tolist()),
        "live_bytes": {word: tuple(column[rows].tolist()) for word, column in zip(ROLES, live, strict=True)},
    }
