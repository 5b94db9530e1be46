"""Whether a trace is one that a run could have produced."""

from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umadvise.records.columns import Columns
from umadvise.records.enums import Phase, Role
from umadvise.records.trace import (
    ARITHMETIC,
    MOST_BYTES,
    MOST_ROWS,
    TABLES,
    TARGETS,
    UNKNOWN,
    Access,
    EventKind,
    OpClass,
    Trace,
    event_positions,
)

_MOST_NUMBER, _MOST_NS = 2**31 - 1, 2**62


def check(trace: Trace) -> None:
    """Checks that a trace is one that a run could have produced.

    Raises:
        ValueError: it is not; the message names the table and the rule.
    """
    for table_name in TABLES:
        table: Columns = getattr(trace, table_name)
        lengths = table.lengths()
        _require(len(set(lengths.values())) == 1, f"{table_name}: columns of different lengths {lengths}")
        _require(len(table) <= MOST_ROWS, f"{table_name}: more than {MOST_ROWS} rows")
    _require(trace.target in TARGETS, f"unknown target {trace.target!r}: expected one of {', '.join(TARGETS)}")
    _require(trace.strings[:1] == ("",), "strings: the first must be empty")
    _check_bounds(trace)
    _check_order(trace)
    _check_events(trace)


def _require(holds: Any, message: str) -> None:
    if not np.all(holds):
        raise ValueError(message)


def _bounds(trace: Trace) -> tuple[tuple[int, int, str], ...]:
    """The least and the largest value, and the columns that may have them."""
    string, storage, op = len(trace.strings) - 1, len(trace.storages) - 1, len(trace.ops) - 1
    return (
        (0, MOST_BYTES, "storages.bytes accesses.offset_bytes accesses.bytes events.bytes"),
        (0, max(Role), "storages.role"),
        (0, string, "storages.name storages.module ops.name ops.module"),
        (-1, storage, "storages.successor"),
        (0, max(Phase), "ops.phase"),
        (0, max(OpClass), "ops.op_class"),
        (0, len(ARITHMETIC) - 1, "ops.arithmetic"),
        (0, _MOST_NUMBER, "ops.step ops.window_pages ops.run_pages ops.faults_per_service"),
        (UNKNOWN, _MOST_NS, "ops.duration_ns ops.flops"),
        (0, 1, "ops.creates ops.host_touch events.inside"),
        (0, op, "accesses.op"),
        (0, storage, "accesses.storage events.storage"),
        (1, int(~Access(0)), "accesses.flags"),
        (0, max(EventKind), "events.kind"),
        (-1, op, "events.op"),
        (-MOST_BYTES, MOST_BYTES, "events.offset_bytes"),
    )


def _check_bounds(trace: Trace) -> None:
    for low, high, columns in _bounds(trace):
        for name in columns.split():
            column: NDArray[Any] = attrgetter(name)(trace)
            if len(column) and (int(column.min()) < low or int(column.max()) > high):
                raise ValueError(f"{name}: expected values of {low} to {high}, found {column.min()} to {column.max()}")


def _check_order(trace: Trace) -> None:
    in_steps = trace.ops.step[trace.ops.step > 0]
    _require(np.diff(in_steps) >= 0, "ops.step: steps are out of order")
    table = trace.accesses
    _require(np.diff(table.op) >= 0, "accesses.op: ops are out of order")
    _require(table.flags & 3, "accesses.flags: an access neither reads nor writes")
    ends = table.offset_bytes + table.bytes
    _require(ends <= trace.storages.bytes[table.storage], "accesses: a range goes beyond its storage")


def _check_events(trace: Trace) -> None:
    table, count = trace.events, len(trace.storages)
    position = event_positions(trace)
    _require(np.diff(position) >= 0, "events: out of order")
    _require((table.op >= 0) | (table.inside == 0), "events: something happens inside op -1")
    order = np.arange(len(table))
    made, freed = np.full(count, -1, np.int64), np.full(count, len(table), np.int64)
    for kind, rows in ((EventKind.ALLOCATE, made), (EventKind.FREE, freed)):
        chosen = table.kind == kind
        _require(
            np.bincount(table.storage[chosen], minlength=count) <= 1,
            f"events: a storage has two events of kind {kind.name}",
        )
        rows[table.storage[chosen]] = order[chosen]
    _require(made >= 0, "events: a storage is never allocated")
    alive = (made[table.storage] <= order) & (order <= freed[table.storage])
    _require(alive, "events: something happens to a storage that is not alive")
    _check_lives(trace, position, made, freed)


def _check_lives(trace: Trace, position: NDArray[np.int64], made: NDArray[np.int64], freed: NDArray[np.int64]) -> None:
    end = 3 * len(trace.ops)
    birth = position[made] if len(made) else made
    death = np.append(position, end)[freed] if len(freed) else freed
    at = trace.accesses.op.astype(np.int64) * 3
    storage = trace.accesses.storage
    alive = (birth[storage] <= at + 1) & (death[storage] > at)
    _require(alive, "accesses: an op touches a storage that is not alive")
    heirs = np.flatnonzero(trace.storages.successor >= 0)
    heir_of = trace.storages.successor[heirs]
    inherits = (birth[heirs] < 0) & (death[heirs] < end) & (death[heir_of] == end)
    _require(inherits, "storages.successor: expected one that dies in the trace, and one that outlives it")
    _require(len(np.unique(heir_of)) == len(heir_of), "storages.successor: two storages have the same successor")
    sizes = trace.storages.bytes
    _require(sizes[heirs] == sizes[heir_of], "storages.successor: expected one of the same size")
