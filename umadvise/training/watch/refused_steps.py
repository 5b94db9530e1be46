"""Steps that the budget cannot hold: their updates do not run, and tensors and generators get back what they had.

On the emulated device such a step runs to its end, so that the error can name a budget that holds all of it
(csrc/engine/refusal.h). It must not train: the error is raised before an update begins, and what the step wrote since
the refused op is written back (csrc/engine/step_undo.h). Where the step is marked, so are buffers and the default
generators of random numbers, as the step found them, and its gradients go. On a GPU the refused op raises at once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from umadvise import _native
from umadvise._native.abi import Status
from umadvise.errors import NativeError
from umadvise.torch_seam.out_of_memory import out_of_memory
from umadvise.torch_seam.replacements import Replacements
from umadvise.torch_seam.runtime import Runtime, address_of, on_device, storage_address
from umadvise.torch_seam.tensors import local_part, strided_parts

UNMARKED = (
    ". Buffers that the step wrote before, and generators of random numbers, have moved on: "
    "steps that are marked with um.step() give both back"
)
"""The end of the error of a refused step that the script has not marked."""
_AT_ONCE = 4
"""Tensors of a parameter's size that one op of an update uses: of Adam the parameter, its gradient and two states."""


class RefusedSteps:
    """Ends refused steps before they train, and undoes what they did.

    Attributes:
        edge: ends an unmarked step that was refused and begins the next; None where steps are marked.
    """

    def __init__(self, runtime: Runtime) -> None:
        """Nothing is checked before `attach`.

        Args:
            runtime: what is patched.
        """
        self._runtime = runtime
        self._replaced = Replacements()
        self.edge: Callable[[], None] | None = None
        self._models: Sequence[torch.nn.Module] = ()
        self._optimizers: Sequence[torch.optim.Optimizer] = ()
        self._buffers: list[dict[str, torch.Tensor | None]] = []  # of each module that has some
        self._watched: list[int] = []  # their identities when they were watched last
        self._generators: list[tuple[torch.Generator, torch.Generator]] = []  # each with its state before the step

    def attach(self) -> None:
        """Checks the calls of gradient scalers from now on."""
        for name in ("unscale_", "step", "update"):
            self._replaced.around(torch.amp.GradScaler, name, self._scaler_call)

    def detach(self) -> None:
        """Checks nothing any more."""
        self._replaced.undo()

    def _scaler_call(self, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self.before_update(arguments[1] if len(arguments) > 1 else named.get("optimizer"))
        return original(*arguments, **named)

    def before_update(self, optimizer: Any = None) -> None:
        """Lets an update begin, unless the running step was refused.

        Args:
            optimizer: object with the `param_groups` that are updated; None where only a scale is.

        Raises:
            torch.OutOfMemoryError: an op of the step found no room on the device.
        """
        device = self._runtime.device
        if self._runtime.forked or not self._runtime.emulated or not _native.refusal_pending(device):
            return
        parameters = _parameters_of((), (optimizer,))
        try:
            _native.end_refusals(device, max(map(_size_bytes, parameters), default=0), _tensors_at_once(optimizer))
        except NativeError as error:
            if error.code != Status.OUT_OF_DEVICE_MEMORY:
                raise
            refusal = error.message
        else:
            return
        self.undo((optimizer,))
        if self.edge is not None:
            self.edge()
            refusal += UNMARKED
        raise out_of_memory(refusal)

    def undo(self, optimizers: Iterable[Any], step: int | None = None) -> None:
        """Writes back what the core has kept of the refused step, and drops gradients that are younger.

        Args:
            optimizers: objects whose `param_groups` have the gradients, beside those that are followed.
            step: number of a marked step, none of whose gradients stay; None: only those go that were made after the
                refusal.
        """
        refused_at = _native.undo_step(self._runtime.device)
        if step is None and refused_at == 0:
            return
        for parameter in _parameters_of(self._models, (*self._optimizers, *optimizers)):
            if parameter.grad is not None and _is_younger(parameter.grad, step, refused_at):
                parameter.grad = None

    # ---- marked steps ---------------------------------------------------------------------------------------------

    def follow(self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Sets what a session trains.

        Args:
            models: the modules whose buffers and gradients a refused step gives back.
            optimizers: optimizers of parameters whose gradients it gives back.
        """
        self._models, self._optimizers = models, optimizers
        self._buffers = [each._buffers for model in models for each in model.modules() if each._buffers]
        self._watched, self._generators = [], []

    def begin_marked(self) -> None:
        """Remembers the generators, and has the contents of buffers kept."""
        self._generators = [(each, each.clone_state()) for each in _generators()]
        present = [id(each) for some in self._buffers for each in some.values()]
        if present == self._watched:
            return
        for tensor in (each for some in self._buffers for each in some.values() if each is not None):
            for part in strided_parts(tensor):
                if on_device(part):
                    _native.watch_in_steps(address_of(part))
        self._watched = present

    def end_marked(self, step: int, *, refused: bool) -> bool:
        """Undoes a marked step that has just ended, if it was refused: its buffers, gradients and random numbers.

        Args:
            step: number of the step.
            refused: whether memory could not hold it.

        Returns:
            Whether it was refused.
        """
        if refused:
            self.undo((), step)
        for generator, before in self._generators if refused else ():
            generator.set_state(before.get_state())
        return refused


def _parameters_of(models: Iterable[torch.nn.Module], optimizers: Iterable[Any]) -> list[torch.Tensor]:
    """The parameters of models and optimizers, each once; things without `param_groups` have none."""
    found = [each for model in models for each in model.parameters()]
    for optimizer in optimizers:
        found += (each for group in getattr(optimizer, "param_groups", ()) for each in group["params"])
    return list({id(each): each for each in found}.values())


def _generators() -> Iterator[torch.Generator]:
    yield torch.default_generator
    if torch.cuda.is_initialized():
        yield from torch.cuda.default_generators


def _size_bytes(parameter: torch.Tensor) -> int:
    part = local_part(parameter)
    return part.numel() * part.itemsize


def _tensors_at_once(optimizer: Any) -> int:
    groups = getattr(optimizer, "param_groups", ())
    return _AT_ONCE + any(group.get("amsgrad", False) for group in groups)


def _is_younger(gradient: torch.Tensor, step: int | None, refused_at: int) -> bool:
    for part in strided_parts(gradient):
        found = _native.allocation_at(storage_address(part.untyped_storage()))
        if found is not None and (found.birth_step == step if step is not None else found.serial > refused_at):
            return True
    return False
