"""Closures that an optimizer's step calls: what they run, forward and backward, is not the optimizer's."""

from collections.abc import Callable
from typing import Any

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def closure_between(
    arguments: tuple[Any, ...], named: dict[str, Any], leave: Callable[[], object], enter: Callable[[], object]
) -> Arguments | None:
    """The arguments of an optimizer's step with a closure that runs outside of it; None where there is no closure.

    Args:
        arguments: the optimizer, and what its step was given by position, as torch's hooks before a step get it.
        named: what the step was given by name.
        leave: function that is called before the closure.
        enter: function that is called after it, whatever it raises.
    """
    closure = arguments[1] if len(arguments) > 1 else named.get("closure")
    if not callable(closure):
        return None

    def outside() -> Any:
        leave()
        try:
            return closure()
        finally:
            enter()

    if len(arguments) > 1:
        return (arguments[0], outside, *arguments[2:]), named
    return arguments, named | {"closure": outside}
