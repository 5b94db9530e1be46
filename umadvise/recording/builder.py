"""Building a trace row by row, as recorders and tests do."""

from collections.abc import Iterable

import numpy as np

from umadvise.records.device import DType
from umadvise.records.enums import Phase, Role
from umadvise.records.fault_profile import clean_name
from umadvise.records.trace import (
    ARITHMETIC,
    UNKNOWN,
    Access,
    Accesses,
    EventKind,
    Events,
    OpClass,
    Ops,
    Source,
    Storages,
    Target,
    Trace,
)
from umadvise.records.trace_check import check


class TraceBuilder:
    """Takes what happens in the order in which it happens.

    Between `begin_op` and `end_op` events are inside that op, else after the last one.
    """

    def __init__(self) -> None:
        self._strings: dict[str, int] = {"": 0}
        self._storages: dict[str, list[int]] = {name: [] for name in Storages.DTYPES}
        self._ops: dict[str, list[int]] = {name: [] for name in Ops.DTYPES}
        self._accesses: dict[str, list[int]] = {name: [] for name in Accesses.DTYPES}
        self._events: dict[str, list[int]] = {name: [] for name in Events.DTYPES}
        self._inside = 0

    def _string(self, text: str) -> int:
        return self._strings.setdefault(clean_name(text), len(self._strings))

    @property
    def op_count(self) -> int:
        """Ops that have begun."""
        return len(self._ops["name"])

    def allocate(self, bytes_: int, role: Role, name: str = "", module: str = "") -> int:
        """A storage comes to be; returns its index."""
        storages = self._storages
        index = len(storages["bytes"])
        storages["bytes"].append(bytes_)
        storages["role"].append(role)
        storages["name"].append(self._string(name))
        storages["module"].append(self._string(module))
        storages["successor"].append(-1)
        self.event(EventKind.ALLOCATE, index)
        return index

    def free(self, storage: int) -> None:
        """A storage is gone."""
        self.event(EventKind.FREE, storage)

    def relabel(self, storage: int, role: Role, name: str) -> None:
        """What a storage is became known later, as a gradient's role does."""
        self._storages["role"][storage] = role
        self._storages["name"][storage] = self._string(name)

    def set_successor(self, storage: int, successor: int) -> None:
        """When the trace is repeated, `successor` is what `storage` was."""
        self._storages["successor"][storage] = successor

    def event(self, kind: EventKind, storage: int, offset_bytes: int = 0, bytes_: int = 0) -> None:
        """Something happens to a storage."""
        events = self._events
        events["kind"].append(kind)
        events["op"].append(self.op_count - 1)
        events["inside"].append(self._inside)
        events["storage"].append(storage)
        events["offset_bytes"].append(offset_bytes)
        events["bytes"].append(bytes_)

    def begin_op(
        self,
        name: str,
        *,
        phase: Phase = Phase.NONE,
        module: str = "",
        step: int = 1,
        op_class: OpClass = OpClass.OTHER,
        arithmetic: DType = "fp32",
        duration_ns: int | None = None,
        flops: int | None = None,
        creates: bool = False,
        host_touch: bool = False,
        concurrency: tuple[int, int, int] = (0, 0, 0),
    ) -> int:
        """An op begins; returns its index. `concurrency` is window_pages, run_pages and faults_per_service."""
        window_pages, run_pages, faults_per_service = concurrency
        row = {
            "name": self._string(name),
            "phase": phase,
            "module": self._string(module),
            "step": step,
            "op_class": op_class,
            "arithmetic": ARITHMETIC.index(arithmetic),
            "duration_ns": UNKNOWN if duration_ns is None else duration_ns,
            "flops": UNKNOWN if flops is None else flops,
            "creates": creates,
            "host_touch": host_touch,
            "window_pages": window_pages,
            "run_pages": run_pages,
            "faults_per_service": faults_per_service,
        }
        for column, value in row.items():
            self._ops[column].append(value)
        self._inside = 1
        return self.op_count - 1

    def set_duration(self, op: int, duration_ns: int) -> None:
        """How long an op took, where that is known only afterwards."""
        self._ops["duration_ns"][op] = duration_ns

    def access(self, storage: int, flags: Access, offset_bytes: int = 0, bytes_: int | None = None) -> None:
        """The op that began last touches a range; all of the storage where `bytes_` is None."""
        accesses = self._accesses
        accesses["op"].append(self.op_count - 1)
        accesses["storage"].append(storage)
        accesses["offset_bytes"].append(offset_bytes)
        accesses["bytes"].append(self._storages["bytes"][storage] - offset_bytes if bytes_ is None else bytes_)
        accesses["flags"].append(flags)

    def end_op(self) -> None:
        """What happens from now on is after the op."""
        self._inside = 0

    def finish(
        self,
        *,
        target: Target,
        source: Source,
        device: str = "",
        torch_version: str = "",
        workload: str = "",
        strings: Iterable[str] = (),
    ) -> Trace:
        """The trace; `strings` are kept in it also if no row names them.

        Raises:
            ValueError: what was recorded contradicts itself.
        """
        for text in strings:
            self._string(text)
        trace = Trace(
            target=target,
            source=source,
            device=device,
            torch_version=torch_version,
            workload=workload,
            strings=tuple(self._strings),
            storages=Storages(**{name: np.array(column) for name, column in self._storages.items()}),
            ops=Ops(**{name: np.array(column) for name, column in self._ops.items()}),
            accesses=Accesses(**{name: np.array(column) for name, column in self._accesses.items()}),
            events=Events(**{name: np.array(column) for name, column in self._events.items()}),
        )
        check(trace)
        return trace
