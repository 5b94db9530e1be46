"""The moments of a step, and which storages must be on the device at each: the same for every schedule of swaps.

The moments ("points") are the ops, at the instant at which they begin to execute, and the copies that the program makes
itself (host events). The rules are those of the simulator of explicit swapping (csrc/replay/swap_*).
"""

import numpy as np
from numpy.typing import NDArray

from umadvise.planners.step_graph import NONE, Uses, step_graph, sum_over
from umadvise.records.device import DeviceProfile
from umadvise.records.trace import Access, EventKind, Trace

TO_DEVICE, TO_HOST = 0, 1


class Points(Uses):
    """The points of a step, in order, and the uses of storages at them.

    Attributes:
        graph: step graph of the trace.
        device: profile of the device whose link makes the copies.
        bytes: size of each storage.
        op_at: index of the point that each op is.
        op: op that each point is, or in or after which it is; -1 before the first op.
        op_ns: nanoseconds of the op that each point is; 0 for the program's own copies.
        duration_ns: nanoseconds from each point on in which nothing of the compute queue that comes after it can begin.
        host_bytes: two rows, to the device and to the host: bytes that the program copies itself at each point.
        host_copies: two rows, to the device and to the host: number of these copies at each point.
        needs: whether each use needs on the device what was in the storage before.
        begins: whether each use does not read what was there before, so that making it again may begin here.
        writes: whether each use changes the contents, so that a copy on the host is not valid any more.
        resident: whether the storage of each use holds memory while the op executes (what an op frees before its last
            allocation does not).
        death: point of the op during or after which each storage is freed; the number of points where none is.
        opening: row of the use with which each storage goes on in the following step, or NONE.
    """

    def __init__(self, trace: Trace, device: DeviceProfile) -> None:
        """Finds the points of a step.

        Args:
            trace: trace of one training step.
            device: profile of the device whose link makes the copies.
        """
        self.graph, self.device = step_graph(trace), device
        self.bytes = trace.storages.bytes
        events, count, hosted = trace.events, len(trace.ops), self.graph.program_copies
        # Copies within an op come before it.
        position = events.op[hosted].astype(np.int64) * 3 + np.where(events.inside[hosted] == 1, 0, 2)
        order = np.argsort(np.concatenate([np.arange(count) * 3 + 1, position]), kind="stable")
        at = np.empty(len(order), np.int64)
        at[order] = np.arange(len(order))
        self.op_at, host_at = at[:count], at[count:]
        self.op = np.concatenate([np.arange(count), events.op[hosted]])[order]
        to_host = (events.kind[hosted] == EventKind.HOST_READ).astype(np.int64)
        self.host_bytes, self.host_copies = np.zeros((2, len(order)), np.int64), np.zeros((2, len(order)), np.int64)
        self.host_bytes[to_host, host_at] = events.bytes[hosted]
        self.host_copies[to_host, host_at] = 1
        ways = (device.link.h2d, device.link.d2h)
        fixed_ns = np.array([way.fixed_ns.value for way in ways])
        bytes_per_ns = np.array([way.bytes_per_s.value / 1e9 for way in ways])
        host_ns = fixed_ns[to_host] + events.bytes[hosted] / bytes_per_ns[to_host]
        duration_ns = np.maximum(trace.ops.duration_ns, 0).astype(np.float64)
        self.op_ns = np.concatenate([duration_ns, np.zeros(len(hosted))])[order]
        self.duration_ns = np.concatenate([duration_ns, host_ns])[order]
        self.death = np.append(self.op_at, len(order))[trace.deaths]
        self._find_uses(trace, hosted, host_at)
        heir = np.maximum(self.graph.heir, 0)
        opens = (self.graph.heir >= 0) & self.used[heir]
        self.opening = np.where(opens, self.first[heir], NONE)

    def _find_uses(self, trace: Trace, hosted: NDArray[np.intp], host_at: NDArray[np.int64]) -> None:
        accesses, events, sizes = trace.accesses, trace.events, trace.storages.bytes
        made = np.flatnonzero((events.kind == EventKind.ALLOCATE) & (events.inside == 1))
        # The first access decides whether contents are needed; what the op makes has none.
        storages = np.concatenate([events.storage[made], accesses.storage, events.storage[hosted]])
        places = np.concatenate([self.op_at[events.op[made]], self.op_at[accesses.op], host_at])
        super().__init__(len(sizes), len(self), storages, places)
        none, all_made, all_hosted = np.zeros(len(made), bool), np.ones(len(made), bool), np.ones(len(hosted), bool)
        whole = ((accesses.flags & Access.WHOLE) != 0) & (accesses.bytes == sizes[accesses.storage])
        reads = ((accesses.flags & Access.READ) != 0) & ~whole
        loads = events.kind[hosted] == EventKind.HOST_WRITE
        filled = loads & (events.bytes[hosted] == sizes[events.storage[hosted]])
        self.begins = self.leading(np.concatenate([all_made, ~reads, all_hosted]))
        self.writes = self.any_of(np.concatenate([none, (accesses.flags & Access.WRITE) != 0, loads]))
        before = np.concatenate([[0], np.cumsum(self.writes)])
        written = self._full(before)[self.storage] | (before[:-1] > before[self.first[self.storage]])
        self.needs = self.leading(np.concatenate([none, ~whole, ~filled])) & written
        gone = _freed_early(trace)
        width = max(len(self), 1)
        early = events.storage[gone].astype(np.int64) * width + self.op_at[events.op[gone]]
        self.resident = ~np.isin(self.storage * width + self.at, early)

    def _full(self, writes_before: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each storage has contents when a step begins: what only a step could have written may have none."""
        graph, trace = self.graph, self.graph.trace
        written = np.diff(writes_before[self.first]) > 0
        made = graph.continues & (trace.deaths < len(trace.ops))
        return (trace.births < 0) & (~made | written[np.maximum(graph.source, 0)])

    def __len__(self) -> int:
        return len(self.duration_ns)

    @property
    def trace(self) -> Trace:
        """The step."""
        return self.graph.trace

    def working_set_bytes(self) -> NDArray[np.int64]:
        """At each point, what is on the device at once under every schedule."""
        sizes = np.where(self.resident, self.bytes[self.storage], 0)
        return np.bincount(self.at, weights=sizes, minlength=len(self)).astype(np.int64)

    def load_bytes(self) -> NDArray[np.int64]:
        """At each point, what is in use or has contents that are needed later: held somewhere by every schedule."""
        inner = self.inner[self.needs[self.inner + 1]]
        used = np.flatnonzero(self.used)
        head = self.first[used][self.needs[self.first[used]]]
        opening = self.opening[used]
        tail = (self.first[used + 1] - 1)[(opening >= 0) & self.needs[opening]]
        begin = np.concatenate([self.at[inner] + 1, np.zeros(len(head), np.int64), self.at[tail] + 1])
        end = np.concatenate([self.at[inner + 1], self.at[head], np.full(len(tail), len(self))])
        held = sum_over(len(self), begin, end, self.bytes[self.storage[np.concatenate([inner, head, tail])]])
        return self.working_set_bytes() + held


def _freed_early(trace: Trace) -> NDArray[np.intp]:
    """Events that free inside an op what its last allocation may take already."""
    events = trace.events
    inside = events.inside == 1
    last = np.full(len(trace.ops), -1, np.int64)
    made = np.flatnonzero(inside & (events.kind == EventKind.ALLOCATE))
    np.maximum.at(last, events.op[made], made)
    freed = np.flatnonzero(inside & (events.kind == EventKind.FREE))
    return freed[freed < last[events.op[freed]]]
