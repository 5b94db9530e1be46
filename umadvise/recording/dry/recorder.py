"""The dry recorder: one training step on torch's meta device, where tensors have shapes and no bytes.

A model of any size is recorded with no memory for its data. The step runs twice: the first time makes the optimizer's
state and the gradients, the second is recorded. Everything that torch does to memory happens as in a real run, because
it is a real run: autograd frees saved tensors node by node, `zero_grad` drops gradients, checkpoints recompute.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from umadvise.devices import catalogue
from umadvise.errors import UsageError
from umadvise.recording.dry import in_place
from umadvise.recording.dry.meta_tape import MetaTape
from umadvise.recording.dry.op_origins import OpOrigins
from umadvise.recording.dry.roofline import retimed
from umadvise.recording.dry.targets import pretending
from umadvise.recording.dry.workspace import CUBLAS_BYTES
from umadvise.recording.workload import Workload
from umadvise.records.device import DeviceProfile
from umadvise.records.enums import Role
from umadvise.records.trace import TARGETS, Target, Trace
from umadvise.torch_seam.tensors import tensors_of_state


def record(
    build: Callable[[], Workload],
    *,
    target: Target = "cuda",
    device: DeviceProfile | str | None = None,
    from_first: int = 0,
) -> Trace:
    """Records one step of a workload without running it, or a training's first ones as if they were one.

    Args:
        build: function that makes the workload on torch's default device; it is called once.
        target: the hardware whose kernels are recorded: "cpu", or "cuda" for a GPU with cuDNN.
        device: profile, name or file of the device by whose roofline ops get their durations; None leaves them unknown.
        from_first: number of steps to record from the training's first one on, which makes the optimizer's state: what
            then lies where in memory depends on all of them. 0 records one that is like all that follow.

    Raises:
        UsageError: `build` makes no workload, or its step needs values, which the meta device has not.
    """
    if target not in TARGETS:
        raise UsageError(f"no target {target!r}: expected one of {', '.join(TARGETS)}")
    profile = catalogue.load_device(device) if device is not None else None
    with pretending(target):
        with _OnMeta(), _in_words("the workload cannot be built without data"):
            workload = build()
        if not isinstance(workload, Workload):
            raise UsageError(f"expected a function that returns a Workload, it returned a {type(workload).__name__}")
        tape = _recorded(workload, target, from_first)
    try:
        trace = tape.trace(workload.name)
    except ValueError as error:
        raise UsageError(f"this step is larger than a trace can hold: {error}") from error
    return trace if profile is None else retimed(trace, profile)


class _OnMeta(TorchFunctionMode):
    """Makes the meta device the default, but not for what optimizers make: their step counters are the host's."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _device_constructors() and kwargs.get("device") is None:
            maker = str(sys._getframe(1).f_globals.get("__name__"))
            kwargs["device"] = "cpu" if maker.startswith("torch.optim.") else "meta"
        return func(*args, **kwargs)


def _recorded(workload: Workload, target: Target, from_first: int) -> MetaTape:
    in_place.counts_of_sole_owner()
    origins = OpOrigins(workload.modules)
    tape = MetaTape(origins, target)
    with origins.followed(), torch.device("meta"), _in_words("the step cannot be recorded without data"):
        if not from_first:
            workload.step()
        for name, role, tensor in tensors_of(workload):
            tape.place(tensor, role, name)
        handles = [
            parameter.register_post_accumulate_grad_hook(tape.gradient_hook(name))
            for name, parameter in _parameters(workload)
            if parameter.requires_grad and parameter.is_leaf
        ]
        try:
            with tape:
                for _ in range(max(from_first, 1)):
                    workload.step()
        finally:
            for handle in handles:
                handle.remove()
        for name, role, tensor in tensors_of(workload):
            tape.name(tensor, role, name)
    if target == "cuda" and tape.multiplies:
        tape.place_scratch(CUBLAS_BYTES, "cuBLAS workspace")
    return tape


@contextmanager
def _in_words(problem: str) -> Iterator[None]:
    """What torch says of values that are not there, and of a GPU that is not, is said for the user of a recorder."""
    try:
        yield
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        reason = str(error).partition("\n")[0].rstrip(".!")
        if "meta" not in reason.lower() and "CUDA enabled" not in reason and "NVIDIA driver" not in reason:
            raise
        raise UsageError(
            f"{problem}: {reason}. Expected that all tensors are made on the default device, without .cuda() or "
            ".to(device), and that no value is read (no .item(), no `if tensor:`); record it from a run instead "
            "(umadvise run --record)"
        ) from error


def _modules(workload: Workload) -> list[tuple[str, torch.nn.Module]]:
    """The modules with what comes before their names."""
    several = len(workload.modules) > 1
    return [(f"{index}." * several, module) for index, module in enumerate(workload.modules)]


def _parameters(workload: Workload) -> list[tuple[str, torch.nn.Parameter]]:
    return [(prefix + name, each) for prefix, module in _modules(workload) for name, each in module.named_parameters()]


def tensors_of(workload: Workload) -> list[tuple[str, Role, torch.Tensor]]:
    """The tensors that are there between two steps: (name, role, tensor)."""
    found: list[tuple[str, Role, torch.Tensor]] = []
    for name, parameter in _parameters(workload):
        found.append((name, Role.PARAMETER, parameter))
        if parameter.grad is not None:
            found.append((f"{name}.grad", Role.GRADIENT, parameter.grad))
    for prefix, module in _modules(workload):
        found += [(prefix + name, Role.PARAMETER, buffer) for name, buffer in module.named_buffers()]
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in _parameters(workload)}
    for optimizer in workload.optimizers:
        for entry, owner, tensor in tensors_of_state(optimizer):
            found.append((f"{names.get(owner, 'parameter')}.{entry}", Role.OPTIMIZER_STATE, tensor))
    found += [(f"input {index}", Role.INPUT, tensor) for index, tensor in enumerate(workload.inputs)]
    return found
