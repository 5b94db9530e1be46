"""One step cut out of a longer trace, in the form in which the dry recorder gives it."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from umadvise.errors import UsageError
from umadvise.recording.heirs import heirs
from umadvise.recording.present import in_order_of_use
from umadvise.recording.tables import rows
from umadvise.records.trace import EventKind, Events, Trace, event_positions
from umadvise.records.trace_check import check


def step(trace: Trace, number: int, first_event: int | None = None, end_event: int | None = None) -> Trace:
    """A step from its first op up to the next step's first, so that repeating it is what the program did.

    Storages that are alive at its beginning are allocated at op -1. One of them that dies in it has for its successor
    the storage that takes its place: of the same role, name and size, else of the same role and size.

    Args:
        trace: a trace that has that step.
        number: the step's number: 1, 2, ...
        first_event: the first event that belongs to the step; None is the first one after the last op before it, as if
            what lies between two steps belonged to the earlier one.
        end_event: the first event after the step; None is the first that belongs to the next step's first op.

    Raises:
        UsageError: the trace has no such step.
    """
    return step_and_rows(trace, number, first_event, end_event)[0]


def step_and_rows(
    trace: Trace, number: int, first_event: int | None = None, end_event: int | None = None
) -> tuple[Trace, NDArray[np.int64]]:
    """Cuts a step out as `step` does, and says which storage of the trace each of its storages is."""
    steps = trace.ops.step
    own = np.flatnonzero(steps == number)
    if number < 1 or not len(own):
        known = np.unique(steps[steps > 0])
        span = f"steps {known[0]} to {known[-1]}" if len(known) else "no steps"
        raise UsageError(f"the trace has no step {number}: it has {span}")
    later = np.flatnonzero(steps > number)
    first, end = int(own[0]), int(later[0]) if len(later) else int(own[-1]) + 1
    low, high = np.searchsorted(event_positions(trace), [3 * first, 3 * end]).tolist()
    within = np.arange(low if first_event is None else first_event, high if end_event is None else end_event)
    present = _alive_after(trace, int(within[0]) if len(within) else low)
    kept = np.concatenate([present, np.setdiff1d(np.unique(trace.events.storage[within]), present)])
    new_index = np.full(len(trace.storages), -1, np.int64)
    new_index[kept] = np.arange(len(kept))
    accesses = np.arange(trace.first_access[first], trace.first_access[end])
    cut = dataclasses.replace(
        trace,
        storages=rows(trace.storages, kept, successor=np.full(len(kept), -1)),
        ops=rows(trace.ops, np.arange(first, end), step=np.ones(end - first)),
        accesses=rows(
            trace.accesses,
            accesses,
            op=trace.accesses.op[accesses] - first,
            storage=new_index[trace.accesses.storage[accesses]],
        ),
        events=_events(trace, present, within, new_index, first),
    )
    successors = _successors(cut, len(present))
    cut = dataclasses.replace(cut, storages=rows(cut.storages, ..., successor=successors))
    check(cut)
    return in_order_of_use(cut), kept


def _alive_after(trace: Trace, count: int) -> NDArray[np.int64]:
    """The storages that are alive after so many events, in the order of their birth."""
    kind, storage = trace.events.kind[:count], trace.events.storage[:count]
    made, freed = storage[kind == EventKind.ALLOCATE], storage[kind == EventKind.FREE]
    alive: NDArray[np.int64] = made[~np.isin(made, freed)].astype(np.int64)
    return alive


def _events(
    trace: Trace, present: NDArray[np.int64], within: NDArray[np.int64], new_index: NDArray[np.int64], first: int
) -> Events:
    events = trace.events
    before, zeros = np.full(len(present), -1), np.zeros(len(present))
    return Events(
        kind=np.concatenate([np.full(len(present), EventKind.ALLOCATE), events.kind[within]]),
        op=np.concatenate([before, np.maximum(events.op[within] - first, -1)]),
        inside=np.concatenate([zeros, np.where(events.op[within] < first, 0, events.inside[within])]),
        storage=np.concatenate([new_index[present], new_index[events.storage[within]]]),
        offset_bytes=np.concatenate([zeros, events.offset_bytes[within]]),
        bytes=np.concatenate([zeros, events.bytes[within]]),
    )


def _successors(cut: Trace, present_count: int) -> NDArray[np.int64]:
    """Pairs what was there and is gone with what has come and stays, in order, by ever weaker likeness."""
    storages, op_count = cut.storages, len(cut.ops)
    stays = cut.deaths == op_count
    gone = [index for index in range(present_count) if not stays[index]]
    come = [index for index in range(present_count, len(storages)) if stays[index]]
    successor = np.full(len(storages), -1, np.int64)
    likeness = list(zip(storages.role.tolist(), storages.bytes.tolist(), storages.name.tolist(), strict=True))
    for place, heir in heirs([likeness[index] for index in gone], [likeness[index] for index in come]).items():
        successor[gone[place]] = come[heir]
    return successor
