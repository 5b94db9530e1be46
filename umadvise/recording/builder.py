"""Building a trace row by row, as tests and tools do."""

import numpy as np

from umadvise.recording.tables import AnyTable
from umadvise.records.columns import Columns
from umadvise.records.device import DType
from umadvise.records.enums import Role
from umadvise.records.names import clean_name
from umadvise.records.trace import (
    ARITHMETIC,
    UNKNOWN,
    Access,
    Accesses,
    EventKind,
    Events,
    Ops,
    Source,
    Storages,
    Target,
    Trace,
)
from umadvise.records.trace_check import check


class TraceBuilder:
    """Builds a trace from what happens, in the order in which it happens.

    Between `begin_op` and `end_op` events are inside that op, else after the last one.
    """

    def __init__(self) -> None:
        self._strings: dict[str, int] = {"": 0}
        self._rows: dict[type[Columns], list[dict[str, int]]] = {Storages: [], Ops: [], Accesses: [], Events: []}
        self._inside = 0

    def _string(self, text: str) -> int:
        return self._strings.setdefault(clean_name(text), len(self._strings))

    def _table(self, kind: type[AnyTable]) -> AnyTable:
        rows = self._rows[kind]
        return kind(**{name: np.array([row[name] for row in rows]) for name in kind.DTYPES})

    @property
    def op_count(self) -> int:
        """Number of ops that have begun."""
        return len(self._rows[Ops])

    def allocate(self, bytes_: int, role: Role, name: str = "", module: str = "") -> int:
        """Adds the allocation of a storage; returns its index."""
        names = {"name": self._string(name), "module": self._string(module)}
        self._rows[Storages].append({"bytes": bytes_, "role": role, "successor": -1} | names)
        index = len(self._rows[Storages]) - 1
        self.event(EventKind.ALLOCATE, index)
        return index

    def free(self, storage: int) -> None:
        """Adds the freeing of a storage."""
        self.event(EventKind.FREE, storage)

    def set_successor(self, storage: int, successor: int) -> None:
        """Says that `successor` has taken the place of `storage` when the trace ends, so that it can be repeated."""
        self._rows[Storages][storage]["successor"] = successor

    def event(self, kind: EventKind, storage: int, offset_bytes: int = 0, bytes_: int = 0) -> None:
        """Adds another event of a storage."""
        place = {"op": self.op_count - 1, "inside": self._inside}
        row = {"kind": kind, "storage": storage, "offset_bytes": offset_bytes, "bytes": bytes_}
        self._rows[Events].append(place | row)

    def begin_op(self, name: str, *, module: str = "", arithmetic: DType = "fp32", **columns: int | None) -> int:
        """Begins an op; returns its index. `columns` are others of `Ops`, by name; None is unknown, as by default.

        Raises:
            TypeError: ops have no such column.
        """
        if odd := columns.keys() - Ops.DTYPES.keys():
            raise TypeError(f"ops have no column {', '.join(sorted(odd))}")
        row = dict.fromkeys(Ops.DTYPES, 0) | {"step": 1, "duration_ns": UNKNOWN, "flops": UNKNOWN}
        row |= {"name": self._string(name), "module": self._string(module), "arithmetic": ARITHMETIC.index(arithmetic)}
        self._rows[Ops].append(row | {column: number for column, number in columns.items() if number is not None})
        self._inside = 1
        return self.op_count - 1

    def access(self, storage: int, flags: Access, offset_bytes: int = 0, bytes_: int | None = None) -> None:
        """Adds a range that the latest op touches; all of the storage where `bytes_` is None."""
        if bytes_ is None:
            bytes_ = self._rows[Storages][storage]["bytes"] - offset_bytes
        row = {"op": self.op_count - 1, "storage": storage, "flags": int(flags)}
        self._rows[Accesses].append(row | {"offset_bytes": offset_bytes, "bytes": bytes_})

    def end_op(self) -> None:
        """Ends the op: what happens from now on is after it."""
        self._inside = 0

    def finish(
        self,
        *,
        target: Target,
        source: Source,
        device: str = "",
        torch_version: str = "",
        workload: str = "",
    ) -> Trace:
        """Makes the trace.

        Raises:
            ValueError: what was recorded contradicts itself.
        """
        trace = Trace(
            target=target,
            source=source,
            device=device,
            torch_version=torch_version,
            workload=workload,
            strings=tuple(self._strings),
            storages=self._table(Storages),
            ops=self._table(Ops),
            accesses=self._table(Accesses),
            events=self._table(Events),
        )
        check(trace)
        return trace
