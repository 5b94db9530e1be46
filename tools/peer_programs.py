"""Steps of networks that torch's own means give less memory, and steps whose marked layers a session makes again.

What people write without umadvise: `torch.autograd.graph.save_on_cpu(pin_memory=True)` around the forward pass, or each
layer under `torch.utils.checkpoint`. torch runs both in one stream, kernels and copies in a row. With layers so marked
a session on the rung swap+recompute has single ops of them run again. All are recorded dry.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from umadvise.recording.dry import recorder as dry
from umadvise.recording.dry.meta_tape import MetaTape
from umadvise.recording.workload import Workload
from umadvise.records.device import DeviceProfile
from umadvise.records.plan import Plan
from umadvise.records.trace import Trace
from umadvise.torch_seam.replacements import Replacements
from umadvise.training.recompute.choice import choose, ops_of
from umadvise.training.recompute.regions import Regions

BLOCKS = ("BertLayer", "PreNormLayer", "_Bottleneck")
"""Classes of the modules that are checkpointed: layers of encoders and decoders, bottlenecks."""

Build = Callable[[], Workload]

# What a copy is in a trace: an op that reads the tensor on the device, or fills it.
_COPIES = torch.library.Library("umadvise_peers", "DEF")
_TO_HOST, _TO_DEVICE = "copy_to_host", "copy_to_device"
_COPIES.define(f"{_TO_HOST}(Tensor sent) -> ()", tags=(torch.Tag.pt2_compliant_tag,))
_COPIES.define(f"{_TO_DEVICE}(Tensor(a!) received) -> ()", tags=(torch.Tag.pt2_compliant_tag,))
for _name in (_TO_HOST, _TO_DEVICE):
    _COPIES.impl(_name, lambda _tensor: None, "Meta")


@dataclass(frozen=True, eq=False)
class PeerStep:
    """A step in one stream, of a host that is always ahead of the device.

    Attributes:
        trace: the step; a copy is an op that lasts as long as the device's link takes.
        host_bytes: bytes that are copied to the host.
        device_bytes: bytes that are copied to the device.
        copies: number of copies, both ways.
    """

    trace: Trace
    host_bytes: int
    device_bytes: int
    copies: int

    @property
    def peak_bytes(self) -> int:
        """The most bytes that tensors take on the device at once."""
        return self.trace.peak_bytes

    @property
    def step_ns(self) -> int:
        """Nanoseconds of the step: its kernels and copies in a row."""
        return self.trace.duration_ns


def peer_step(build: Build, device: DeviceProfile, prepare: Callable[[Workload], None]) -> PeerStep:
    """Records a step of a workload that is changed before it first runs.

    Args:
        build: function that makes the workload, as `umadvise.recording.dry.recorder.record` takes it.
        device: profile of the device whose roofline and link say what ops and copies take.
        prepare: function that changes the workload, one of `PEERS`.
    """
    trace = dry.record(prepared(build, prepare), device=device)
    duration_ns = trace.ops.duration_ns.copy()
    copied: list[int] = []
    copies = 0
    for name, way in ((_TO_HOST, device.link.d2h), (_TO_DEVICE, device.link.h2d)):
        ops = np.flatnonzero(trace.ops.name == _index(trace, f"umadvise_peers::{name}"))
        bytes_ = trace.accesses.bytes[trace.first_access[ops]]
        duration_ns[ops] = way.fixed_ns.value + np.rint(bytes_ * 1e9 / way.bytes_per_s.value)
        copied.append(int(bytes_.sum()))
        copies += len(ops)
    return PeerStep(replace(trace, ops=replace(trace.ops, duration_ns=duration_ns)), copied[0], copied[1], copies)


def _index(trace: Trace, name: str) -> int:
    return trace.strings.index(name) if name in trace.strings else -1


def prepared(build: Build, prepare: Callable[[Workload], None]) -> Build:
    """A function that makes a workload and changes it."""

    def both() -> Workload:
        workload = build()
        prepare(workload)
        return workload

    return both


def save_on_cpu(workload: Workload) -> None:
    """Puts `torch.autograd.graph.save_on_cpu(pin_memory=True)` around the forward pass of each model."""

    def saving(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        with saved_tensors_hooks(_pack, _unpack):
            return forward(*inputs, **named)

    for model in workload.modules:
        model.forward = functools.partial(saving, model.forward)


def _pack(tensor: torch.Tensor) -> Any:
    """An asynchronous copy to page-locked memory in the current stream (torch 2.13, autograd/graph.py, save_on_cpu).

    What is not contiguous is made so on the device first (Copy.cu, copy_requires_temporaries).
    """
    if not tensor.is_meta:
        return tensor  # of the host already
    torch.ops.umadvise_peers.copy_to_host(tensor.contiguous())
    return tensor.size(), tensor.dtype, tensor.device


def _unpack(packed: Any) -> torch.Tensor:
    """An asynchronous copy to new memory of the device in the current stream (the same, unpack_from_cpu)."""
    if isinstance(packed, torch.Tensor):
        return packed
    size, dtype, device = packed
    received = torch.empty(size, dtype=dtype, device=device)
    torch.ops.umadvise_peers.copy_to_device(received)
    return received


def checkpoint_layers(workload: Workload) -> None:
    """Makes each layer of each model a region of `torch.utils.checkpoint`, without reentrant backward passes."""
    for model in workload.modules:
        for module in model.modules():
            if type(module).__name__ in BLOCKS:
                module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)


SAVED_ON_CPU, CHECKPOINTED = "save_on_cpu(pin_memory=True)", "checkpointed layers"
PEERS: dict[str, Callable[[Workload], None]] = {SAVED_ON_CPU: save_on_cpu, CHECKPOINTED: checkpoint_layers}
"""What is done to a workload, by name."""


class MarkedStep:
    """A workload with checkpointed layers in a session on the rung swap+recompute, recorded dry.

    Attributes:
        trace: the step as the session records and plans it: of layers that change nothing but their own tensors all is
            kept, the others are left to torch.
        regions: the layers that a session follows.
    """

    def __init__(self, build: Build, device: DeviceProfile) -> None:
        """Records the step.

        Args:
            build: function that makes the workload; its layers are not marked yet.
            device: profile of the device whose roofline says what ops take.
        """
        self._build, self._device = prepared(build, checkpoint_layers), device
        self._followed = Regions(_ops_recorded)
        self.trace = self._record(recording=True)
        self.regions = self._followed.recorded

    def running_again(self, plan: Plan) -> Trace:
        """The step in which the ops that a plan recomputes run again, as far as a session can have them run again.

        Args:
            plan: plan with recomputations that names ops and storages as `trace` does.
        """
        self._followed.run_again(choose(ops_of(plan, self.trace), self.regions))
        return self._record(recording=False)

    def _record(self, *, recording: bool) -> Trace:
        def followed() -> Workload:
            workload = self._build()

            def step() -> object:
                self._followed.begin_step(record=recording)
                return workload.step()

            return replace(workload, step=step)

        with _installed(self._followed):
            return dry.record(followed, device=self._device)


@contextmanager
def _installed(regions: Regions) -> Iterator[None]:
    replaced = Replacements()
    regions.install(replaced)
    try:
        yield
    finally:
        replaced.undo()


def _ops_recorded() -> int:
    """Ops of the step that is being recorded in this thread; 0 where none is."""
    return sum(mode.op_count for mode in _get_current_dispatch_mode_stack() if isinstance(mode, MetaTape))
