"""The second step of a training, told from the first one: the first less what happens only once.

A training's first step makes the optimizer's state, and in a script that nobody has prepared the parameters too, which
are there from then on, and it finds no gradients of a step before. All else comes again. So the second step can be
planned before it was ever recorded; where it differs after all (momentum that begins as a copy of the gradient), it
leaves its plan there.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umadvise.recording.recorded_step import RecordedStep, in_canonical_order
from umadvise.recording.tables import filled, rows
from umadvise.records.enums import Phase, Role
from umadvise.records.trace import Access, EventKind, Events, Storages, Trace, event_positions
from umadvise.records.trace_check import check

Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]


def less_what_happens_once(first: RecordedStep) -> RecordedStep | None:
    """The step that follows a training's first one; None where that is not such a step.

    Args:
        first: recorded step that makes state which stays.
    """
    trace = first.trace
    come = (trace.births >= 0) & (trace.deaths == len(trace.ops))
    come[trace.continued_from[trace.continued_from >= 0]] = False
    state = come & np.isin(trace.storages.role, (Role.PARAMETER, Role.OPTIMIZER_STATE))
    gradients = come & (trace.storages.role == Role.GRADIENT)
    if not state.any() and not gradients.any():
        return None
    once = _makers(trace, state)
    if once.all():
        return None
    kept = np.flatnonzero(~_only_within(trace, once)).astype(np.int64)
    found = _with_those_of_before(_without(trace, once, kept, state), np.flatnonzero(gradients[kept]))
    try:
        check(found)
    except ValueError:
        return None  # an op that stays uses what one that goes has made
    found, order = in_canonical_order(found)
    serials = np.concatenate([first.serials[kept], np.zeros(int(gradients.sum()), np.uint64)])
    step = RecordedStep(found, serials[order], "first step")
    return step if step.is_steady else None


def _makers(trace: Trace, state: Flags) -> Flags:
    """The ops that only make state: all that each writes and leaves is new state, which nobody has read before."""
    count, accesses, events = len(trace.ops), trace.accesses, trace.events
    reads = ((accesses.flags & Access.READ) != 0) | ((accesses.flags & Access.WHOLE) == 0)
    writes = (accesses.flags & Access.WRITE) != 0
    read_first = np.full(len(trace.storages), count)
    np.minimum.at(read_first, accesses.storage[reads], accesses.op[reads])
    new = state[accesses.storage] & (accesses.op < read_first[accesses.storage])
    made = (events.kind == EventKind.ALLOCATE) & (events.op >= 0) & (events.inside == 1)
    made &= (trace.births != trace.deaths)[events.storage]
    of_state = state[events.storage]
    makes = _ops(count, accesses.op[writes & new], events.op[made & of_state])
    does_else = _ops(count, accesses.op[(writes | state[accesses.storage]) & ~new], events.op[made & ~of_state])
    return makes & ~does_else


def _ops(count: int, *indices: NDArray[np.integer[Any]]) -> Flags:
    found = np.zeros(count, bool)
    for each in indices:
        found[each] = True
    return found


def _only_within(trace: Trace, once: Flags) -> Flags:
    """Storages that live only within ops that go."""
    found: Flags = (trace.births >= 0) & (trace.births == trace.deaths) & once[np.maximum(trace.births, 0)]
    return found


def _without(trace: Trace, once: Flags, kept: Numbers, state: Flags) -> Trace:
    """The step without some ops, in which state is there from the beginning."""
    events, accesses = trace.events, trace.accesses
    new_index = np.full(len(trace.storages) + 1, -1, np.int64)  # one more: the successor of none
    new_index[kept] = np.arange(len(kept))
    new_op = np.cumsum(~once) - 1  # of an op that goes the one before it
    born = (events.kind == EventKind.ALLOCATE) & state[events.storage]
    there = Events(**{name: getattr(events, name)[born] for name in events.DTYPES})
    there = rows(there, ..., op=np.full(len(there), -1), inside=np.zeros(len(there)))
    rest = (new_index[events.storage] >= 0) & ~born
    gone = (events.op >= 0) & once[np.maximum(events.op, 0)]
    stays = rows(
        events,
        rest,
        op=np.where(events.op >= 0, new_op[np.maximum(events.op, 0)], -1)[rest],
        inside=np.where(gone, 0, events.inside)[rest],
    )
    both = _joined(there, stays)
    own = ~once[accesses.op]
    return dataclasses.replace(
        trace,
        storages=rows(trace.storages, kept, successor=new_index[trace.storages.successor[kept]]),
        ops=rows(trace.ops, ~once),
        accesses=rows(accesses, own, op=new_op[accesses.op[own]], storage=new_index[accesses.storage[own]]),
        events=rows(both, ..., storage=new_index[both.storage]),
    )


def _joined(one: Events, other: Events) -> Events:
    return Events(**{name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in Events.DTYPES})


def _with_those_of_before(trace: Trace, gradients: Numbers) -> Trace:
    """The step with the gradients of the one before, which it finds and frees before its backward."""
    if not len(gradients):
        return trace
    count = len(trace.storages)
    before = np.arange(count, count + len(gradients))
    old = rows(trace.storages, gradients, successor=gradients)
    backward = np.flatnonzero(trace.ops.phase == Phase.BACKWARD)
    last = int(backward[0]) - 1 if len(backward) else -1
    there, freed = (
        filled(Events, len(before), kind=np.full(len(before), kind), op=np.full(len(before), op), storage=before)
        for kind, op in ((EventKind.ALLOCATE, -1), (EventKind.FREE, last))
    )
    place = int(np.searchsorted(event_positions(trace), 3 * last + 2, side="right"))
    begin, end = rows(trace.events, slice(place)), rows(trace.events, slice(place, None))
    return dataclasses.replace(
        trace,
        storages=Storages(
            **{name: np.concatenate([getattr(trace.storages, name), getattr(old, name)]) for name in Storages.DTYPES}
        ),
        events=_joined(there, _joined(begin, _joined(freed, end))),
    )
