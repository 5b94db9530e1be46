"""Looking at each operator that something comes down to, before it runs."""

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

Arguments = tuple[list[Any], dict[str, Any]]
"""The arguments of one call: those without names, and those with."""


class Looking(TorchDispatchMode):
    """Shows every operator and its arguments to a function, then runs it.

    Args:
        look: the function, called with the operator's overload and the arguments.
    """

    def __init__(self, look: Callable[[Any, Arguments], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._look = look

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Shows it, then runs it."""
        self._look(func, (list(args), dict(kwargs or {})))
        return func(*args, **(kwargs or {}))


def value_of(arguments: Arguments, index: int, name: str) -> Any:
    """One argument of a call, by its place in the schema and its name; None where it is not given."""
    args, kwargs = arguments
    return args[index] if index < len(args) else kwargs.get(name)


def with_value(arguments: Arguments, index: int, name: str, value: Any) -> Arguments:
    """The arguments with another value for one of them."""
    args, kwargs = arguments
    if index < len(args):
        return [*args[:index], value, *args[index + 1 :]], kwargs
    return args, {**kwargs, name: value}
