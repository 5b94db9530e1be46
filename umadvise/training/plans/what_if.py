"""A recorded step as it would be after a change of the program: the simulator then says what the change is worth."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from umadvise._native.abi import Allocation, Memory
from umadvise.planners.capacity import resized
from umadvise.recording.recorded_step import RecordedStep, renumbered
from umadvise.recording.tables import rows
from umadvise.records.enums import Phase, Role
from umadvise.records.names import clean_name
from umadvise.records.trace import UNKNOWN, Access, Accesses, EventKind, Events, Trace
from umadvise.records.trace_check import check
from umadvise.records.units import BLOCK_BYTES

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
    trace = resized(trace, np.where(gone, 0, trace.storages.bytes))
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
    """The optimizer keeps no state: one op updates each parameter by its gradient, as torch.optim.SGD does.

    That is the op which writes the parameter last. It takes as much less time as it reads and writes fewer bytes.
    """
    trace = step.trace
    ops, accesses, events, role = trace.ops, trace.accesses, trace.events, trace.storages.role
    updates = ops.phase == Phase.OPTIMIZER
    # The last entry, [-1], is what is there before the first op.
    kept = (role != Role.OPTIMIZER_STATE) & ~np.append(updates, False)[trace.births]
    of_updates, roles = updates[accesses.op], np.where(kept, role, Role.OPTIMIZER_STATE)[accesses.storage]
    written = np.flatnonzero(of_updates & (roles == Role.PARAMETER) & (accesses.flags & Access.WRITE > 0))
    last = np.full(len(role), -1)
    last[accesses.storage[written]] = accesses.op[written]  # ops never fall
    written = written[accesses.op[written] == last[accesses.storage[written]]]
    gradients = np.flatnonzero(of_updates & (roles == Role.GRADIENT))
    gradients = gradients[np.sort(np.unique(accesses.storage[gradients], return_index=True)[1])]
    readers = _readers(trace, gradients, written)
    before_bytes = np.bincount(accesses.op, _traffic_bytes(accesses), len(ops))
    after_bytes = np.bincount(accesses.op[written], _traffic_bytes(accesses)[written], len(ops))
    after_bytes = after_bytes + np.bincount(readers, accesses.bytes[gradients], len(ops))
    timed = updates & (before_bytes > 0) & (ops.duration_ns != UNKNOWN)
    part = np.where(timed, after_bytes / np.maximum(before_bytes, 1), 1.0)
    stays = np.append(~updates | np.isin(np.arange(len(ops)), (*accesses.op[written], *readers)), True)
    number = np.append(np.cumsum(stays[:-1]) - 1, -1)
    others = np.flatnonzero(~of_updates & kept[accesses.storage])
    used = np.concatenate([others, written, gradients])
    by = np.concatenate([accesses.op[others], accesses.op[written], readers])
    flags = np.where(np.arange(len(used)) < len(used) - len(gradients), accesses.flags[used], Access.READ)
    order = np.argsort(by, kind="stable")
    shorter = replace(
        trace,
        ops=rows(ops, stays[:-1], duration_ns=np.rint(ops.duration_ns * part).astype(np.int64)[stays[:-1]]),
        accesses=rows(accesses, used[order], op=number[by[order]], flags=flags[order].astype(np.uint8)),
        events=rows(events, ..., op=number[events.op], inside=np.where(stays[events.op], events.inside, 0)),
    )
    chosen = np.flatnonzero(kept)
    changed = renumbered(shorter, chosen)
    check(changed)
    return replace(step, trace=changed, serials=step.serials[chosen])


def _readers(trace: Trace, gradients: NDArray[np.int64], written: NDArray[np.int64]) -> NDArray[np.int64]:
    """The op that reads each gradient once there is no state.

    That is the one that updates the parameter which it belongs to: of those of its size the next one. Where there is
    none, or the gradient does not live then, it is the op that reads it first now.

    Args:
        trace: trace of the step.
        gradients: access of each gradient by the op of an optimizer that uses it first.
        written: access of each parameter by the op that writes it last.
    """
    accesses, sizes = trace.accesses, trace.storages.bytes
    updates: dict[int, list[int]] = {}
    for row in written[::-1].tolist():
        updates.setdefault(int(sizes[accesses.storage[row]]), []).append(int(accesses.op[row]))
    readers = accesses.op[gradients].astype(np.int64)
    for index, storage in enumerate(accesses.storage[gradients].tolist()):
        left = updates.get(int(sizes[storage]))
        reader = left.pop() if left else -1
        if trace.births[storage] < reader <= trace.deaths[storage]:
            readers[index] = reader
    return readers


def _traffic_bytes(accesses: Accesses) -> NDArray[np.int64]:
    """Bytes that each access moves: those that are read and written count twice."""
    both = Access.READ | Access.WRITE
    return accesses.bytes * np.where(accesses.flags & both == both, 2, 1)


def without(step: RecordedStep, serials: frozenset[int]) -> RecordedStep:
    """Some allocations take no memory of the step: they stay where they are, and their bytes are no part of it."""
    gone = np.isin(step.serials, np.array(sorted(serials), np.uint64))
    sizes = np.where(gone, 0, step.trace.storages.bytes)
    return replace(step, trace=resized(step.trace, sizes)) if gone.any() else step


def _last_uses(trace: Trace) -> NDArray[np.int64]:
    """The last op that uses each storage, or after which somebody outside of ops does; -1 where there is none."""
    last = np.full(len(trace.storages), -1, np.int64)
    np.maximum.at(last, trace.accesses.storage, trace.accesses.op)
    uses = (trace.events.kind != EventKind.ALLOCATE) & (trace.events.kind != EventKind.FREE)
    np.maximum.at(last, trace.events.storage[uses], trace.events.op[uses])
    return last


def scattered_bytes(allocations: Iterable[Allocation]) -> int:
    """Room that the optimizer's state in unified memory takes beside its own bytes, where a step has made it.

    It lies among what else the step made, and stays when that is gone. A plan that gives new memory another advice puts
    it elsewhere, so that nobody uses what is between; a simulation has the state in one piece.

    Args:
        allocations: those that live between two steps.
    """
    state = [each for each in allocations if each.memory == Memory.MANAGED and each.role == Role.OPTIMIZER_STATE]
    blocks = {
        block
        for each in state
        for block in range(each.address // BLOCK_BYTES, -(-(each.address + each.bytes) // BLOCK_BYTES))
    }
    packed = -(-sum(each.reserved_bytes for each in state) // BLOCK_BYTES)
    return max(len(blocks) - packed, 0) * BLOCK_BYTES
