"""The tensors of models and optimizers: onto the device, and back as ordinary ones."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from umadvise import _native
from umadvise.errors import NativeError, StateError, UsageError
from umadvise.records.enums import Role
from umadvise.records.units import format_bytes
from umadvise.torch_seam import runtime, torch_api
from umadvise.torch_seam.placement import copy_of_bytes, to_device
from umadvise.torch_seam.runtime import HOST, on_device, routed
from umadvise.torch_seam.tensors import is_marked_pinned, local_part, strided_parts, tensors_of_state

log = logging.getLogger("umadvise")
Batch = TypeVar("Batch")

_NO_HOST_MEMORY = "DefaultCPUAllocator: "
"""What torch's allocator for ordinary memory calls itself when it fails."""


class Adoption:
    """Models and optimizers whose tensors a session moves onto the device, and back.

    On the emulated device memory moves under the tensors, which stay the CPU's. On CUDA tensors move as `Module.to`
    moves them: parameters stay the same objects and get other data.
    """

    def __init__(self, models: Sequence[torch.nn.Module], optimizers: Collection[torch.optim.Optimizer]) -> None:
        """Nothing is moved yet."""
        self._models = models
        self._optimizers = optimizers
        self._moved_models: list[torch.nn.Module] = []
        self._moved = False  # anything, on CUDA
        self._staying_bytes = 0

    def check(self) -> None:
        """Refuses models and optimizers with tensors that have no memory of their own.

        Raises:
            UsageError: a parameter, buffer or tensor of an optimizer's state has no memory of its own.
        """
        for model in self._models:
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                check_kind(tensor, repr(name))
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    check_kind(parameter, "a parameter of the optimizer")
            for name, _, tensor in tensors_of_state(optimizer):
                check_kind(tensor, f"the optimizer's {name!r}")

    def take_in(self, state: runtime.Runtime) -> None:
        """Moves everything onto the device.

        Raises:
            StateError: something is on a GPU already, in memory of torch's own.
        """
        if not state.emulated:
            self._check_owner()
            self._move_in()
            return
        for storage, role in self._storages():
            if storage.device.type == "cpu" and not is_marked_pinned(storage):
                state.take_in(storage, role)

    def _check_owner(self) -> None:
        for model in self._models:
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                if tensor.is_cuda and _is_elsewhere(tensor):
                    raise StateError(
                        f"{name!r} was not allocated by umadvise: call umadvise.patch() before the model is moved to "
                        "the GPU, or leave it on the CPU for the session to move"
                    )

    def _move_in(self) -> None:
        for model in self._models:
            if any(_is_elsewhere(tensor) for tensor in (*model.parameters(), *model.buffers())):
                self._moved_models.append(model)  # before the first tensor moves: a later one may find no room
                self._moved = True
                torch_api.move_module_in(model)
        for optimizer in self._optimizers:
            _each_tensor(optimizer, self._moved_in, _may_move_in)

    def _moved_in(self, tensor: torch.Tensor) -> torch.Tensor:
        self._moved = True
        return torch_api.moved_in(tensor, Role.PARAMETER)

    def give_back(self, state: runtime.Runtime) -> None:
        """Moves tensors back; on the emulated device not those whose address is known outside of torch."""
        if not state.emulated:
            with routed(HOST):
                for model in self._moved_models:
                    model._apply(_copy_out)
                for optimizer in self._optimizers if self._moved else ():  # with the state that it has made meanwhile
                    _each_tensor(optimizer, _copy_out, on_device)
            return
        with ExitStack() as stack:
            for storage in {storage._cdata: storage for storage, _ in self._storages()}.values():
                placed = _native.allocation_at(runtime.storage_address(storage))
                if placed is not None and placed.exports == 0:
                    stack.callback(self._give_back, storage)
        if self._staying_bytes:
            log.warning(
                "%s of the model and its optimizer stay on the device after the session, and valid: the host has no "
                "memory to move them to. Free some before the session ends",
                format_bytes(self._staying_bytes),
            )

    def _give_back(self, storage: torch.UntypedStorage) -> None:
        try:
            _native.give_back_storage(storage._cdata)
        except NativeError as error:
            if _NO_HOST_MEMORY not in error.message:
                raise
            self._staying_bytes += storage.nbytes()

    def _storages(self) -> Iterator[tuple[torch.UntypedStorage, Role]]:
        """Every storage of the models and optimizers, with the role of the arena that it belongs in."""
        tensors: list[tuple[torch.Tensor, Role]] = []
        for optimizer in self._optimizers:
            tensors += ((tensor, Role.PARAMETER) for _, _, tensor in tensors_of_state(optimizer))
        for tensor in (*self._parameters(), *(buffer for model in self._models for buffer in model.buffers())):
            tensors.append((tensor, Role.PARAMETER))
            if tensor.grad is not None:
                tensors.append((tensor.grad, Role.INTERMEDIATE))
        for tensor, role in tensors:
            for part in strided_parts(tensor):
                if part.device.type in ("cpu", "cuda"):
                    yield part.untyped_storage(), role

    def _parameters(self) -> list[torch.Tensor]:
        parameters: list[torch.Tensor] = [each for model in self._models for each in model.parameters()]
        for optimizer in self._optimizers:
            parameters += (each for group in optimizer.param_groups for each in group["params"])
        return parameters


def as_list(value: Any) -> list[Any]:
    """One thing or an iterable of them, as a list; None is none."""
    if value is None:
        return []
    return list(value) if isinstance(value, Iterable) and not isinstance(value, torch.nn.Module) else [value]


def check_kind(tensor: torch.Tensor, what: str) -> None:
    """Refuses a tensor that has no memory of its own; of a DTensor, this process's part is looked at.

    Args:
        tensor: tensor to check, of any class.
        what: what the error calls it.

    Raises:
        UsageError: it is of a class that is made of other tensors.
    """
    tensor = local_part(tensor)
    if is_traceable_wrapper_subclass(tensor) or any(map(_is_hollow, strided_parts(tensor))):
        raise UsageError(
            f"{what} is a {type(tensor).__name__}, a tensor that is made of others and has no memory of its own, which "
            "a session cannot keep a budget for. Give the session a model of ordinary tensors (before it is quantized, "
            "for one), and of a batch the tensors that it is made of"
        )


def batch_moved_in(state: runtime.Runtime, batch: Batch, *, keep_meta: bool) -> Batch:
    """A batch's tensors on the device, with the role of inputs; containers keep their form.

    Args:
        state: patched state of the process.
        batch: tensors in any containers that torch's pytrees know.
        keep_meta: whether tensors of the meta device stay there, as in a rehearsal.

    Raises:
        UsageError: one of them has no memory of its own, as one that is made of others.
    """

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or (keep_meta and leaf.is_meta):
            return leaf
        check_kind(leaf, "a tensor of the batch")
        return to_device(leaf, Role.INPUT, None) if state.emulated else torch_api.moved_in(leaf, Role.INPUT)

    moved: Batch = pytree.tree_map(move, batch)
    return moved


def _is_hollow(tensor: torch.Tensor) -> bool:
    storage = tensor.untyped_storage()
    return storage.device.type != "meta" and storage.nbytes() > 0 and runtime.storage_address(storage) == 0


def _is_elsewhere(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 0 and not on_device(tensor)


def _copy_out(tensor: torch.Tensor) -> torch.Tensor:
    try:
        return torch._C.TensorBase.to(tensor, "cpu", copy=True)
    except torch.OutOfMemoryError:  # it was swapped out, and there is no room for the op
        return copy_of_bytes(tensor)


def _may_move_in(tensor: torch.Tensor) -> bool:
    """Not scalars, such as counts of steps: optimizers keep those on the CPU, and look at them there (torch/optim)."""
    return tensor.dim() > 0 and _is_elsewhere(tensor)


def _each_tensor(
    optimizer: torch.optim.Optimizer,
    move: Callable[[torch.Tensor], torch.Tensor],
    wanted: Callable[[torch.Tensor], bool],
) -> None:
    """Replaces an optimizer's tensors that are wanted: its parameters get other data, its state other tensors."""

    def moved(value: Any) -> Any:
        return move(value) if isinstance(value, torch.Tensor) and wanted(value) else value

    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.data = moved(parameter.data)
                if parameter.grad is not None:
                    parameter.grad = moved(parameter.grad)
        for entries in optimizer.state.values():
            for name in entries:
                entries[name] = pytree.tree_map(moved, entries[name])
