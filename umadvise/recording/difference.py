"""Where two traces part, in words."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from umadvise.records.enums import Role
from umadvise.records.trace import Access, EventKind, Trace, TracedOp
from umadvise.records.units import format_bytes

MOST_LINES = 40
"""What is said of one kind of difference; the rest is counted."""


def differences(left: Trace, right: Trace) -> list[str]:
    """Sentences about what differs, the first place where the steps part before all else; empty for equal traces.

    Storages correspond by the order of their birth; durations, FLOPs and names of workloads are no differences.
    """
    return [*_headers(left, right), *_parting(left, right), *_surplus_ops(left, right), *_totals(left, right)]


def _headers(left: Trace, right: Trace) -> Iterator[str]:
    for field in ("target", "torch_version"):
        ours, theirs = getattr(left, field), getattr(right, field)
        if ours != theirs:
            yield f"The {field.replace('_', ' ')} is {ours!r} here, {theirs!r} there."


def _birth_order(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each storage its place in the order of births."""
    place = np.empty(len(trace.storages), np.int64)
    born = trace.events.storage[trace.events.kind == EventKind.ALLOCATE]
    place[born] = np.arange(len(born))
    return place


def _parting(left: Trace, right: Trace) -> Iterator[str]:
    """The first op that differs, and how."""
    ours, theirs = _birth_order(left), _birth_order(right)
    common = min(len(left.ops), len(right.ops))
    for index in range(common):
        how = _op_difference(left.op(index), right.op(index), left, right, ours, theirs)
        if how is not None:
            yield f"The steps agree for {index} ops. Op {index} differs: {how}."
            return
    if len(left.ops) != len(right.ops):
        longer, where = (left, "here") if len(left.ops) > len(right.ops) else (right, "there")
        yield (
            f"The steps agree for {common} ops; {where} {len(longer.ops) - common} more follow, "
            f"the first is {_op_words(longer.op(common))}."
        )


def _op_words(op: TracedOp) -> str:
    place = f" in {op.module}" if op.module else ""
    return f"{op.name}{place} ({op.phase.name.lower()})"


def _op_difference(
    op: TracedOp,
    other: TracedOp,
    left: Trace,
    right: Trace,
    ours: np.ndarray[tuple[int], np.dtype[np.int64]],
    theirs: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> str | None:
    if (op.name, op.phase, op.module) != (other.name, other.phase, other.module):
        return f"{_op_words(op)} here, {_op_words(other)} there"
    if len(op.accesses) != len(other.accesses):
        return f"{_op_words(op)} touches {len(op.accesses)} ranges here, {len(other.accesses)} there"
    for number, (mine, its) in enumerate(zip(op.accesses, other.accesses, strict=True)):
        what = f"{_op_words(op)}, range {number}: "
        size, other_size = int(left.storages.bytes[mine.storage]), int(right.storages.bytes[its.storage])
        if size != other_size:
            return f"{what}a storage of {size} bytes here, of {other_size} there"
        if (mine.offset_bytes, mine.bytes) != (its.offset_bytes, its.bytes):
            return (
                f"{what}{mine.bytes} bytes from offset {mine.offset_bytes} here, "
                f"{its.bytes} from {its.offset_bytes} there"
            )
        if mine.flags != its.flags:
            return f"{what}{_flag_words(mine.flags)} here, {_flag_words(its.flags)} there"
        if ours[mine.storage] != theirs[its.storage]:
            return f"{what}{_storage_words(left, mine.storage)} here, {_storage_words(right, its.storage)} there"
    return None


def _flag_words(flags: Access) -> str:
    return " and ".join(str(flag.name).lower().replace("_", " ") for flag in Access if flag in flags)


def _storage_words(trace: Trace, index: int) -> str:
    storage = trace.storage(index)
    name = storage.name or f"a storage of {format_bytes(storage.bytes)}"
    return f"{name} ({storage.role.name.lower().replace('_', ' ')}, born at op {storage.birth_op})"


def _surplus_ops(left: Trace, right: Trace) -> Iterator[str]:
    ours, theirs = (Counter(trace.strings[name] for name in trace.ops.name) for trace in (left, right))
    surplus = sorted(name for name in ours.keys() | theirs.keys() if ours[name] != theirs[name])
    for name in surplus[:MOST_LINES]:
        yield f"{name} runs {ours[name]} times here, {theirs[name]} there."
    if len(surplus) > MOST_LINES:
        yield f"{len(surplus) - MOST_LINES} more operators run a different number of times."


def _totals(left: Trace, right: Trace) -> Iterator[str]:
    if left.peak_bytes != right.peak_bytes:
        yield f"The peak is {format_bytes(left.peak_bytes)} here, {format_bytes(right.peak_bytes)} there."
    for role in Role:
        sums = [
            (int((rows := trace.storages.role == role).sum()), trace.storages.bytes[rows]) for trace in (left, right)
        ]
        (ours, our_bytes), (theirs, their_bytes) = sums
        if ours != theirs or our_bytes.sum() != their_bytes.sum():
            yield (
                f"{role.name.lower().replace('_', ' ').capitalize()}: {ours} storages of "
                f"{format_bytes(int(our_bytes.sum()))} here, {theirs} of {format_bytes(int(their_bytes.sum()))} there."
            )
