"""Sums of events by subject, in memory that does not grow with the number of steps or events."""

from collections import defaultdict
from collections.abc import Iterable
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeAlias, TypeVar

from umadvise.records.counters import (
    CAUSES,
    SWAP_KINDS,
    WAITS,
    BytesByCause,
    Event,
    PhaseWord,
    ResidencyPeak,
    ResidencySubject,
)
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
)
from umadvise.records.names import clean_name
from umadvise.records.step_picture import SPAN_KINDS
from umadvise.reports.counters.step_picture import MOST_EVENTS, SeenStep
from umadvise.reports.counters.timeline import Service

Row = TypeVar("Row", bound=Tally)

Where: TypeAlias = tuple[str | None, str | None, PhaseWord | None]
"""Op, module and phase."""

Sum: TypeAlias = dict[Any, int]
"""Numbers by the fields of Tally that they are for; bytes that were paged by kind of event and cause."""

_WAYS = {"bytes_h2d": "transfer_h2d", "bytes_d2h": "transfer_d2h"}
_NUMBERS = tuple(field for field in Tally.__struct_fields__ if field not in (*_WAYS, "faulted_steps"))
_OF_SWAPS = frozenset(_NUMBERS[_NUMBERS.index("swap_ins") :])
_PICTURED = frozenset(SPAN_KINDS)
_STALLS = ("service_ns", "wait_copy_ns", "wait_room_ns")

# What one event is about. Named tensors have no birthplace here: a name says more, and one name is one row.
_SUBJECT = ("role", "name", "birth_module", "birth_op", "bytes", "op", "module", "phase")
Subject: TypeAlias = tuple[object, ...]
Label: TypeAlias = tuple[object, ...]
"""The first five of those: what an allocation is called."""


def _no_sum() -> Sum:
    return defaultdict(int)


class StepAccumulator:
    """The events of one step, summed as they come.

    A tensor's name and role are often known only after it was made, so what happened to it counts for those that it had
    last.
    """

    def __init__(self, index: int, *, waits_end_later: bool = False) -> None:
        """Starts a step.

        Args:
            index: number of the step.
            waits_end_later: whether waits of ops that were called before the step may end in it, and count then, as on
                a GPU.
        """
        self.index = index
        self._waits_end_later = waits_end_later
        self._sums: defaultdict[tuple[int, str | None, str | None, PhaseWord | None], Sum] = defaultdict(_no_sum)
        self._labels: dict[int, Label] = {}
        self._neighbours: dict[int, int] = {}
        self.services: list[Service] = []
        self.seen = SeenStep(index)
        self.oversized: dict[Where, tuple[int, int]] = {}
        """Largest working set in bytes and how often, by op, module and phase."""

    def add(self, events: Iterable[Event]) -> None:
        """Adds events; those of other steps are left out. The hot loop: about a microsecond an event."""
        index, sums, services, labels = self.index, self._sums, self.services, self._labels
        moves, later = self.seen.moves, self._waits_end_later
        for event in events:
            kind, allocation, phase = event.kind, event.allocation, event.phase
            if event.step != index and not (later and kind in WAITS):
                continue
            if kind == "oversized_op":
                self._add_oversized(event)
                continue
            if kind == "silent_write":  # counted, but nothing that unified memory does
                continue
            name = event.name
            birth_module, birth_op = (event.birth_module, event.birth_op) if name is None else (None, None)
            label = (event.role, name, birth_module, birth_op, event.allocation_bytes)
            if later and kind in WAITS:  # told when it is over: what is known of its tensor may be newer
                labels.setdefault(allocation, label)
                if event.start_ns and event.step == index:  # it is known when it was
                    moves.append(event)
            else:
                labels[allocation] = label
                if kind == "label":
                    continue
                if kind in _PICTURED and (event.bytes or event.duration_ns):
                    moves.append(event)
            if event.neighbours > self._neighbours.get(allocation, 0):
                self._neighbours[allocation] = event.neighbours
            where = (allocation, event.op, event.module, phase)
            numbers = sums[where]
            if kind == "fault_group":
                numbers["fault_groups"] += 1
                if event.unordered:
                    numbers["unordered_faults"] += 1
                if event.first_touch:
                    numbers["first_touches"] += 1
                numbers["service_ns"] += event.duration_ns
                services.append((event.start_ns, event.duration_ns, phase))
            elif kind == "eviction":
                numbers["evictions" if event.bytes else "evictions_dropped"] += 1
                numbers["service_ns"] += event.duration_ns
            elif kind == "collapse":
                numbers["collapses"] += 1
            elif kind == "remote_map":
                numbers["remote_maps"] += 1
            elif kind in SWAP_KINDS:
                _add_swap(numbers, event)
            else:
                numbers[kind, event.cause] += event.bytes
        self.seen.left_out += len(moves[MOST_EVENTS:])
        del moves[MOST_EVENTS:]

    def tensor_of(self, allocation: int) -> tuple[Any, ...]:
        """What an allocation was called last: its name, or else the module and the op that made it."""
        _, name, birth_module, birth_op, _ = self._labels[allocation]
        return name, birth_module, birth_op

    def sums(self, *, paging: bool = True) -> dict[Subject, Sum]:
        """Sums of what happened, by the labels that tensors have now; zeros are left out.

        Args:
            paging: whether what the driver paged counts, beside explicit swaps.
        """
        merged: defaultdict[Subject, Sum] = defaultdict(_no_sum)
        for (allocation, *where), numbers in self._sums.items():
            total = merged[(*self._labels[allocation], *where)]
            for field, number in numbers.items():
                if number and (paging or field in _OF_SWAPS):
                    total[field] += number
        return merged

    def neighbours(self) -> Iterable[tuple[Label, int]]:
        """The most allocations that shared a block with each tensor, where any did."""
        return ((self._labels[allocation], count) for allocation, count in self._neighbours.items())

    def _add_oversized(self, event: Event) -> None:
        where = (event.op, event.module, event.phase)
        bytes_, count = self.oversized.get(where, (0, 0))
        self.oversized[where] = (max(bytes_, event.bytes), count + 1)


def _add_swap(numbers: Sum, event: Event) -> None:
    demanded = event.cause == "on_demand"
    if event.kind == "swap_in":
        numbers["swap_ins"] += 1
        numbers["swap_in_bytes"] += event.bytes
        numbers["on_demand_swap_ins"] += demanded
        numbers["on_demand_bytes"] += event.bytes * demanded
    elif event.kind == "swap_out":
        numbers["swap_outs" if event.bytes else "clean_drops"] += 1
        numbers["swap_out_bytes"] += event.bytes
        numbers["swap_evictions"] += event.cause == "for_room"
    elif event.kind == "wait_copy":
        numbers["wait_copy_ns"] += event.duration_ns
        numbers["on_demand_wait_ns"] += event.duration_ns * demanded
    else:
        numbers["wait_room_ns"] += event.duration_ns


_UNRECORDED = ("first_touches", "evictions_dropped", "collapses")
"""What no record of CUPTI's tells."""


class _Sum:
    __slots__ = ("faulted_steps", "last_faulted_step", "neighbours", "numbers", "resident_peak_bytes")

    def __init__(self) -> None:
        self.numbers: Sum = defaultdict(int)
        self.faulted_steps = 0
        self.last_faulted_step = -1
        self.resident_peak_bytes: int | None = None
        self.neighbours = 0

    def add(self, numbers: Sum) -> None:
        for field, number in numbers.items():
            self.numbers[field] += number

    def count_step(self, step: int) -> None:
        """Notes that the subject faulted in a step."""
        if self.last_faulted_step != step:
            self.last_faulted_step = step
            self.faulted_steps += 1

    def absorb(self, other: "_Sum") -> None:
        """Adds another subject's sum; both together faulted in at least as many steps as either."""
        self.add(other.numbers)
        self.faulted_steps = max(self.faulted_steps, other.faulted_steps)

    def weight(self) -> tuple[int, int, int, int]:
        numbers = self.numbers
        stalled_ns = sum(numbers[field] for field in _STALLS)
        moved_bytes = sum(numbers[way, cause] for way in _WAYS.values() for cause in CAUSES)
        moved_bytes += numbers["swap_in_bytes"] + numbers["swap_out_bytes"]
        return (stalled_ns, numbers["fault_groups"], moved_bytes, self.resident_peak_bytes or 0)

    def fields(self, *, sampled: bool) -> dict[str, Any]:
        numbers = self.numbers
        return {
            **{field: numbers[field] for field in _NUMBERS},
            **(dict.fromkeys(_UNRECORDED) if sampled else {}),
            **{field: BytesByCause(**{cause: numbers[way, cause] for cause in CAUSES}) for field, way in _WAYS.items()},
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
        self._sums: defaultdict[object, _Sum] = defaultdict(_Sum)
        self._rest: _Sum | None = None

    def add(self, step: int, sums: Iterable[tuple[Subject, Sum]]) -> None:
        """Adds a finished step."""
        rows, key = self._sums, self._key
        for subject, numbers in sums:
            row = rows[key(subject)]
            row.add(numbers)
            if "fault_groups" in numbers:
                row.count_step(step)
        self._make_room()

    def add_residency(self, peaks: Iterable[tuple[object, int | None, int]]) -> None:
        """Adds what lay on the device in a finished step: the columns' values, the peak in bytes, and nanoseconds.

        What was there and never faulted, or ran, gets a row too. A peak that is None is not known.
        """
        rows = self._sums
        for key, peak_bytes, compute_ns in peaks:
            if peak_bytes or compute_ns or key in rows:
                if peak_bytes is not None:
                    rows[key].resident_peak_bytes = max(rows[key].resident_peak_bytes or 0, peak_bytes)
                rows[key].numbers["compute_ns"] += compute_ns
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
        self._sums = defaultdict(_Sum, ordered[: self._most_rows])
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


_TABLES: dict[str, tuple[type[Tally], tuple[str, ...], ResidencySubject | None]] = {
    "role": (RoleRow, ("role",), "role"),
    "phase": (PhaseRow, ("phase",), "op"),
    "role_phase": (RolePhaseRow, ("role", "phase"), None),
    "module": (ModuleRow, ("module",), "op"),
    "tensor": (TensorRow, ("role", "name", "birth_module", "birth_op", "bytes"), "tensor"),
    "op": (OpRow, ("op", "phase"), "op"),
}
"""For each table its row, the columns that tell rows apart, and the residency peaks that it has."""


class TableSums:
    """All tables of a profile under construction; `sampled`: from events that CUPTI gave."""

    def __init__(self, *, sampled: bool = False) -> None:
        self._tables: dict[str, TableSum[Any]] = {
            name: TableSum(row_type, columns, sampled=sampled) for name, (row_type, columns, _) in _TABLES.items()
        }
        self._oversized: dict[Where, tuple[int, int]] = {}

    def add(self, step: StepAccumulator, *, paging: bool = True) -> None:
        """Adds a finished step; `paging`: with what the driver paged, beside explicit swaps."""
        if sums := step.sums(paging=paging):
            for table in self._tables.values():
                table.add(step.index, sums.items())
            self._tables["tensor"].add_neighbours(step.neighbours())
        for where, (bytes_, count) in step.oversized.items():
            if where in self._oversized or len(self._oversized) < MOST_ROWS:
                known_bytes, known_count = self._oversized.get(where, (0, 0))
                self._oversized[where] = (max(known_bytes, bytes_), known_count + count)

    def add_residency(self, peaks: Iterable[ResidencyPeak]) -> None:
        """Adds the residency peaks of a finished step, after its events."""
        all_peaks = list(peaks)
        for name, (_, columns, subject) in _TABLES.items():
            key = attrgetter(*columns)
            found = ((key(peak), peak.peak_bytes, peak.compute_ns) for peak in all_peaks if peak.subject == subject)
            self._tables[name].add_residency(found)

    def tables(self) -> Tables:
        """The tables so far."""
        return Tables(**{name: table.table() for name, table in self._tables.items()})

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
