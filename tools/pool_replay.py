"""Replays a step whose storages move to any free memory, in virtual time: the host runs ahead, streams wait by events.

No bytes, no driver, no engine: what a plan's step takes where moving a storage is one copy and nothing is mapped, on a
memory that is handed in. The rules are those of a session: contents are never lost, what a plan has missed is brought
by the op that needs it, and where there is no room, what is used furthest ahead leaves. What is decided depends on the
order of the host's calls alone, never on time.
"""

import bisect
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from pool_memory import Lease, Moment, PoolMemory

from umadvise.records.columns import Columns
from umadvise.records.device import DeviceProfile, LinkDirection
from umadvise.records.plan import ActionKind, Plan
from umadvise.records.trace import Access, EventKind, Trace
from umadvise.simulator.gpu import CALL_COSTS, ITERATIONS, OP_NS, QUEUE_OPS

LEAST_LEAVING_BYTES = 64 << 10
"""Smaller storages never leave."""
_COPY_CALLS_NS = sum(CALL_COSTS[name].ns for name in ("cuMemcpyHtoDAsync", "cuEventRecord", "cuStreamWaitEvent"))
_MAP_NS = CALL_COSTS["cuMemMap"].ns + CALL_COSTS["cuMemSetAccess"].ns
_UNMAP_NS = CALL_COSTS["cuMemUnmap"].ns
_NEVER = 1 << 60
_SPARE = 1 << 61  # further ahead than what is never used


class PoolFullError(Exception):
    """An op finds no memory that is large enough, though all that may leave has left."""


@dataclass(slots=True)
class StepTally:
    """What a step did.

    Attributes:
        begin_ns: nanosecond at which the step before had computed.
        ns: nanoseconds that it took.
        evictions: storages that left though no plan asked for it.
        chunks: chunks that were mapped.
        host_waits: how often the host waited for memory to become idle.
        first_take: number of takings of memory before the step.
        first_tick: takings and givings of memory before the step.
    """

    begin_ns: float
    ns: float = 0.0
    evictions: int = 0
    chunks: int = 0
    host_waits: int = 0
    first_take: int = 0
    first_tick: int = 0


@dataclass(frozen=True, slots=True)
class Stay:
    """A time for which a storage held memory: until a tick, and until its last use ended."""

    lease: Lease
    end: int
    free: Moment


@dataclass(slots=True, eq=False)
class _Storage:
    """A live storage; its contents are on the host too where it is `clean`, from `hosted_ns` on."""

    index: int
    lease: Lease | None = None
    arrived_ns: float = 0.0
    used_ns: float = 0.0
    hosted_ns: float = 0.0
    written: bool = False
    clean: bool = False
    spare: bool = False


@dataclass
class _Engine:
    """The copies of one direction, one after the other."""

    link: LinkDirection
    spans: list[tuple[float, float]] = field(default_factory=list)

    def copy(self, earliest_ns: float, bytes_: int, other: "_Engine") -> tuple[float, float]:
        """When a copy begins and ends. What the other direction was given first keeps its speed: this pays for both."""
        begin = max(earliest_ns, self.spans[-1][1] if self.spans else 0.0)
        alone, other_alone = self.link.bytes_per_s.value / 1e9, other.link.bytes_per_s.value / 1e9
        both, other_both = self.link.both_bytes_per_s.value, other.link.both_bytes_per_s.value
        beside = alone if both is None or other_both is None else (both + other_both) / 1e9 - other_alone
        now, left = begin + self.link.fixed_ns.value, float(bytes_)
        first = bisect.bisect_right(other.spans, now, key=lambda span: span[1])
        for start, end in other.spans[first:]:
            free = min(left, max(0.0, start - now) * alone)
            now, left = now + free / alone, left - free
            shared = min(left, max(0.0, end - now) * beside)
            now, left = now + shared / beside, left - shared
        self.spans.append((begin, now + left / alone))
        return self.spans[-1]


def _rows(table: Columns, *names: str) -> Iterator[tuple[int, ...]]:
    return zip(*(getattr(table, name).tolist() for name in names), strict=True)


class _Step:
    """What a trace and a plan say, by op."""

    def __init__(self, trace: Trace, plan: Plan) -> None:
        self.bytes: list[int] = trace.storages.bytes.tolist()
        self.op_ns: list[int] = trace.ops.duration_ns.tolist()
        self.events: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for kind, op, inside, storage in _rows(trace.events, "kind", "op", "inside", "storage"):
            self.events[op, inside].append((kind, storage))
        self.accesses: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        self._uses: dict[int, list[int]] = defaultdict(list)
        for op, storage, flags in _rows(trace.accesses, "op", "storage", "flags"):
            self.accesses[op].append((storage, bool(flags & Access.WRITE)))
            self._uses[storage].append(op)
        self.actions: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for kind, op, after, storage in _rows(plan.actions, "kind", "op", "after", "storage"):
            self.actions[op, after].append((kind, storage))
        self.following = {storage: old for old, storage in enumerate(trace.storages.successor.tolist()) if storage >= 0}
        self._lasting = trace.deaths == len(trace.ops)

    def next_use(self, storage: int, op: int) -> int:
        """The first op after one that uses a storage, counted on into the step after."""
        uses = self._uses[storage]
        at = bisect.bisect_right(uses, op)
        if at < len(uses):
            return uses[at]
        then = self._uses[self.following.get(storage, storage)]
        return len(self.op_ns) + then[0] if self._lasting[storage] and then else _NEVER


class Replay:
    """Steps one after the other; the plan holds from the second on.

    Attributes:
        steps: tally of each step.
        stays: times for which storages held memory.
    """

    def __init__(
        self, trace: Trace, device: DeviceProfile, plan: Plan, memory: PoolMemory, count: int = ITERATIONS
    ) -> None:
        """Runs the steps.

        Args:
            trace: trace of a step.
            device: device whose link copies.
            plan: plan of swaps.
            memory: memory that storages move through; a fresh one.
            count: number of steps.

        Raises:
            PoolFullError: an op finds no room.
        """
        self.steps: list[StepTally] = []
        self.stays: list[Stay] = []
        self._step, self._memory = _Step(trace, plan), memory
        self._to_device, self._to_host = _Engine(device.link.h2d), _Engine(device.link.d2h)
        self._host_ns = self._compute_ns = self._awaited_ns = 0.0
        self._launched: deque[float] = deque()
        self._live: dict[int, _Storage] = {}
        self._arriving: deque[_Storage] = deque()
        self._op, self._takes, self._ticks = -1, 0, 0
        self._pinned: list[_Storage] = []
        self._taken: list[Lease] = []
        for step in range(count):
            self._run_step(planned=step > 0)
        for storage in self._live.values():
            if storage.lease is not None:
                self.stays.append(Stay(storage.lease, _NEVER, Moment(_NEVER)))

    def _run_step(self, *, planned: bool) -> None:
        self.steps.append(StepTally(self._compute_ns, first_take=self._takes, first_tick=self._ticks))
        self._op = -1
        self._happen(self._step.events[-1, 0], first=not planned)
        for op in range(len(self._step.op_ns)):
            if planned:
                self._act(self._step.actions[op, 0])
            self._op = op
            self._run_op(op)
            self._happen(self._step.events[op, 0])
            if planned:
                self._act(self._step.actions[op, 1])
            self._bring_planned()
        self.steps[-1].ns = self._compute_ns - self.steps[-1].begin_ns
        self._live = {self._step.following.get(index, index): storage for index, storage in self._live.items()}
        for index, storage in self._live.items():
            storage.index = index

    def _run_op(self, op: int) -> None:
        """Launches an op when its storages are there; it waits for them, and for its new memory, in its stream."""
        used = [(self._live[storage], writes) for storage, writes in self._step.accesses[op] if storage in self._live]
        self._pinned = [storage for storage, _ in used]
        for storage, _ in used:
            if storage.lease is None:
                self._arrive(storage)
            storage.spare = False
            self._awaited_ns = max(self._awaited_ns, storage.arrived_ns)
        for storage, writes in used:
            if writes:
                storage.clean, storage.written = False, True
        end = Moment(0.0)
        self._happen(self._step.events[op, 1], inside=end)
        self._host_ns += OP_NS
        begin_ns = max(self._compute_ns, self._host_ns, self._awaited_ns)
        self._compute_ns = begin_ns + self._step.op_ns[op]
        end.ns = max(end.ns, self._compute_ns)
        for lease in self._taken:
            lease.used_ns = lease.used_ns or begin_ns
        self._taken.clear()
        for storage in self._pinned:
            storage.used_ns = self._compute_ns
        self._pinned = []
        self._launched.append(self._compute_ns)
        if len(self._launched) > QUEUE_OPS:
            self._host_ns = max(self._host_ns, self._launched.popleft())

    def _happen(self, events: list[tuple[int, int]], *, inside: Moment | None = None, first: bool = True) -> None:
        """Storages come and go: inside of an op, whose end is that moment, or outside of ops."""
        for kind, index in events:
            if kind == EventKind.ALLOCATE and first:
                storage = self._live[index] = _Storage(index, written=inside is not None or self._op < 0)
                self._pinned.append(storage)
                self._take(storage)
                if inside is not None:
                    self._awaited_ns = max(self._awaited_ns, storage.arrived_ns)
                else:
                    self._pinned = []
            elif kind == EventKind.FREE and index in self._live:
                storage = self._live.pop(index)
                if storage.lease is None:
                    continue
                if inside is not None:
                    inside.ns = max(inside.ns, storage.arrived_ns)
                self._give(storage, inside or Moment(max(storage.used_ns, storage.arrived_ns)))

    def _act(self, actions: list[tuple[int, int]]) -> None:
        for kind, index in actions:
            storage = self._live.get(index)
            if storage is None:
                continue
            if kind == ActionKind.SWAP_IN and storage.lease is None and storage.clean:
                self._arriving.append(storage)
                self._bring_planned()
            elif storage.lease is not None and (
                kind == ActionKind.SWAP_OUT or (kind == ActionKind.DROP and storage.clean)
            ):
                self._leave(storage)
            elif storage.lease is not None and kind == ActionKind.DROP:
                storage.spare = True

    def _bring_planned(self) -> None:
        """Starts the planned copies to the device for which there is room, in their order."""
        while self._arriving:
            storage = self._arriving[0]
            if self._live.get(storage.index) is storage and storage.lease is None and storage.clean:
                while not self._memory.fits(self._step.bytes[storage.index]):
                    spare = next((each for each in self._live.values() if each.spare), None)
                    if spare is None:
                        return
                    self._leave(spare)
                self._arrive(storage)
            self._arriving.popleft()

    def _arrive(self, storage: _Storage) -> None:
        lease = self._take(storage)
        if storage.clean:
            self._host_ns += _COPY_CALLS_NS
            earliest_ns = max(self._host_ns, lease.ready_ns, storage.hosted_ns)
            bytes_ = self._step.bytes[storage.index]
            lease.used_ns, storage.arrived_ns = self._to_device.copy(earliest_ns, bytes_, self._to_host)

    def _leave(self, storage: _Storage) -> None:
        free_ns = max(storage.used_ns, storage.arrived_ns)
        if storage.written and not storage.clean:
            self._host_ns += _COPY_CALLS_NS
            earliest_ns = max(self._host_ns, free_ns)
            _, free_ns = self._to_host.copy(earliest_ns, self._step.bytes[storage.index], self._to_device)
            storage.clean, storage.hosted_ns = True, free_ns
        storage.spare = False
        self._give(storage, Moment(free_ns))

    def _take(self, storage: _Storage) -> Lease:
        """Takes memory; while there is none, what is used furthest ahead leaves."""
        bytes_ = self._step.bytes[storage.index]
        while not self._memory.fits(bytes_):
            movable = [each for each in self._live.values() if self._movable(each)]
            if not movable:
                raise PoolFullError(f"op {self._op}: no room for {bytes_ >> 20} MiB")
            self._leave(
                max(movable, key=lambda each: _SPARE if each.spare else self._step.next_use(each.index, self._op))
            )
            self.steps[-1].evictions += 1
        lease = storage.lease = self._memory.take(bytes_)
        storage.arrived_ns = lease.ready_ns
        lease.taken_at = self._ticks
        self._ticks += 1
        self._takes += 1
        if lease.idle_ns > self._host_ns:
            self._host_ns = lease.idle_ns
            self.steps[-1].host_waits += 1
        self._host_ns += lease.mapped * _MAP_NS + lease.unmapped * _UNMAP_NS
        self.steps[-1].chunks += lease.mapped
        self._taken.append(lease)
        return lease

    def _movable(self, storage: _Storage) -> bool:
        large = self._step.bytes[storage.index] >= LEAST_LEAVING_BYTES
        return storage.lease is not None and large and storage not in self._pinned

    def _give(self, storage: _Storage, moment: Moment) -> None:
        lease, storage.lease = storage.lease, None
        if lease is not None:
            self._memory.give(lease, moment)
            self.stays.append(Stay(lease, self._ticks, moment))
            self._ticks += 1
