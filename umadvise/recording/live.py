"""The live recorder: what a device wrote down natively while a program ran, as a trace.

Nothing here runs once an op: the device's rows become columns by array operations.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from umadvise import _native
from umadvise.errors import StateError
from umadvise.recording import tables
from umadvise.recording.operators import OperatorInfo, derive
from umadvise.recording.tables import filled
from umadvise.records.enums import Phase, Role
from umadvise.records.trace import Access, Accesses, EventKind, Events, OpClass, Ops, Storages, Target, Trace
from umadvise.records.trace_check import check

_CHANGES = int(Access.READ | Access.WRITE | Access.IN_PLACE)
_MADE = int(Access.WRITE | Access.WHOLE)
Rows = NDArray[Any]
Numbers = NDArray[np.int64]


def trace_of(recording: _native.Recording, *, target: Target, device: str = "", workload: str = "") -> Trace:
    """The trace of all ops that a device recorded, in steps and outside of them.

    Args:
        recording: everything that a device recorded, from `_native.Device.recorded`.
        target: "cpu" for the emulated device, whose kernels are the CPU's, else "cuda".
        device: what the machine calls itself.
        workload: what ran, for reports.

    Raises:
        StateError: the recording is not whole.
    """
    if recording.lost:
        raise StateError(
            f"the recording has lost {recording.lost} rows: there was no memory left for it, or one op alone faulted "
            "more often than a device remembers. Record fewer steps, or on a device with more capacity"
        )
    names, (op_name, op_module, storage_name, storage_module) = _strings(recording)
    births = _births(recording)
    infos = [_operator(name) for name in names]
    trace = Trace(
        target=target,
        source="live",
        device=device,
        torch_version=str(torch.__version__),
        workload=workload,
        strings=tuple(names),
        storages=_storages(recording.allocations, storage_name, storage_module),
        ops=_ops(recording.ops, op_name, op_module, infos),
        accesses=_accesses(recording, op_name, infos, births),
        events=_events(recording),
    )
    check(trace)
    return trace


def _strings(recording: _native.Recording) -> tuple[list[str], list[Numbers]]:
    """Every name once, the empty one first, and the columns of names as indices of them."""
    ops, allocations = recording.ops, recording.allocations
    columns = [ops["op"], ops["module"], allocations["name"], allocations["module"]]
    interned, places = np.unique(np.concatenate([np.zeros(1, np.uint32), *columns]), return_inverse=True)
    ends = np.cumsum([1, *map(len, columns)])
    indices = [places[start:end].astype(np.int64) for start, end in pairwise(ends)]
    return [_native.string(int(number)) for number in interned], indices


def _operator(name: str) -> OperatorInfo | None:
    """What an operator does, None for what is no operator."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace, None), base, None) if base else None
    if not isinstance(packet, torch._ops.OpOverloadPacket) or (overload or "default") not in packet.overloads():
        return None
    return derive(getattr(packet, overload or "default"))


def _index_of(serials: Rows, allocations: Rows) -> Numbers:
    """Rows of the allocations with these serial numbers, which are in order of birth."""
    return np.searchsorted(allocations["allocation"], serials).astype(np.int64)


def _inside(recording: _native.Recording) -> Numbers:
    """For each event whether it happened within its op.

    While a thread's op runs, others allocate: after something that was outside of an op, nothing more is inside it.
    """
    op, inside = recording.events["op"].astype(np.int64), recording.events["inside"].astype(np.int64)
    ended = np.maximum.accumulate(np.where(inside == 0, op, -2)) if len(op) else op
    return np.where(ended == op, 0, inside)


def _births(recording: _native.Recording) -> Numbers:
    """For each allocation the op within which it was made, -1 for those made between ops."""
    events = recording.events
    made = events[(events["kind"] == EventKind.ALLOCATE) & (_inside(recording) == 1)]
    births = np.full(len(recording.allocations), -1, np.int64)
    births[_index_of(made["allocation"], recording.allocations)] = made["op"]
    return births


def _storages(allocations: Rows, name: Numbers, module: Numbers) -> Storages:
    role = allocations["role"].copy()
    role[(role == Role.INTERMEDIATE) & (allocations["seen"] == 0)] = Role.WORKSPACE
    return filled(Storages, len(role), bytes=allocations["bytes"], role=role, name=name, module=module)


def _ops(ops: Rows, name: Numbers, module: Numbers, infos: list[OperatorInfo | None]) -> Ops:
    classes = np.array([info.op_class if info else OpClass.OTHER for info in infos], np.uint8)
    waits = np.array([info is not None and info.host_touch for info in infos], np.uint8)
    return filled(
        Ops,
        len(ops),
        name=name,
        phase=np.minimum(ops["phase"], max(Phase)),
        module=module,
        step=ops["step"],
        op_class=classes[name],
        duration_ns=ops["duration_ns"],
        creates=ops["creates"],
        host_touch=waits[name],
    )


def _accesses(
    recording: _native.Recording, op_name: Numbers, infos: list[OperatorInfo | None], births: Numbers
) -> Accesses:
    """Arguments first, then the new storages that the op returned."""
    op, rows = _of_ops(recording.ops, "access", recording.accesses)
    made_op, made = _made(recording, births)
    sizes = recording.allocations["bytes"].astype(np.int64)
    accesses = Accesses(
        op=np.concatenate([op, made_op]),
        storage=np.concatenate([_index_of(rows["allocation"], recording.allocations), made]),
        offset_bytes=np.concatenate([rows["offset_bytes"].astype(np.int64), np.zeros(len(made), np.int64)]),
        bytes=np.concatenate([rows["bytes"].astype(np.int64), sizes[made]]),
        flags=np.concatenate([_flags(rows, op_name[op], infos), np.full(len(made), _MADE)]),
    )
    return tables.rows(accesses, np.argsort(accesses.op, kind="stable"))


def _of_ops(ops: Rows, what: str, rows: Rows) -> tuple[Numbers, Rows]:
    """The rows that belong to ops, op by op, and which op each belongs to."""
    count = ops[f"{what}_count"].astype(np.int64)
    op = np.repeat(np.arange(len(ops)), count)
    first = np.repeat(ops[f"first_{what}"].astype(np.int64), count)
    within = np.arange(len(op)) - np.repeat(np.cumsum(count) - count, count)
    return op, rows[first + within]


def _made(recording: _native.Recording, births: Numbers) -> tuple[Numbers, Numbers]:
    """Pairs of an op and a storage that it made, each once; what only makes memory touches none.

    What it returned comes first. What a hook or a function within it made and kept is given to a later op.
    """
    ops = recording.ops
    op, serials = _of_ops(ops, "output", recording.outputs)
    op, serials = op[serials != 0], serials[serials != 0]
    kept = np.flatnonzero((births >= 0) & (recording.allocations["seen"] != 0))
    kept = kept[~_ended_inside(recording, births)[kept]]
    op = np.concatenate([op, births[kept]])
    storage = np.concatenate([_index_of(serials, recording.allocations), kept])
    new = (births[storage] == op) & (ops["creates"][op] == 0)
    op, storage = op[new], storage[new]
    _, once = np.unique(storage, return_index=True)  # an allocation is born once, so one op at most made it
    once.sort()
    return op[once], storage[once]


def _ended_inside(recording: _native.Recording, births: Numbers) -> NDArray[np.bool_]:
    """For each allocation whether the op that made it has freed it as well."""
    events = recording.events
    freed = events[(events["kind"] == EventKind.FREE) & (_inside(recording) == 1)]
    index, ended = _index_of(freed["allocation"], recording.allocations), np.zeros(len(births), bool)
    ended[index] = births[index] == freed["op"]
    return ended


def _flags(rows: Rows, names: Numbers, infos: list[OperatorInfo | None]) -> Numbers:
    """Reads and writes are as the interposer saw them; what is overwritten whole is known of the operator."""
    argument, has_gaps = rows["argument"] >> 1, (rows["argument"] & 1).astype(bool)
    flags = np.where(rows["write"] != 0, _CHANGES, int(Access.READ)).astype(np.int64)
    pairs, places = np.unique(np.stack([names, argument.astype(np.int64)]), axis=1, return_inverse=True)
    overwrites = np.array([_overwrites(infos[name], index) for name, index in pairs.T.tolist()], bool)
    whole = overwrites[places.reshape(-1)] if len(overwrites) else np.zeros(len(rows), bool)
    flags[whole] = int(Access.WRITE)
    flags[whole & ~has_gaps] = _MADE
    return flags


def _overwrites(info: OperatorInfo | None, index: int) -> bool:
    return info is not None and any(each.index == index and each.flags & Access.WHOLE for each in info.arguments)


def _events(recording: _native.Recording) -> Events:
    events = recording.events
    return filled(
        Events,
        len(events),
        kind=events["kind"],
        op=events["op"].astype(np.int64),
        inside=_inside(recording),
        storage=_index_of(events["allocation"], recording.allocations),
        offset_bytes=events["offset_bytes"],
        bytes=events["bytes"],
    )


def edges_of(recording: _native.Recording, step: int) -> tuple[int | None, int | None]:
    """Indices of the first event of a step, and of the first one after it."""
    edges = recording.edges
    begins = np.flatnonzero(edges["step"] == step)
    if not len(begins):
        return None, None
    rest = edges[begins[0] + 1 :]
    ends = rest[rest["step"] > 0] if (rest["step"] > 0).any() else rest
    return int(edges["first_event"][begins[0]]), int(ends["first_event"][0]) if len(ends) else None
