"""A recorded step, ready to be planned for and followed: its trace in canonical order, and which allocations it is of.

A step goes from its beginning to that of the next one, but the ops between two steps are no part of it: of what they do
only counts what is there, and what is not, when the next one begins. Its storages are numbered in the order in which it
first uses them, so that two recordings of a step that comes again have the same numbers, wherever its tensors lie and
whatever else is alive.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from umadvise import _native
from umadvise._native.abi import Allocation
from umadvise.errors import UsageError
from umadvise.recording import cut, live
from umadvise.recording.heirs import near_heirs
from umadvise.recording.present import first_uses
from umadvise.recording.tables import rows
from umadvise.records.enums import Role
from umadvise.records.trace import EventKind, Trace

_STATE = (Role.PARAMETER, Role.GRADIENT, Role.OPTIMIZER_STATE)
_MOST_GROWTH = 0.01
"""Part of a step's peak that may come to stay without a role that says so: losses in a list, running averages."""
Numbers = NDArray[np.int64]
DurationSource = Literal["device", "host", "roofline", "first step"]


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """One recorded step, and the allocations that it was recorded from.

    Attributes:
        trace: the step as `recording.cut` cuts it out, with its storages in canonical order.
        serials: serial number of the device's allocation that each storage of the trace was.
        durations: clock that timed the ops. The host's times are those of launches where it runs ahead of the
            device; "device" where the device timed every op of the step; "roofline" where nothing has run yet; "first
            step" where they are those of a training's first step, in which ops take longer than they will.
    """

    trace: Trace
    serials: NDArray[np.uint64]
    durations: DurationSource

    @property
    def digest(self) -> str:
        """Hexadecimal digest that is equal for steps of equal structure, see `Trace.structure_digest`."""
        return self.trace.structure_digest

    @cached_property
    def ops_digest(self) -> str:
        """Hexadecimal digest that is equal for steps whose ops have equal names and use equal storages.

        Their sizes may differ, and so may what ops allocate besides. A plan of one such step can be fitted to the
        others, see `umadvise.records.plan.Plan.fitted`.
        """
        trace = self.trace
        hasher = hashlib.sha256("\n".join(map(trace.strings.__getitem__, trace.ops.name.tolist())).encode())
        for column in (trace.accesses.op, trace.accesses.storage, trace.accesses.flags):
            hasher.update(len(column).to_bytes(8, "little") + column.tobytes())
        return hasher.hexdigest()

    @property
    def is_steady(self) -> bool:
        """Whether the next step may be like this one: see `growth_bytes`."""
        state_bytes, other_bytes = growth_bytes(self.trace)
        return state_bytes == 0 and other_bytes <= _MOST_GROWTH * self.trace.peak_bytes

    def first_serials(self) -> NDArray[np.uint64]:
        """Serial number of the allocation that each storage is when the next step begins; 0 if it is still to be made.

        As csrc/engine/indexed_trace has it: a storage that is there when the step begins is the same one when the
        next one does, or its successor where it died.
        """
        source = self.trace.continued_from
        return np.where(source >= 0, self.serials[source], 0).astype(np.uint64)


def recorded_step(recording: _native.Recording, number: int, alive: Sequence[Allocation], **words: Any) -> RecordedStep:
    """Takes one step out of what a device recorded.

    Args:
        recording: everything that a device recorded, from `_native.Device.recorded`, at least to the end of the step.
        number: the step's number: 1, 2, ...
        alive: the allocations that are live when the next step begins.
        words: target, device and workload, named as in `live.trace_of`.

    Raises:
        StateError: the recording is not whole.
        UsageError: there is no such step, or no op in it.
    """
    recording = _up_to_the_next(recording, number, alive)
    first_event, _ = live.edges_of(recording, number)
    whole = live.trace_of(recording, **words)
    trace, kept = cut.step_and_rows(whole, number, first_event, len(whole.events))
    trace, order = in_canonical_order(as_grown(trace))
    own = recording.ops[recording.ops["step"] == number]
    return RecordedStep(
        trace=trace,
        serials=recording.allocations["allocation"][kept[order]].astype(np.uint64),
        durations="device" if own["device_time"].all() else "host",
    )


def as_grown(trace: Trace) -> Trace:
    """A step in which what comes in place of something of about the size goes on as that, as a cache does that grows.

    Of the two sizes both have the larger one: a storage has one size, whenever its step comes.
    """
    last, successor, size = len(trace.ops), trace.storages.successor.copy(), trace.storages.bytes.copy()
    gone = np.flatnonzero((trace.births < 0) & (trace.deaths < last) & (successor < 0))
    come = np.setdiff1d(np.flatnonzero((trace.births >= 0) & (trace.deaths == last)), successor)
    columns = (getattr(trace.storages, each).tolist() for each in ("role", "bytes", "name"))
    likeness = list(zip(*columns, strict=True))
    for place, heir in near_heirs([likeness[each] for each in gone], [likeness[each] for each in come]).items():
        both = [gone[place], come[heir]]
        successor[both[0]] = both[1]
        size[both] = size[both].max()
    return dataclasses.replace(trace, storages=rows(trace.storages, ..., successor=successor, bytes=size))


def _up_to_the_next(recording: _native.Recording, number: int, alive: Sequence[Allocation]) -> _native.Recording:
    """The recording up to the end of a step; what has come and gone until the next one has so after its last op."""
    own = np.flatnonzero(recording.ops["step"] == number)
    if not len(own):
        raise UsageError(f"nothing ran in step {number}: expected a step with at least one op")
    end = int(own[-1]) + 1
    edges = recording.edges
    later = edges[np.flatnonzero(edges["step"] == number)[0] + 1 :]
    events = recording.events[: int(later["first_event"][0]) if len(later) else len(recording.events)]
    known = np.unique(events["allocation"])
    present = events[events["kind"] == EventKind.ALLOCATE]["allocation"]
    gone = np.setdiff1d(present, events[events["kind"] == EventKind.FREE]["allocation"])
    now = np.array([each.serial for each in alive], np.uint64)
    gone, come = np.setdiff1d(gone, now), np.setdiff1d(now, known)
    known_rows = recording.allocations[np.isin(recording.allocations["allocation"], known)]
    return dataclasses.replace(
        recording,
        ops=recording.ops[:end],
        allocations=np.concatenate(
            [known_rows, _allocations([each for each in alive if each.serial in set(come.tolist())], known_rows.dtype)]
        ),
        events=np.concatenate(
            [
                events,
                _events_after(end - 1, EventKind.FREE, gone, events.dtype),
                _events_after(end - 1, EventKind.ALLOCATE, come, events.dtype),
            ]
        ),
    )


def _allocations(alive: Sequence[Allocation], dtype: Any) -> NDArray[Any]:
    rows = np.zeros(len(alive), dtype)
    for row, each in zip(rows, sorted(alive, key=lambda each: each.serial), strict=True):
        row["allocation"], row["bytes"], row["role"], row["seen"] = each.serial, each.bytes, each.role, each.seen
        row["name"], row["module"] = _native.intern(each.name), _native.intern(each.birth_module)
    return rows


def _events_after(op: int, kind: EventKind, serials: NDArray[np.uint64], dtype: Any) -> NDArray[Any]:
    rows = np.zeros(len(serials), dtype)
    rows["allocation"], rows["kind"], rows["op"] = serials, kind, op
    return rows


def in_canonical_order(trace: Trace) -> tuple[Trace, Numbers]:
    """Sorts a step's storages into the order in which it uses them; also returns which ones they were before.

    Those that are there and that the step does not use come last.
    """
    chosen = np.argsort(first_uses(trace), kind="stable").astype(np.int64)
    return renumbered(trace, chosen), chosen


def renumbered(trace: Trace, chosen: Numbers) -> Trace:
    """The trace with only some storages, in a given order; nothing in it may use the others."""
    new_index = np.full(len(trace.storages) + 1, -1, np.int64)  # one more: the successor of none
    new_index[chosen] = np.arange(len(chosen))
    kept = new_index[trace.events.storage] >= 0
    events = rows(trace.events, kept, storage=new_index[trace.events.storage[kept]])
    first = (events.op == -1) & (events.kind == EventKind.ALLOCATE)
    rank = np.lexsort((np.where(first, events.storage, np.arange(len(first))), ~first))
    return dataclasses.replace(
        trace,
        storages=rows(trace.storages, chosen, successor=new_index[trace.storages.successor[chosen]]),
        accesses=rows(trace.accesses, ..., storage=new_index[trace.accesses.storage]),
        events=rows(events, rank),
    )


def growth_bytes(trace: Trace) -> tuple[int, int]:
    """Bytes that a step leaves behind: not there when it began, and in the place of nothing that was.

    Returns:
        Those of gradients, parameters and the optimizer's state, and all others. The first step of a training makes
        such state, and so is not like those that follow.
    """
    stays = (trace.births >= 0) & (trace.deaths == len(trace.ops))
    source = trace.continued_from
    stays[source[source >= 0]] = False
    state = np.isin(trace.storages.role, _STATE)
    sizes = trace.storages.bytes
    return int(sizes[stays & state].sum()), int(sizes[stays & ~state].sum())
