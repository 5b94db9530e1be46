"""The planners `vdnn-all`, `vdnn-conv` and `vdnn-dyn` (vDNN: Rhu et al. 2016, arXiv:1602.08124).

A layer's input X leaves while the layer's forward runs, and the next layer begins when X is gone (section 3.2). In
backward, before a layer, the nearest earlier layer that needs its X is looked for, not beyond the next convolution
(figure 8); that X comes while the layer's backward runs, and the next layer begins when X is there. So what is on the
device when is a matter of bytes alone, and is known at every op without a clock.

Which X leaves is the transfer policy (section 3.3): `all` of the feature extraction layers, or those of convolutions.
Activations work in place and have none; the last convolution's would come back at once and stays.

Where the paper, which has linear networks, leaves something open:

- an X that several layers read leaves with the last of them, and its return is that layer's;
- an X for which the search comes too late comes before the op that needs it;
- without convolutions, products take their part, and there are no classification layers;
- "convolutional algorithms" are two: see umadvise.planners.papers.convolution. The trace's own durations and scratch
  are not changed by a plan; one for the fastest algorithms keeps room for their workspaces.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from umadvise.errors import BudgetError, UsageError
from umadvise.planners.papers.convolution import workspace_bytes
from umadvise.planners.papers.layers import Backward, LayerKind, find_layers
from umadvise.planners.step_graph import step_graph, sum_over
from umadvise.records.device import DeviceProfile
from umadvise.records.enums import Phase, Role
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Trace
from umadvise.records.units import format_bytes

Transfer: TypeAlias = Literal["none", "conv", "all"]
Algorithm: TypeAlias = Literal["memory_optimal", "performance_optimal"]


def vdnn_all(
    trace: Trace, _device: DeviceProfile, budget_bytes: int, *, algorithm: Algorithm = "memory_optimal"
) -> Plan:
    """The policy `all`: the inputs (X) of all feature extraction layers leave.

    Args:
        trace: trace of one training step.
        budget_bytes: bytes that tensors may take on the device.
        algorithm: algorithm of all convolutions: the one without a workspace, or the fastest.

    Raises:
        BudgetError: the step takes more than the budget even so.
        UsageError: no such algorithm.
    """
    return _static(trace, budget_bytes, "all", algorithm)


def vdnn_conv(
    trace: Trace, _device: DeviceProfile, budget_bytes: int, *, algorithm: Algorithm = "memory_optimal"
) -> Plan:
    """The policy `conv`: only inputs of convolutions leave, whose time hides most of the copies; see `vdnn_all`."""
    return _static(trace, budget_bytes, "conv", algorithm)


def vdnn_dyn(trace: Trace, _device: DeviceProfile, budget_bytes: int) -> Plan:
    """The policy `dyn`: the first that fits of several choices, by trial (section 3.3); see `choose`.

    Raises:
        BudgetError: not even `all` with memory-optimal algorithms fits.
    """
    step = _Step(trace)
    choice = _choose(step, budget_bytes)
    options = {"transfer": choice.transfer, "algorithms": choice.algorithms}
    return Plan.from_actions(trace, step.offload(choice.transfer).actions(), "vdnn-dyn", budget_bytes, options)


@dataclass(frozen=True)
class VdnnChoice:
    """What the policy `dyn` chose for a step.

    Attributes:
        transfer: layers whose inputs leave: of none, of convolutions, or of all.
        algorithms: "performance_optimal", or "greedy" where some were downgraded.
        fast: whether the convolution of each op takes the fastest algorithm.
    """

    transfer: Transfer
    algorithms: str
    fast: NDArray[np.bool_]


def choose(trace: Trace, budget_bytes: int) -> VdnnChoice:
    """The first choice that fits: with the fastest algorithms no inputs, those of convolutions, or all inputs leave.

    Where none of these fits the inputs of convolutions, or else all, leave, and each convolution whose workspace would
    overflow the budget takes the memory-optimal algorithm ("greedy").

    Raises:
        BudgetError: not even `all` with memory-optimal algorithms fits.
    """
    return _choose(_Step(trace), budget_bytes)


def _choose(step: "_Step", budget_bytes: int) -> VdnnChoice:
    none = np.zeros_like(step.workspace)
    step.offload("all").require(budget_bytes, none)
    transfers: tuple[Transfer, ...] = ("none", "conv", "all")
    for transfer in transfers:
        if step.offload(transfer).peak(step.workspace) <= budget_bytes:
            return VdnnChoice(transfer, "performance_optimal", step.workspace > 0)
    downgraded: Transfer = "conv" if step.offload("conv").peak(none) <= budget_bytes else "all"
    fits = step.offload(downgraded).op_peaks + step.workspace <= budget_bytes
    return VdnnChoice(downgraded, "greedy", fits & (step.workspace > 0))


def _static(trace: Trace, budget_bytes: int, transfer: Transfer, algorithm: Algorithm) -> Plan:
    if algorithm not in get_args(Algorithm):
        raise UsageError(f"unknown algorithm {algorithm!r}: expected one of {', '.join(get_args(Algorithm))}")
    step = _Step(trace)
    offload = step.offload(transfer)
    offload.require(budget_bytes, step.workspace * (algorithm == "performance_optimal"))
    return Plan.from_actions(trace, offload.actions(), f"vdnn-{transfer}", budget_bytes, {"algorithm": algorithm})


@dataclass(frozen=True, slots=True)
class _Map:
    """An X that can leave.

    Attributes:
        storage: which one.
        layer: after which it is gone: the last that uses it in forward.
        copied_from: op of the layer from which on the copy may run: nobody writes any more. None where that is no
            earlier than the layer's end, and where the host may have a copy: without one to make, X would be gone.
        back: the first op that needs it again.
    """

    storage: int
    layer: int
    copied_from: int | None
    back: int


class _Step:
    """What all policies ask of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.graph = trace, step_graph(trace)
        self.layers = find_layers(trace)
        self._offloads: dict[Transfer, _Offload] = {}

    @cached_property
    def workspace(self) -> NDArray[np.int64]:
        """Of the fastest algorithm of each op."""
        return workspace_bytes(self.trace)

    def offload(self, transfer: Transfer) -> "_Offload":
        """What leaves by a policy, and when it comes back."""
        if transfer not in self._offloads:
            self._offloads[transfer] = _Offload(self, list(self._maps(transfer)))
        return self._offloads[transfer]

    def _maps(self, transfer: Transfer) -> Iterator[_Map]:
        if transfer == "none":
            return
        trace, layers, uses = self.trace, self.layers, self.graph.uses
        extraction = layers.classifier
        compute = [index for index in range(extraction) if layers.forward[index].kind is LayerKind.COMPUTE]
        last_compute = compute[-1] if compute else -1
        movable = np.isin(trace.storages.role, (Role.INPUT, Role.INTERMEDIATE)) & ~self.graph.transient
        for storage in np.flatnonzero(movable & (trace.storages.bytes > 0)).tolist():
            rows = slice(uses.first[storage], uses.first[storage + 1])
            ops = uses.at[rows]
            backward = np.flatnonzero(trace.ops.phase[ops] == Phase.BACKWARD)
            if not len(backward) or backward[0] == 0:
                continue
            forward, writes = ops[: backward[0]], uses.writes[rows][: backward[0]]
            layer = int(layers.of_op[forward[-1]])
            if not 0 <= layer < extraction or layer == last_compute:
                continue
            readers = {int(each) for each in layers.of_op[forward[~writes]] if each >= 0}
            if transfer == "conv":
                readers &= set(compute)
            if readers:
                here = forward >= layers.forward[layer].first
                held = uses.accessed[rows][: backward[0]][here][0]  # by the op that it is copied beside
                early = held and not (here & writes).any() and trace.births[storage] >= 0
                copied = int(forward[here][0]) if early else None
                yield _Map(storage, layer, copied, int(ops[backward[0]]))


class _Offload:
    """A policy's schedule."""

    def __init__(self, step: _Step, maps: list[_Map]) -> None:
        self.step = step
        self.maps = maps
        self.prefetches = self._prefetches()

    def _prefetches(self) -> dict[int, Backward]:
        """By storage: the backward that hides its copy. Figure 8, for every layer in the order of backward."""
        layers = self.step.layers
        waiting: defaultdict[int, list[_Map]] = defaultdict(list)
        for each in self.maps:
            waiting[each.layer].append(each)
        compute = {index for index, layer in enumerate(layers.forward) if layer.kind is LayerKind.COMPUTE}
        stops = sorted(compute | set(waiting))  # no search ends anywhere else
        found: dict[int, Backward] = {}
        for run in layers.backward:
            for position in range(bisect_left(stops, run.layer) - 1, -1, -1):
                layer = stops[position]
                if layer in waiting or layer in compute:
                    for each in waiting.pop(layer, ()):
                        if layers.forward[layer].last < run.first <= each.back:
                            found[each.storage] = run
                    break
        return found

    def _returns(self, each: _Map) -> int:
        return self.prefetches[each.storage].first if each.storage in self.prefetches else each.back

    @cached_property
    def op_peaks(self) -> NDArray[np.int64]:
        """Most bytes that are live from each op's begin until the next one's, without what is away by then."""
        columns = [
            (self.step.layers.forward[each.layer].last + 1, self._returns(each), each.storage) for each in self.maps
        ]
        begin, end, storage = np.array(columns, np.int64).reshape(-1, 3).T
        sizes = self.step.trace.storages.bytes
        return self.step.graph.peak_bytes - sum_over(len(self.step.trace.ops), begin, end, sizes[storage])

    def peak(self, workspace: NDArray[np.int64]) -> int:
        """Bytes of device memory that it takes with such workspaces."""
        return max(int((self.op_peaks + workspace).max(initial=0)), self.step.graph.bytes_before)

    def require(self, budget_bytes: int, workspace: NDArray[np.int64]) -> None:
        """Returns where the budget does.

        Raises:
            BudgetError: it does not.
        """
        peak_bytes = self.peak(workspace)
        if peak_bytes > budget_bytes:
            raise BudgetError(
                f"with all that this policy moves the step takes {format_bytes(peak_bytes)} at once, more than the "
                f"budget of {format_bytes(budget_bytes)}; give at least that, or make the batch smaller"
            )

    def actions(self) -> Iterator[Action]:
        """In the order of execution for each anchor."""
        forward = self.step.layers.forward
        for each in self.maps:
            layer = forward[each.layer]
            if each.copied_from is not None:  # that op's own use keeps the memory, and the copy goes on
                yield Action(ActionKind.SWAP_OUT, each.copied_from, each.storage)
            yield Action(ActionKind.SWAP_OUT, layer.last, each.storage, after=True)
        for each in self.maps:
            yield Action(ActionKind.WAIT, forward[each.layer].last, each.storage, after=True)
            yield Action(ActionKind.SWAP_IN, self._returns(each), each.storage)
            run = self.prefetches.get(each.storage)
            if run is not None and run.last < each.back:
                yield Action(ActionKind.WAIT, run.last, each.storage, after=True)
