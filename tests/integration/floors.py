"""The smallest budget that a training run can keep, worked out from its trace: what is on the device at once at least.

It shares no code with planners or engine. An op needs all that it touches and makes: whole chunks, and parts of chunks
where a storage has at most half a one. What is below 64 KiB, up to 12 MiB of it, and a library's scratch never leave.
The ops of an optimizer's step on lists of tensors can be done for one parameter after another.
"""

from umadvise.records.enums import Phase, Role
from umadvise.records.trace import EventKind, Trace

CHUNK_BYTES = 2 << 20
PART_BYTES = 64 << 10
MOST_STAYING_BYTES = 12 << 20
SPARE_CHUNKS = 2
"""The last chunk of those that stay is not full, nor the last one of those that are shared."""
_SIGNS = {EventKind.ALLOCATE: 1, EventKind.FREE: -1}
_LISTS = ("aten::_foreach_", "aten::_fused_")
_OF_A_PARAMETER = 6
"""Parameter, gradient, two states and two results of ops between them."""


def in_chunks(size_bytes: int) -> int:
    """Bytes of chunks that a storage with chunks of its own takes."""
    return -(-size_bytes // CHUNK_BYTES) * CHUNK_BYTES


class _Memory:
    """What is alive while a trace is read: what stays, in bytes, and storages that could be anywhere."""

    def __init__(self, trace: Trace) -> None:
        self.sizes, self.roles = trace.storages.bytes.tolist(), trace.storages.role.tolist()
        self.scratch_bytes = self.tiny_bytes = 0

    @property
    def pinned_bytes(self) -> int:
        return self.scratch_bytes + min(self.tiny_bytes, MOST_STAYING_BYTES)

    def leaves(self, storage: int) -> bool:
        return self.sizes[storage] >= PART_BYTES and self.roles[storage] != Role.WORKSPACE

    def add(self, storage: int, sign: int) -> None:
        size = self.sizes[storage]
        if size < PART_BYTES:
            self.tiny_bytes += sign * -(-size // 512) * 512
        elif self.roles[storage] == Role.WORKSPACE:
            self.scratch_bytes += sign * self.taken(storage)

    def taken(self, storage: int) -> int:
        """Chunks, or of a small one parts: first fit leaves at most a third of the chunks of such parts unused."""
        size = self.sizes[storage]
        return in_chunks(size) if size > CHUNK_BYTES // 2 else -(-size // PART_BYTES) * PART_BYTES * 3 // 2

    def working(self, storages: set[int]) -> int:
        return sum(self.taken(storage) for storage in storages if self.leaves(storage))


def floor_bytes(trace: Trace) -> int:
    """The least budget of a whole recording, in whole chunks."""
    touched: dict[int, set[int]] = {}
    for op, storage in zip(trace.accesses.op.tolist(), trace.accesses.storage.tolist(), strict=True):
        touched.setdefault(op, set()).add(storage)
    events: dict[int, list[tuple[int, int, int]]] = {}
    columns = (getattr(trace.events, name).tolist() for name in ("op", "inside", "kind", "storage"))
    for op, *event in zip(*columns, strict=True):
        events.setdefault(op, []).append((event[0], event[1], event[2]))
    memory = _Memory(trace)
    needs = (
        _op_bytes(memory, touched.get(op, set()), events.get(op, []), divided=op >= 0 and _is_divided(trace, op))
        for op in range(-1, len(trace.ops))
    )
    return in_chunks(max(needs)) + SPARE_CHUNKS * CHUNK_BYTES


def _op_bytes(memory: _Memory, working: set[int], events: list[tuple[int, int, int]], *, divided: bool) -> int:
    """What is on the device at once while an op runs, and until the next one begins."""
    peak = memory.pinned_bytes + memory.working(working)
    for inside, kind, storage in events:
        memory.add(storage, _SIGNS.get(kind, 0))
        if inside and kind == EventKind.ALLOCATE:
            working = working | {storage}
        peak = max(peak, memory.pinned_bytes + memory.working(working if inside else set()))
    if divided:
        largest = max((memory.working({storage}) for storage in working), default=0)
        return memory.pinned_bytes + min(_OF_A_PARAMETER * largest, memory.working(working))
    return peak


def _is_divided(trace: Trace, op: int) -> bool:
    return trace.ops.phase[op] == Phase.OPTIMIZER and trace.strings[trace.ops.name[op]].startswith(_LISTS)


def need_bytes(trace: Trace) -> int:
    """Chunks of all storages that are alive at once at most: a budget that nothing has to leave."""
    memory, now, peak = _Memory(trace), 0, 0
    for kind, storage in zip(trace.events.kind.tolist(), trace.events.storage.tolist(), strict=True):
        sign = _SIGNS.get(kind, 0)
        tiny = memory.sizes[storage] < PART_BYTES
        now += sign * (memory.sizes[storage] if tiny else memory.taken(storage))
        peak = max(peak, now)
    return in_chunks(peak) + SPARE_CHUNKS * CHUNK_BYTES
