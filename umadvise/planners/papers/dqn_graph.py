"""A step as the DQN paper's graph: its nodes, edges, features, and which node stands for which action (section 4.2).

A node is one operation of the GPU on one variable: malloc, a use (read or write), or free. The graph holds those of the
variables that may leave. Left open by the paper, and decided here:

- Two nodes of a variable have an edge where no third one of it is between; so do neighbours in time.
- Offloading is the node of the last use before the gap. Removing is the variable's malloc: it is removed in one gap
  only, and only where it takes no longer to make it again than to copy it once. Doing nothing is a node of its own
  before all others. So no node stands for two actions.
- Sizes count in the mean size, times in the mean time of a transfer, of the variables that may leave; times enter as
  logarithms of 1 + them. So the numbers mean the same in a small graph and in a large one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from umadvise.devices.link import native_link
from umadvise.planners.papers.dqn_layout import VariableGap
from umadvise.planners.step_lists import StepLists
from umadvise.records.device import DeviceProfile

Floats = NDArray[np.float32]
FEATURES = 6
VALID = 5
"""The feature that changes: whether the node's action can be executed."""


class Decision(IntEnum):
    """What a node's action does."""

    NOTHING = 0
    OFFLOAD = 1
    REMOVE = 2


@dataclass(frozen=True, slots=True)
class NodeAction:
    """An action, and the node that stands for it."""

    node: int
    choice: Decision
    gap: VariableGap | None


@dataclass(frozen=True, eq=False)
class VariableGraph:
    """The nodes and edges of a step's graph, which do not change while a plan is made.

    Attributes:
        op: op of each node; ascending, -1 for the first one.
        earlier: earlier node of each edge between nodes of one variable, of which a node has at most one each way.
            Nodes that follow each other have an edge besides, and each has one to itself.
        later: later node of each of those edges.
        lag: sum of the weights of each node's edges.
        features: the six features of each node in equation 1; that of validity is left 0.
        actions: actions of all nodes that stand for one; the first does nothing.
        mean_ns: unit of time of rewards and features, in nanoseconds.
    """

    op: NDArray[np.int64]
    earlier: NDArray[np.int64]
    later: NDArray[np.int64]
    lag: Floats
    features: Floats
    actions: tuple[NodeAction, ...]
    mean_ns: float


class Clock:
    """Times of a step, without any stall."""

    def __init__(self, step: StepLists, device: DeviceProfile) -> None:
        self.begin_ns = np.concatenate([[0], np.cumsum(step.durations)]).astype(np.int64)
        link = native_link(device)
        self.fixed_ns: int = link.fixed_ns[1]
        self.bytes_per_s: float = link.bytes_per_s[1]

    def transfer_ns(self, bytes_: int) -> int:
        """Nanoseconds of a copy to the host."""
        return round(self.fixed_ns + bytes_ / self.bytes_per_s * 1e9)

    def away_ns(self, gap: VariableGap) -> int:
        """Nanoseconds from the end of the use before a gap to the use after it."""
        away_ns = int(self.begin_ns[gap.following] - self.begin_ns[gap.last + 1])
        return away_ns + int(self.begin_ns[-1]) if gap.wraps else away_ns


def build_graph(step: StepLists, gaps: Sequence[VariableGap], clock: Clock) -> VariableGraph:
    """The graph of a step whose variables may leave in some gaps."""
    nodes, place = _nodes(step, sorted({gap.storage for gap in gaps}))
    mean_ns = float(np.mean([clock.transfer_ns(step.sizes[gap.storage]) for gap in gaps])) if gaps else 1.0
    mean_bytes = float(np.mean([step.sizes[gap.storage] for gap in gaps])) if gaps else 1.0
    begin = np.array([0 if op < 0 else int(clock.begin_ns[op]) for op, _, _ in nodes])
    features = np.zeros((len(nodes), FEATURES), np.float32)
    for row, (_, _, storage) in enumerate(nodes[1:], 1):
        features[row, 0] = step.sizes[storage] / mean_bytes
        features[row, 1] = np.log1p(clock.transfer_ns(step.sizes[storage]) / mean_ns)
    actions = [NodeAction(0, Decision.NOTHING, None)]
    for gap in gaps:
        use = place[gap.storage, gap.last, _USE]
        actions.append(NodeAction(use, Decision.OFFLOAD, gap))
        features[use, 3] = np.log1p(clock.away_ns(gap) / mean_ns)
        features[use, 4] = Decision.OFFLOAD
        if gap.recompute_ns is not None and gap.recompute_ns <= clock.transfer_ns(step.sizes[gap.storage]):
            malloc = place[gap.storage, step.births[gap.storage], _MALLOC]
            actions.append(NodeAction(malloc, Decision.REMOVE, gap))
            features[malloc, 4] = Decision.REMOVE
            features[[use, malloc], 2] = np.log1p(gap.recompute_ns / mean_ns)
            features[malloc, 3] = features[use, 3]
    earlier, later = _edges([storage for _, _, storage in nodes])
    lag = _lags(begin, earlier, later, mean_ns)
    ops = np.array([op for op, _, _ in nodes], np.int64)
    return VariableGraph(ops, earlier, later, lag, features, tuple(actions), mean_ns)


_MALLOC, _USE, _FREE = range(3)
_Node = tuple[int, int, int]


def _nodes(step: StepLists, storages: Sequence[int]) -> tuple[list[_Node], dict[tuple[int, int, int], int]]:
    """Op, kind and storage of each node in the order of time, and the other way round."""
    nodes: list[_Node] = [(-1, -1, -1)]
    for storage in storages:
        if step.births[storage] >= 0:
            nodes.append((step.births[storage], _MALLOC, storage))
        nodes += [(op, _USE, storage) for op in step.graph.uses.of(storage).tolist()]
        if step.deaths[storage] < len(step.durations):
            nodes.append((step.deaths[storage], _FREE, storage))
    nodes.sort()
    return nodes, {(storage, op, kind): row for row, (op, kind, storage) in enumerate(nodes)}


def _edges(storages: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Nodes of one variable that do not follow each other, with no third one between: the earlier and the later."""
    latest: dict[int, int] = {}
    pairs = []
    for row, storage in enumerate(storages):
        if storage in latest and row - latest[storage] > 1:
            pairs.append((latest[storage], row))
        latest[storage] = row
    edges = np.array(pairs, np.int64).reshape(-1, 2)
    return edges[:, 0], edges[:, 1]


def _lags(begin_ns: NDArray[np.int64], earlier: NDArray[np.int64], later: NDArray[np.int64], mean_ns: float) -> Floats:
    lag = np.zeros(len(begin_ns))
    for ends in ((np.arange(len(begin_ns) - 1), np.arange(1, len(begin_ns))), (earlier, later)):
        weight = np.log1p((begin_ns[ends[1]] - begin_ns[ends[0]]) / mean_ns)
        for end in ends:
            np.add.at(lag, end, weight)
    return lag.astype(np.float32)
