"""A recorded step as it would be after a change of the program: the simulator then says what the change is worth."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from umadvise.recording.recorded_step import RecordedStep, renumbered
from umadvise.recording.tables import rows
from umadvise.records.enums import Phase, Role
from umadvise.records.names import clean_name
from umadvise.records.trace import UNKNOWN, Access, EventKind, Events, Trace
from umadvise.records.trace_check import check
from umadvise.training.plans.view import executed

_TORCHS_OWN_OPS = 3
"""So many ops after its last use a tensor may end without anybody's doing: torch frees what a function saved when all
ops of its backward have run, and what an expression made when the next one has."""


def held_for_nothing(step: RecordedStep) -> NDArray[np.int64]:
    """Intermediates that are held although nothing uses them any more, those with the most bytes and ops first."""
    trace = step.trace
    idle = trace.deaths - np.maximum(_last_uses(trace), trace.births)
    found = np.flatnonzero((trace.storages.role == Role.INTERMEDIATE) & (idle > _TORCHS_OWN_OPS))
    return found[np.argsort(-(trace.storages.bytes * idle)[found], kind="stable")]


def freed_sooner(step: RecordedStep) -> RecordedStep:
    """What is held for nothing is freed after the op that uses it last.

    What an earlier step left behind, and this one does not use, is not there.
    """
    trace, held = step.trace, np.sort(held_for_nothing(step))
    last = np.maximum(_last_uses(trace), trace.births)
    left_behind = held[last[held] < 0]
    held = held[trace.births[held] >= 0]
    gone = np.isin(np.arange(len(trace.storages)), left_behind)
    trace = executed(trace, ~gone)
    events = trace.events
    kept = (events.kind != EventKind.FREE) | ~np.isin(events.storage, held)
    columns = {name: getattr(events, name)[kept] for name in events.DTYPES}
    new = {name: np.zeros(len(held), column.dtype) for name, column in columns.items()}
    new |= {"kind": np.full(len(held), EventKind.FREE), "op": last[held], "storage": held}
    both = {name: np.concatenate([columns[name], new[name]]).astype(columns[name].dtype) for name in columns}
    order = np.lexsort((np.arange(len(both["op"])), both["inside"] == 0, both["op"]))
    successor = np.where(gone | np.isin(trace.storages.successor, held), -1, trace.storages.successor)
    changed = replace(
        trace,
        storages=rows(trace.storages, ..., successor=successor),
        events=Events(**{name: column[order] for name, column in both.items()}),
    )
    check(changed)
    return replace(step, trace=changed)


def maker_of(step: RecordedStep, storages: NDArray[np.int64]) -> str | None:
    """Op and module that make the first of some storages that the step makes, in words; None where it makes none."""
    births = step.trace.births[storages]
    if not (births >= 0).any():
        return None
    op = step.trace.op(int(births[births >= 0][0]))
    return clean_name(f"{op.name} in {op.module}" if op.module else op.name)


def stateless(step: RecordedStep) -> RecordedStep:
    """The optimizer keeps no state, and runs only ops that use parameters or gradients.

    Each takes as much less time as it reads and writes fewer bytes.
    """
    trace = step.trace
    ops, accesses, events, role = trace.ops, trace.accesses, trace.events, trace.storages.role
    updates = ops.phase == Phase.OPTIMIZER
    used = np.isin(role[accesses.storage], (Role.PARAMETER, Role.GRADIENT))
    both = Access.READ | Access.WRITE
    traffic = accesses.bytes * np.where(accesses.flags & both == both, 2, 1)
    all_bytes = np.bincount(accesses.op, traffic, len(ops))
    used_bytes = np.bincount(accesses.op[used], traffic[used], len(ops))
    timed = updates & (all_bytes > 0) & (ops.duration_ns != UNKNOWN)
    part = np.where(timed, used_bytes / np.maximum(all_bytes, 1), 1.0)
    # The last entry, [-1], is what is there before the first op.
    stays = np.append(~updates | (used_bytes > 0), True)
    kept = (role != Role.OPTIMIZER_STATE) & ~np.append(updates, False)[trace.births]
    number = np.append(np.cumsum(stays[:-1]) - 1, -1)
    use = stays[accesses.op] & kept[accesses.storage]
    shorter = replace(
        trace,
        ops=rows(ops, stays[:-1], duration_ns=np.rint(ops.duration_ns * part).astype(np.int64)[stays[:-1]]),
        accesses=rows(accesses, use, op=number[accesses.op[use]]),
        events=rows(events, ..., op=number[events.op], inside=np.where(stays[events.op], events.inside, 0)),
    )
    chosen = np.flatnonzero(kept)
    changed = renumbered(shorter, chosen)
    check(changed)
    return replace(step, trace=changed, serials=step.serials[chosen])


def without(step: RecordedStep, serials: frozenset[int]) -> RecordedStep:
    """Some allocations take no memory of the step: they stay where they are, and their bytes are no part of it."""
    gone = np.isin(step.serials, np.array(sorted(serials), np.uint64))
    return replace(step, trace=executed(step.trace, ~gone)) if gone.any() else step


def _last_uses(trace: Trace) -> NDArray[np.int64]:
    """The last op that uses each storage, or after which somebody outside of ops does; -1 where there is none."""
    last = np.full(len(trace.storages), -1, np.int64)
    np.maximum.at(last, trace.accesses.storage, trace.accesses.op)
    uses = (trace.events.kind != EventKind.ALLOCATE) & (trace.events.kind != EventKind.FREE)
    np.maximum.at(last, trace.events.storage[uses], trace.events.op[uses])
    return last
