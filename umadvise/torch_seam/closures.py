"""Closures that an optimizer's step calls: what they run, forward and backward, is not the optimizer's."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def closure_between(
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    leave: Callable[[], object],
    enter: Callable[[], object],
    check: Callable[[], object] | None = None,
) -> Arguments | None:
    """The arguments of an optimizer's step with a closure that runs outside of it; None where there is no closure.

    Args:
        arguments: the optimizer, and what its step was given by position, as torch's hooks before a step get it.
        named: what the step was given by name.
        leave: function that is called before the closure.
        enter: function that is called after it, whatever it raises.
        check: function that is called then, unless the closure raised; it may raise, as the update has not begun.
    """
    by_position = len(arguments) > 1 and _takes_closure_first(type(arguments[0]))  # type: ignore[arg-type]
    closure = arguments[1] if by_position else named.get("closure")
    if not callable(closure):
        return None

    @functools.wraps(closure, updated=())
    def outside(*given: Any, **given_by_name: Any) -> Any:
        leave()
        try:
            result = closure(*given, **given_by_name)
        finally:
            enter()
        if check is not None:
            check()
        return result

    if by_position:
        return (arguments[0], outside, *arguments[2:]), named
    return arguments, named | {"closure": outside}


@functools.cache
def _takes_closure_first(optimizer: Any) -> bool:
    """Whether the first argument of its step is a closure, and not a model or a loss, as other people's have it."""
    return list(inspect.signature(optimizer.step).parameters)[1:2] == ["closure"]
