"""Sums of events by subject, in memory that does not grow with the number of steps or events."""

from collections.abc import Iterable
from operator import add, itemgetter
from typing import Any, Generic, TypeAlias, TypeVar

from umadvise.records.counters import CAUSES, RESIDENCY_SUBJECTS, SWAP_KINDS, BytesByCause, Event, Phase, ResidencyPeak
from umadvise.records.fault_profile import (
    MOST_ROWS,
    ModuleRow,
    OpRow,
    OversizedOp,
    PhaseRow,
    ResidentTally,
    RolePhaseRow,
    RoleRow,
    Table,
    Tables,
    Tally,
    TensorRow,
    clean_name,
)
from umadvise.reports.counters.timeline import Service

Row = TypeVar("Row", bound=Tally)

Where: TypeAlias = tuple[str | None, str | None, Phase | None]
"""Op, module and phase."""

# A sum is a list of numbers: the plain fields of Tally about paging, then the bytes by cause, host to device before
# device to host, then the fields about explicit swaps.
_PLAIN = (
    "fault_groups",
    "unordered_faults",
    "first_touches",
    "evictions",
    "evictions_dropped",
    "collapses",
    "remote_maps",
    "service_ns",
)
_FAULTS, _UNORDERED, _FIRST, _EVICTIONS, _DROPPED, _COLLAPSES, _REMOTE, _SERVICE = range(len(_PLAIN))
_H2D = len(_PLAIN)
_D2H = _H2D + len(CAUSES)
_SWAPS = (
    "swap_ins",
    "swap_outs",
    "swap_in_bytes",
    "swap_out_bytes",
    "on_demand_swap_ins",
    "on_demand_bytes",
    "swap_evictions",
    "clean_drops",
    "wait_copy_ns",
    "on_demand_wait_ns",
    "wait_room_ns",
)
_FIRST_SWAP = _D2H + len(CAUSES)
(
    _INS,
    _OUTS,
    _IN_BYTES,
    _OUT_BYTES,
    _DEMANDED,
    _DEMANDED_BYTES,
    _FOR_ROOM,
    _CLEAN,
    _WAIT_COPY,
    _WAIT_DEMANDED,
    _WAIT_ROOM,
) = range(_FIRST_SWAP, _FIRST_SWAP + len(_SWAPS))
_SLOTS = _FIRST_SWAP + len(_SWAPS)
_TRANSFER_SLOTS: dict[tuple[str, str], int] = {
    (kind, cause): first + offset
    for kind, first in (("transfer_h2d", _H2D), ("transfer_d2h", _D2H))
    for offset, cause in enumerate(CAUSES)
}

# What one event is about. Named tensors have no birthplace here: a name says more, and one name is one row.
_SUBJECT = ("role", "name", "birth_module", "birth_op", "bytes", "op", "module", "phase")
Subject: TypeAlias = tuple[object, ...]
Label: TypeAlias = tuple[object, ...]
"""The first five of those: what an allocation is called."""
Sparse: TypeAlias = list[tuple[int, int]]
"""The slots of a sum that are not 0, in order, with their numbers."""


class StepAccumulator:
    """The events of one step, summed as they come.

    A tensor's name and role are often known only after it was made, so what happened to it counts for those that it had
    last.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self._sums: dict[tuple[int, str | None, str | None, Phase | None], list[int]] = {}
        self._labels: dict[int, Label] = {}
        self._neighbours: dict[int, int] = {}
        self.services: list[Service] = []
        self.oversized: dict[Where, tuple[int, int]] = {}
        """Largest working set in bytes and how often, by op, module and phase."""

    def add(self, events: Iterable[Event]) -> None:
        """Adds events; those of other steps are left out. The hot loop: about a microsecond an event."""
        index, sums, services, labels = self.index, self._sums, self.services, self._labels
        for event in events:
            if event.step != index:
                continue
            kind, allocation, phase = event.kind, event.allocation, event.phase
            if kind == "oversized_op":
                self._add_oversized(event)
                continue
            if kind == "silent_write":  # counted, but nothing that unified memory does
                continue
            name = event.name
            birth_module, birth_op = (event.birth_module, event.birth_op) if name is None else (None, None)
            labels[allocation] = (event.role, name, birth_module, birth_op, event.allocation_bytes)
            if kind == "label":
                continue
            if event.neighbours > self._neighbours.get(allocation, 0):
                self._neighbours[allocation] = event.neighbours
            where = (allocation, event.op, event.module, phase)
            numbers = sums.get(where)
            if numbers is None:
                numbers = sums[where] = [0] * _SLOTS
            if kind == "fault_group":
                numbers[_FAULTS] += 1
                numbers[_UNORDERED] += event.unordered
                numbers[_FIRST] += event.first_touch
                numbers[_SERVICE] += event.duration_ns
                services.append((event.start_ns, event.duration_ns, phase))
            elif kind == "eviction":
                numbers[_EVICTIONS if event.bytes else _DROPPED] += 1
            elif kind == "collapse":
                numbers[_COLLAPSES] += 1
            elif kind == "remote_map":
                numbers[_REMOTE] += 1
            elif kind in SWAP_KINDS:
                _add_swap(numbers, event)
            else:
                numbers[_TRANSFER_SLOTS[kind, event.cause]] += event.bytes

    def sums(self, *, paging: bool = True) -> dict[Subject, list[int]]:
        """What happened, by the labels that tensors have now.

        Args:
            paging: whether what the driver paged counts, beside explicit swaps.
        """
        merged: dict[Subject, list[int]] = {}
        for (allocation, *where), numbers in self._sums.items():
            counted = numbers if paging else [0] * _FIRST_SWAP + numbers[_FIRST_SWAP:]
            subject = (*self._labels[allocation], *where)
            before = merged.get(subject)
            merged[subject] = counted if before is None else list(map(add, before, counted))
        return merged

    def neighbours(self) -> Iterable[tuple[Label, int]]:
        """The most allocations that shared a block with each tensor, where any did."""
        return ((self._labels[allocation], count) for allocation, count in self._neighbours.items())

    def _add_oversized(self, event: Event) -> None:
        where = (event.op, event.module, event.phase)
        bytes_, count = self.oversized.get(where, (0, 0))
        self.oversized[where] = (max(bytes_, event.bytes), count + 1)


def _add_swap(numbers: list[int], event: Event) -> None:
    demanded = event.cause == "on_demand"
    if event.kind == "swap_in":
        numbers[_INS] += 1
        numbers[_IN_BYTES] += event.bytes
        numbers[_DEMANDED] += demanded
        numbers[_DEMANDED_BYTES] += event.bytes * demanded
    elif event.kind == "swap_out":
        numbers[_OUTS] += event.bytes > 0
        numbers[_CLEAN] += event.bytes == 0
        numbers[_OUT_BYTES] += event.bytes
        numbers[_FOR_ROOM] += event.cause == "for_room"
    elif event.kind == "wait_copy":
        numbers[_WAIT_COPY] += event.duration_ns
        numbers[_WAIT_DEMANDED] += event.duration_ns * demanded
    else:
        numbers[_WAIT_ROOM] += event.duration_ns


_UNRECORDED = ("first_touches", "evictions_dropped", "collapses")
"""What no record of CUPTI's tells."""


class _Sum:
    __slots__ = ("faulted_steps", "last_faulted_step", "neighbours", "numbers", "resident_peak_bytes")

    def __init__(self) -> None:
        self.numbers = [0] * _SLOTS
        self.faulted_steps = 0
        self.last_faulted_step = -1
        self.resident_peak_bytes: int | None = None
        self.neighbours = 0

    def count_step(self, step: int) -> None:
        """Notes that the subject faulted in a step."""
        if self.last_faulted_step != step:
            self.last_faulted_step = step
            self.faulted_steps += 1

    def absorb(self, other: "_Sum") -> None:
        """Adds another subject's sum; both together faulted in at least as many steps as either."""
        self.numbers = list(map(add, self.numbers, other.numbers))
        self.faulted_steps = max(self.faulted_steps, other.faulted_steps)

    def weight(self) -> tuple[int, int, int, int]:
        numbers = self.numbers
        stalled_ns = numbers[_SERVICE] + numbers[_WAIT_COPY] + numbers[_WAIT_ROOM]
        moved_bytes = sum(numbers[_H2D:_FIRST_SWAP]) + numbers[_IN_BYTES] + numbers[_OUT_BYTES]
        return (stalled_ns, numbers[_FAULTS], moved_bytes, self.resident_peak_bytes or 0)

    def fields(self, *, sampled: bool) -> dict[str, Any]:
        numbers = self.numbers
        return {
            **dict(zip(_PLAIN, numbers[:_H2D], strict=True)),
            **(dict.fromkeys(_UNRECORDED) if sampled else {}),
            "bytes_h2d": BytesByCause(**dict(zip(CAUSES, numbers[_H2D:_D2H], strict=True))),
            "bytes_d2h": BytesByCause(**dict(zip(CAUSES, numbers[_D2H:_FIRST_SWAP], strict=True))),
            **dict(zip(_SWAPS, numbers[_FIRST_SWAP:], strict=True)),
            "faulted_steps": self.faulted_steps,
        }


class TableSum(Generic[Row]):
    """One table under construction; keeps the heaviest `most_rows` subjects and the sum of the others."""

    def __init__(
        self, row_type: type[Row], columns: tuple[str, ...], most_rows: int = MOST_ROWS, *, sampled: bool = False
    ) -> None:
        self._row_type = row_type
        self._sampled = sampled
        self._columns = columns
        self._most_rows = most_rows
        self._key = itemgetter(*(_SUBJECT.index(column) for column in columns))
        self._sums: dict[object, _Sum] = {}
        self._rest: _Sum | None = None

    def add(self, step: int, sums: Iterable[tuple[Subject, Sparse]]) -> None:
        """Adds a finished step."""
        rows, key = self._sums, self._key
        for subject, numbers in sums:
            subject_key = key(subject)
            row = rows.get(subject_key)
            if row is None:
                row = rows[subject_key] = _Sum()
            row_numbers = row.numbers
            for slot, number in numbers:
                row_numbers[slot] += number
            if numbers and numbers[0][0] == _FAULTS:
                row.count_step(step)
        self._make_room()

    def add_residency(self, peaks: Iterable[tuple[object, int]]) -> None:
        """Adds what lay on the device in a finished step: the values of the columns, and the peak in bytes.

        What was there and never faulted gets a row too.
        """
        rows = self._sums
        for key, peak_bytes in peaks:
            row = rows.get(key)
            if row is None:
                if peak_bytes == 0:
                    continue
                row = rows[key] = _Sum()
            row.resident_peak_bytes = max(row.resident_peak_bytes or 0, peak_bytes)
        self._make_room()

    def add_neighbours(self, counts: Iterable[tuple[object, int]]) -> None:
        """Adds how many others shared a block, of a finished step: the values of the columns, and the number."""
        for key, count in counts:
            row = self._sums.get(key)
            if row is not None:
                row.neighbours = max(row.neighbours, count)

    def _make_room(self) -> None:
        # Twice the rows, so that the cost of sorting is paid once in many steps.
        if len(self._sums) > 2 * self._most_rows:
            self._shrink()

    def _shrink(self) -> None:
        ordered = self._ordered()
        self._sums = dict(ordered[: self._most_rows])
        for _, row in ordered[self._most_rows :]:
            self._rest = self._rest or _Sum()
            self._rest.absorb(row)

    def _ordered(self) -> list[tuple[object, _Sum]]:
        # Ties are broken by name, so that equal runs give equal files.
        return sorted(self._sums.items(), key=lambda item: (tuple(-part for part in item[1].weight()), repr(item[0])))

    def table(self) -> Table[Row]:
        """The table so far, costliest row first."""
        if len(self._sums) > self._most_rows:
            self._shrink()
        return Table(
            rows=tuple(self._row(key, row) for key, row in self._ordered()),
            rest=Tally(**self._rest.fields(sampled=self._sampled)) if self._rest else None,
        )

    def _row(self, key: object, row: _Sum) -> Row:
        values = key if isinstance(key, tuple) else (key,)
        named = zip(self._columns, values, strict=True)
        cleaned: dict[str, Any] = {
            column: clean_name(value) if isinstance(value, str) else value for column, value in named
        }
        if issubclass(self._row_type, ResidentTally):
            cleaned["resident_peak_bytes"] = row.resident_peak_bytes
        if self._row_type is TensorRow:
            cleaned["neighbours"] = row.neighbours
        return self._row_type(**row.fields(sampled=self._sampled), **cleaned)


class TableSums:
    """All tables of a profile under construction; `sampled`: of events that CUPTI told of."""

    def __init__(self, *, sampled: bool = False) -> None:
        self._role = TableSum(RoleRow, ("role",), sampled=sampled)
        self._phase = TableSum(PhaseRow, ("phase",), sampled=sampled)
        self._role_phase = TableSum(RolePhaseRow, ("role", "phase"), sampled=sampled)
        self._module = TableSum(ModuleRow, ("module",), sampled=sampled)
        columns = ("role", "name", "birth_module", "birth_op", "bytes")
        self._tensor = TableSum(TensorRow, columns, sampled=sampled)
        self._op = TableSum(OpRow, ("op", "phase"), sampled=sampled)
        self._oversized: dict[Where, tuple[int, int]] = {}

    def add(self, step: StepAccumulator, *, paging: bool = True) -> None:
        """Adds a finished step; `paging`: with what the driver paged, beside explicit swaps."""
        # Most subjects have three or four numbers of the thirty, and each goes into six tables.
        sums = [
            (subject, [(slot, number) for slot, number in enumerate(numbers) if number])
            for subject, numbers in step.sums(paging=paging).items()
        ]
        for table in (self._role, self._phase, self._role_phase, self._module, self._tensor, self._op):
            table.add(step.index, sums)
        self._tensor.add_neighbours(step.neighbours())
        for where, (bytes_, count) in step.oversized.items():
            if where in self._oversized or len(self._oversized) < MOST_ROWS:
                known_bytes, known_count = self._oversized.get(where, (0, 0))
                self._oversized[where] = (max(known_bytes, bytes_), known_count + count)

    def add_residency(self, peaks: Iterable[ResidencyPeak]) -> None:
        """Adds the residency peaks of a finished step, after its events."""
        kinds: dict[str, list[ResidencyPeak]] = {subject: [] for subject in RESIDENCY_SUBJECTS}
        for peak in peaks:
            kinds[peak.subject].append(peak)
        ops = kinds["op"]
        self._role.add_residency((peak.role, peak.peak_bytes) for peak in kinds["role"])
        self._tensor.add_residency(
            ((peak.role, peak.name, peak.birth_module, peak.birth_op, peak.bytes), peak.peak_bytes)
            for peak in kinds["tensor"]
        )
        self._phase.add_residency((peak.phase, peak.peak_bytes) for peak in ops)
        self._module.add_residency((peak.module, peak.peak_bytes) for peak in ops)
        self._op.add_residency(((peak.op, peak.phase), peak.peak_bytes) for peak in ops)

    def tables(self) -> Tables:
        """The tables so far."""
        return Tables(
            role=self._role.table(),
            phase=self._phase.table(),
            role_phase=self._role_phase.table(),
            module=self._module.table(),
            tensor=self._tensor.table(),
            op=self._op.table(),
        )

    def oversized_ops(self) -> tuple[OversizedOp, ...]:
        """Ops whose working set was too large, the largest first."""
        ordered = sorted(self._oversized.items(), key=lambda item: (-item[1][0], repr(item[0])))
        return tuple(
            OversizedOp(
                op=op and clean_name(op),
                module=module and clean_name(module),
                phase=phase,
                bytes=bytes_,
                count=count,
            )
            for (op, module, phase), (bytes_, count) in ordered
        )
