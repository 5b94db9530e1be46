"""The tensors of models and optimizers: onto the emulated device, and back as ordinary ones."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import torch

from umadvise import _native, runtime
from umadvise._abi import Role
from umadvise.errors import StateError
from umadvise.observer import strided_parts, tensors_of_state
from umadvise.runtime import on_device


class Adoption:
    """What a session takes in and gives back."""

    def __init__(self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Nothing is moved yet."""
        self._models = models
        self._optimizers = optimizers

    def take_in(self, state: runtime.Runtime) -> None:
        """Moves everything onto the emulated device.

        Raises:
            StateError: on CUDA, where nothing can be moved, something was allocated before `patch()`.
        """
        if state.emulated:
            for storage, role in self._storages():
                state.take_in(storage, role)
            return
        for model in self._models:
            foreign = [name for name, tensor in model.named_parameters() if not on_device(tensor)]
            if foreign:
                raise StateError(
                    f"{foreign[0]!r} was not allocated by umadvise: call umadvise.patch() before the model is "
                    'moved to the GPU with .to("cuda")'
                )

    def give_back(self) -> None:
        """Moves everything back, but what an address of is known outside torch: that must stay good."""
        with ExitStack() as stack:
            for storage in {storage._cdata: storage for storage, _ in self._storages()}.values():
                placed = _native.allocation_at(runtime.storage_address(storage))
                if placed is not None and placed.exports == 0:
                    stack.callback(_native.give_back_storage, storage._cdata)

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
                if part.device.type == "cpu":
                    yield part.untyped_storage(), role

    def _parameters(self) -> list[torch.Tensor]:
        parameters: list[torch.Tensor] = [each for model in self._models for each in model.parameters()]
        for optimizer in self._optimizers:
            parameters += (each for group in optimizer.param_groups for each in group["params"])
        return parameters

    def persistent_sizes(self) -> list[int]:
        """Bytes of each tensor that is there between any two steps of a training: a guess, before the first one.

        Parameters and buffers; with an optimizer a gradient for each parameter that has one, and the optimizer's state.
        An optimizer with `betas` (Adam and its kin) keeps two averages for each parameter, one with a momentum one.
        """
        sizes = list({storage._cdata: storage.nbytes() for storage, _ in self._storages()}.values())
        trained: dict[int, tuple[torch.Tensor, int]] = {}
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                states = 0 if optimizer.state else _states(optimizer, group)
                trained.update({id(each): (each, states) for each in group["params"] if each.requires_grad})
        for parameter, states in trained.values():
            sizes += [parameter.nbytes] * (states + (parameter.grad is None))
        return sizes


def _states(optimizer: torch.optim.Optimizer, group: dict[str, object]) -> int:
    """Tensors of a parameter's size that an optimizer keeps for each parameter of a group."""
    if "betas" in optimizer.defaults:
        return 2
    return 1 if group.get("momentum") or "alpha" in optimizer.defaults else 0
