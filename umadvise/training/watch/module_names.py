"""What modules and their tensors are called, and in which module the ops run."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook

from umadvise import _native
from umadvise.records.enums import Role
from umadvise.torch_seam.runtime import address_of, on_device
from umadvise.torch_seam.tensors import tensors_of_state
from umadvise.torch_seam.traced import unless_traced

_COMPILED = "_orig_mod"
"""The attribute in which what `torch.compile` makes of a module holds that module."""
_HOOKS_WARNING = r"Using `torch\.compile\(module\)` when there are global hooks on modules"
"""Such hooks also run for what `torch.compile` makes of a module. Ours are meant to."""


def _uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    if _COMPILED not in module._modules:
        return module
    return module._modules[_COMPILED] or module


def _own_name(name: str) -> str:
    """A name as it is without `torch.compile`."""
    return name.removeprefix(_COMPILED).removeprefix(".").replace(f".{_COMPILED}", "")


def _label(tensor: torch.Tensor, role: Role, name: str) -> None:
    if tensor.layout is torch.strided and on_device(tensor):
        _native.label(address_of(tensor), role, name)


class ModuleNames:
    """Learns the names of modules, labels tensors with them, and tells the core which module runs.

    Attributes:
        outermost: what is told of a module that is called from outside of modules, before it runs; None: nobody is.
    """

    def __init__(self) -> None:
        """Prepares to learn; hooks on modules and optimizers come with `attach`."""
        self._handles: list[Any] = []
        # Weak: a script may train one model after another.
        self._modules: WeakKeyDictionary[torch.nn.Module, int] = WeakKeyDictionary()  # their interned names
        # What stands before the names of their own parameters. Nothing refers to those, not even weakly: then
        # `torch.utils.swap_tensors` would refuse them.
        self._prefixes: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()
        self._followed: dict[int, Any] = {}  # handles of hooks on parameters, by the parameters' identities
        self._entered: list[int] = []  # the modules outside of the one that runs, by interned names
        self._uninitialized: list[tuple[torch.Tensor, str]] = []  # parameters, with their names
        self._state_sizes: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        self.outermost: Callable[[torch.nn.Module], None] | None = None

    def attach(self) -> None:
        """Follows modules and optimizers from now on, also those that nobody has named."""
        warnings.filterwarnings("ignore", _HOOKS_WARNING, UserWarning)
        self._handles += [
            torch_module.register_module_forward_pre_hook(unless_traced(self._enter)),
            torch_module.register_module_forward_hook(unless_traced(self._leave), always_call=True),
            register_optimizer_step_post_hook(unless_traced(self._stepped)),
        ]

    def detach(self) -> None:
        """Stops following modules and optimizers."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        _native.set_module(0)

    def learn(self, model: torch.nn.Module, prefix: str = "") -> None:
        """Learns the names in a model, and labels its tensors and gradients with them.

        Args:
            model: a module with all that is in it.
            prefix: text before each name.
        """
        for name, module in model.named_modules():
            own_name = prefix + _own_name(name)
            self._modules.setdefault(module, _native.intern(own_name or type(_uncompiled(model)).__name__))
            self._prefixes.setdefault(module, f"{own_name}." if own_name else "")
        for name, buffer in model.named_buffers():
            _label(buffer, Role.PARAMETER, prefix + _own_name(name))
        for name, parameter in model.named_parameters():
            self._name(parameter, prefix + _own_name(name))

    def _name(self, parameter: torch.Tensor, name: str) -> None:
        """Labels a parameter, its gradient now, and each gradient that will follow."""
        if is_lazy(parameter):
            self._uninitialized.append((parameter, name))
            return
        _label(parameter, Role.PARAMETER, name)
        if self._is_followed(parameter):
            return
        self._gradient_arrived(name, parameter)
        if parameter.requires_grad and parameter.is_leaf:
            hook = unless_traced(partial(self._gradient_arrived, name))
            self._followed[id(parameter)] = parameter.register_post_accumulate_grad_hook(hook)
            self._handles.append(self._followed[id(parameter)])

    def _is_followed(self, parameter: torch.Tensor) -> bool:
        """Another tensor may have the identity of one that is gone, but not its hooks."""
        handle = self._followed.get(id(parameter))
        hooks = None if handle is None else handle.hooks_dict_ref()
        return hooks is not None and hooks is parameter._post_accumulate_grad_hooks

    def _gradient_arrived(self, name: str, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            _label(parameter.grad, Role.GRADIENT, f"{name}.grad")

    def label_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Labels the optimizer's state after the parameters that it belongs to."""
        names: dict[int, str] = {}
        for reference in self._prefixes.keyrefs():  # a list: other threads may call new modules meanwhile
            module = reference()
            if module is None:
                continue
            for name, own in module._parameters.items():
                names.setdefault(id(own), self._prefixes[module] + _own_name(name))
        for name, parameter, tensor in tensors_of_state(optimizer):
            _label(tensor, Role.OPTIMIZER_STATE, f"{names.get(id(parameter), 'parameter')}.{name}")

    # ---- hooks ----------------------------------------------------------------------------------------------------

    def _enter(self, module: torch.nn.Module, *_: Any) -> None:
        module = _uncompiled(module)
        if self.outermost is not None and not self._entered:
            self.outermost(module)
        name = self._modules.get(module)
        if name is None and not self._entered:  # a root that nobody told us of
            self.learn(module)
            name = self._modules[module]
        if name is None:
            name = _native.intern(type(module).__name__)
        self._entered.append(_native.set_module(name))

    def _leave(self, *_: Any) -> None:
        if self._uninitialized:  # a lazy module's first forward makes its parameters
            waiting, self._uninitialized = self._uninitialized, []
            for parameter, name in waiting:
                self._name(parameter, name)
        if self._entered:
            _native.set_module(self._entered.pop())

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        size = sum(len(entries) for entries in optimizer.state.values())
        if self._state_sizes.get(optimizer) != size:  # new state: after the first step, or for new parameters
            self._state_sizes[optimizer] = size
            self.label_state(optimizer)
