"""Replacing attributes of torch's classes and modules, and putting the old ones back."""

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import WeakSet

import torch
from torch._C import _is_torch_function_enabled as _torch_function_is_enabled
from torch._C import _is_torch_function_mode_enabled
from torch.overrides import handle_torch_function

_ABSENT = object()
"""Stands for an attribute that the owner does not have itself; None may be the value of one."""


class Replacements:
    """Attributes that were replaced, in order.

    An attribute that the owner only inherited is deleted again on `undo`, so that nothing of ours is left behind. A
    later patch by somebody else on top of ours is left alone.
    """

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []
        self._known_before: WeakSet[type] | None = None

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Sets `owner.name` to `make(original)`; `original` is None where the owner has no such attribute."""
        replacement = make(getattr(owner, name, None))
        self._done.append((owner, name, vars(owner).get(name, _ABSENT), replacement))
        setattr(owner, name, replacement)

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        """Sets `owner.name` to something that needs no original."""
        self.replace(owner, name, lambda _original: replacement)

    def remove(self, owner: Any, name: str) -> None:
        """Takes an attribute of the owner's own away."""
        self._done.append((owner, name, vars(owner)[name], None))
        delattr(owner, name)

    def around(self, owner: Any, name: str, function: Callable[..., Any], *, told: bool = False) -> None:
        """Sets `owner.name` to a function that calls another one (see `calling`), and that pickle finds there.

        Args:
            owner: class or module of torch's.
            name: attribute of it.
            function: what is called, with the original first.
            told: whether classes and modes that override torch's functions are told of it, as torch does with its own.
        """
        if told and self._known_before is None:
            self._known_before = WeakSet(_classes_below(torch.Tensor))

        def make(original: Any) -> Any:
            replacement = self._telling(function, original) if told else calling(function, original)
            if isinstance(replacement, FunctionType):
                inside = isinstance(owner, type)
                replacement.__module__ = owner.__module__ if inside else owner.__name__
                replacement.__qualname__ = f"{owner.__qualname__}.{name}" if inside else name
            return replacement

        self.replace(owner, name, make)

    def _telling(self, function: Callable[..., Any], original: Callable[..., Any]) -> Any:
        """Modes, and classes that came after it, are told of what stands in torch now: they have found that there."""
        known_before = self._known_before or WeakSet()

        @functools.wraps(original)
        def replacement(*arguments: Any, **named: Any) -> Any:
            values = (*arguments, *named.values())
            classes = {type(each) for each in values if overrides(each)} if _torch_function_is_enabled() else set()
            if _is_torch_function_mode_enabled() or not classes <= known_before:
                try:
                    return handle_torch_function(replacement, values, *arguments, **named)
                except TypeError as error:
                    if not str(error).startswith("no implementation found"):
                        raise
            return function(original, *arguments, **named)

        return replacement

    def undo(self) -> None:
        """Puts everything back, last first."""
        while self._done:
            owner, name, before, replacement = self._done.pop()
            if vars(owner).get(name) is not replacement:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def _classes_below(kind: type) -> list[type]:
    """Its subclasses, and theirs."""
    below: list[type] = type.__subclasses__(kind)
    return [*below, *(found for each in below for found in _classes_below(each))]


def overrides(value: Any) -> bool:
    """Whether the value's class has its own idea of torch's functions."""
    own = getattr(type(value), "__torch_function__", None)
    return own is not None and type(value) is not torch.Tensor and own is not torch._C._disabled_torch_function_impl


def calling(function: Callable[..., Any], original: Any) -> Any:
    """What takes the place of a function, a method or a property of torch.

    Args:
        function: what it calls, with the original first and then the arguments of the call.
        original: what stood there.
    """

    @functools.wraps(original)
    def replacement(*arguments: Any, **named: Any) -> Any:
        return function(original, *arguments, **named)

    return replacement if callable(original) or original is None else property(replacement)


def refusing(error: type[Exception], *words: str) -> Callable[..., Any]:
    """A function that raises an error whatever it is called with.

    Args:
        error: class of the error.
        words: arguments that the error is made with.
    """

    def refuse(*_arguments: Any, **_named: Any) -> Any:
        raise error(*words)

    return refuse
