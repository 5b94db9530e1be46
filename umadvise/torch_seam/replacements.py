"""Replacing attributes of torch's classes and modules, and putting the old ones back."""

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any


class Replacements:
    """Attributes that were replaced, in order.

    An attribute that the owner only inherited is deleted again on `undo`, so that nothing of ours is left behind. A
    later patch by somebody else on top of ours is left alone.
    """

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Sets `owner.name` to `make(original)`; `original` is None where the owner has no such attribute."""
        replacement = make(getattr(owner, name, None))
        self._done.append((owner, name, vars(owner).get(name), replacement))
        setattr(owner, name, replacement)

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        """Sets `owner.name` to something that needs no original."""
        self.replace(owner, name, lambda _original: replacement)

    def around(
        self,
        owner: Any,
        name: str,
        function: Callable[..., Any],
        made: Callable[[Callable[..., Any], Any], Any] | None = None,
    ) -> None:
        """Sets `owner.name` to a function that calls another one (see `calling`), and that pickle finds there."""

        def make(original: Any) -> Any:
            replacement = (made or calling)(function, original)
            if isinstance(replacement, FunctionType):
                inside = isinstance(owner, type)
                replacement.__module__ = owner.__module__ if inside else owner.__name__
                replacement.__qualname__ = f"{owner.__qualname__}.{name}" if inside else name
            return replacement

        self.replace(owner, name, make)

    def undo(self) -> None:
        """Puts everything back, last first."""
        while self._done:
            owner, name, before, replacement = self._done.pop()
            if vars(owner).get(name) is not replacement:
                continue
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


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
