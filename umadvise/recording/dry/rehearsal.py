"""Steps of a training that are recorded before they run, with the very objects that will run them.

The code of a step is called twice, on stand-ins of the meta device for all that it has in its hands (`stand_ins.py`).
The first time makes the optimizer's state, as the first step of a training does; the second one is like all that
follow. Afterwards modules, optimizers and the generators of random numbers are as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.lr_scheduler import LRScheduler
from torch.utils import _pytree as pytree

from umadvise import _native
from umadvise._native.abi import Allocation
from umadvise.errors import UsageError
from umadvise.recording.dry import in_place
from umadvise.recording.dry.meta_tape import MetaTape
from umadvise.recording.dry.op_origins import OpOrigins
from umadvise.recording.dry.roofline import retimed
from umadvise.recording.dry.stand_ins import StandIns
from umadvise.recording.dry.targets import pretending
from umadvise.recording.recorded_step import RecordedStep, in_canonical_order
from umadvise.records.device import DeviceProfile
from umadvise.records.enums import Phase, Role
from umadvise.records.trace import Target
from umadvise.torch_seam.runtime import HOST, routed, storage_address
from umadvise.torch_seam.tensors import is_distributed, tensors_of_state


@dataclass(frozen=True)
class Rehearsal:
    """What is rehearsed, and for which device.

    Attributes:
        modules: the modules that are trained.
        optimizers: optimizers of the modules' parameters.
        target: hardware whose kernels the ops are.
        profile: profile of the device by whose roofline ops get their durations.
        under_mode: whether the training itself runs under a Python mode, as it does in virtual time.
    """

    modules: Sequence[torch.nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    target: Target
    profile: DeviceProfile
    under_mode: bool = False

    def record(self, step: Callable[[], object]) -> tuple[RecordedStep, RecordedStep]:
        """Records a training's next step, and one of those that follow; the model and the optimizer do not change.

        Args:
            step: function that runs one whole step.

        Raises:
            UsageError: the step needs values, which are not there, or the model has DTensors.
        """
        if any(is_distributed(each) for module in self.modules for each in module.parameters()):
            raise UsageError(
                "the step cannot be recorded before it runs: the model has DTensors (fully_shard, parallelize_module), "
                "which have no stand-ins. Leave plan_ahead out: steps are recorded as they run"
            )
        in_place.counts_of_sole_owner()
        with ExitStack() as stack:
            stack.enter_context(routed(HOST))
            stack.enter_context(_unchanged(self.modules, self.optimizers))
            stack.enter_context(_without_schedulers())
            stack.enter_context(pretending(self.target, under_mode=self.under_mode))
            stack.enter_context(_in_words())
            origins = OpOrigins(tuple(self.modules))
            stack.enter_context(origins.followed())
            cast = _Cast(self, origins)
            return cast.play(step), cast.play(step)


@contextmanager
def _without_schedulers() -> Iterator[None]:
    """Learning rates change with the steps of the training alone: a step is the same whatever they are."""
    classes = [LRScheduler]
    for each in classes:
        classes += [found for found in each.__subclasses__() if found not in classes]
    kept = [(each, each.__dict__["step"]) for each in classes if "step" in each.__dict__]
    for each, _ in kept:
        each.step = lambda *_arguments, **_named: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        for each, step in kept:
            each.step = step  # type: ignore[method-assign]


class _Cast:
    """The stand-ins of both steps, and the tape of the one that runs."""

    def __init__(self, rehearsal: Rehearsal, origins: OpOrigins) -> None:
        self._rehearsal, self._origins = rehearsal, origins
        self._tape = self._new_tape()
        self._allocations: list[tuple[torch.Tensor, Allocation | None]] = []
        self._stand_ins = StandIns(
            rehearsal.target,
            met=self._met,
            made=lambda tensor: self._tape.make(tensor),
            makes_on_host=lambda: origins.phase is Phase.OPTIMIZER,
        )
        self._parameters = [
            (prefix + name, parameter, self._stand_ins.of(parameter))
            for prefix, module in self._modules()
            for name, parameter in module.named_parameters()
        ]

    def _new_tape(self) -> MetaTape:
        rehearsal = self._rehearsal
        return MetaTape(self._origins, rehearsal.target, under_mode=rehearsal.under_mode)

    def _modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        several = len(self._rehearsal.modules) > 1
        return ((f"{index}." * several, module) for index, module in enumerate(self._rehearsal.modules))

    def _met(self, real: torch.Tensor, stand_in: torch.Tensor) -> None:
        """A tensor from before the steps: what the device knows of it."""
        allocation = _native.allocation_at(storage_address(real.untyped_storage()))
        self._allocations.append((stand_in, allocation))
        self._place(stand_in, allocation)

    def _place(self, stand_in: torch.Tensor, allocation: Allocation | None) -> None:
        if allocation is None:
            self._tape.leave_out(stand_in)
        else:
            self._tape.place(stand_in, Role(allocation.role), allocation.name)

    def play(self, step: Callable[[], object]) -> RecordedStep:
        """One step, from what the one before has left."""
        tape = self._tape = self._new_tape()
        for stand_in, allocation in self._allocations:
            self._place(stand_in, allocation)
        for tensor, role, name in self._kept():
            tape.place(tensor, role, name)
        handles = [
            each.register_post_accumulate_grad_hook(tape.gradient_hook(name))
            for name, _, each in self._parameters
            if each.requires_grad
        ]
        try:
            with tape, self._stand_ins.on():
                step()
        finally:
            for handle in handles:
                handle.remove()
        for tensor, role, name in self._kept():
            tape.name(tensor, role, name)
        return self._recorded(tape)

    def _kept(self) -> Iterator[tuple[torch.Tensor, Role, str]]:
        """What steps make that stays: gradients and the optimizers' state."""
        names = {id(parameter): name for name, parameter, _ in self._parameters}
        for name, _, each in self._parameters:
            if each.grad is not None:
                yield each.grad, Role.GRADIENT, f"{name}.grad"
        for optimizer in self._rehearsal.optimizers:
            for entry, owner, tensor in tensors_of_state(optimizer):
                stand_in = self._stand_ins.of(tensor)
                yield stand_in, Role.OPTIMIZER_STATE, f"{names.get(id(owner), 'parameter')}.{entry}"

    def _recorded(self, tape: MetaTape) -> RecordedStep:
        try:
            trace = retimed(tape.trace(""), self._rehearsal.profile)
        except ValueError as error:
            raise UsageError(f"this step is larger than a trace can hold: {error}") from error
        serials: NDArray[np.uint64] = np.zeros(len(trace.storages), np.uint64)
        for stand_in, allocation in self._allocations:
            index = tape.index_of(stand_in)
            if index is not None and allocation is not None:
                serials[index] = allocation.serial
        trace, order = in_canonical_order(trace)
        return RecordedStep(trace, serials[order], "host" if self._rehearsal.under_mode else "roofline")


@contextmanager
def _unchanged(modules: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
    """Puts back what modules and optimizers hold and the generators of random numbers, however it ends."""
    random_states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    attributes = [(module, _shallow(vars(module))) for root in modules for module in root.modules()]
    groups = [
        (group, {name: value for name, value in group.items() if name != "params"})
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]
    states = [(optimizer, _containers(dict(optimizer.state))) for optimizer in optimizers]
    try:
        yield
    finally:
        for module, before in attributes:
            _put_back(vars(module), before)
        for group, before in groups:
            for name in [each for each in group if each not in before and each != "params"]:
                del group[name]
            group.update(before)
        for optimizer, entries in states:
            optimizer.state.clear()
            optimizer.state.update(entries)
        torch.set_rng_state(random_states[0])
        random.setstate(random_states[1])
        np.random.set_state(random_states[2])


def _shallow(attributes: dict[str, Any]) -> dict[str, Any]:
    """A module's attributes, with copies of its own dictionaries of tensors."""
    return {name: dict(value) if name in _OF_TENSORS else value for name, value in attributes.items()}


_OF_TENSORS = ("_parameters", "_buffers")


def _put_back(attributes: dict[str, Any], before: dict[str, Any]) -> None:
    for name in [each for each in attributes if each not in before]:
        del attributes[name]
    for name, value in before.items():
        if name in _OF_TENSORS:
            attributes[name].clear()
            attributes[name].update(value)
        else:
            attributes[name] = value


def _containers(state: dict[Any, Any]) -> dict[Any, Any]:
    """Copies of an optimizer's entries, with the tensors themselves."""
    return {owner: pytree.tree_map(lambda leaf: leaf, entries) for owner, entries in state.items()}


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".!")
        if "meta" not in reason.lower():
            raise
        raise UsageError(
            f"the step cannot be recorded before it runs: {reason}. Expected a function that reads no value of a "
            "tensor (no .item(), no `if tensor:`) and makes no tensor whose size depends on one; without plan_ahead "
            "the first steps are recorded as they run"
        ) from error
