"""What torch's compilers see of umadvise while they trace a user's code: nothing.

Dynamo follows every call, into the hooks of modules too, and compiles the frames of whatever Python runs after a graph
break. What ends in the native core cannot be traced, and shall not be: it is about the ops that run, not about those of
a trace.
"""

import functools
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from umadvise.torch_seam.runtime import Runtime

_left_alone = False
_rehearses = False
_KEY: Any = torch._C._dispatch_key_parse("TESTING_ONLY_GenericMode")
"""The interposer's (`_hooks/interposer.cpp`)."""


def unless_traced(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a hook of modules, optimizers or gradients invisible to torch's compilers, so that it breaks no graph.

    Nor does it see what runs under `rehearsing`.
    """

    def hooked(*arguments: Any) -> Any:
        traced = torch.compiler.is_compiling() or _rehearses
        return None if traced else hook(*arguments)

    return hooked


def unless_compiled(replacement: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is `original` to torch's compilers, and `replacement` to everybody else."""

    @functools.wraps(original)
    def chosen(*arguments: Any, **named: Any) -> Any:
        return (original if torch.compiler.is_compiling() else replacement)(*arguments, **named)

    return chosen


def is_rehearsed() -> bool:
    """Whether what runs now is no step of the training."""
    return _rehearses


@contextmanager
def rehearsing() -> Iterator[None]:
    """What runs until the end is no step of the training, and hooks of `unless_traced` leave it alone."""
    global _rehearses
    _rehearses = True
    try:
        yield
    finally:
        _rehearses = False


def install(runtime: Runtime) -> None:
    """Has Dynamo leave our functions alone (now, or when it is first used), and higher-order operators our key.

    torch dispatches those in Python, by the keys that hold for the thread: of ours they would want a kernel.
    """
    runtime.replaced.around(torch._ops, "key_extractor", lambda original, *of: original(*of).remove(_KEY))
    if "torch._dynamo" in sys.modules:  # as soon as there is an optimizer
        _leave_alone()
    else:
        runtime.replaced.around(torch, "compile", _compile)


def _compile(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    _leave_alone()
    return original(*arguments, **named)


def _leave_alone() -> None:
    """All but this module, whose hooks it must follow to see that there is nothing in them."""
    global _left_alone
    if _left_alone:
        return
    _left_alone = True
    from torch._dynamo import trace_rules

    here = Path(__file__)
    for folder, package, but in (
        (here.parents[1], "umadvise", here.parent.name),
        (here.parent, f"umadvise.{here.parent.name}", here.stem),
    ):
        for each in pkgutil.iter_modules([str(folder)]):
            if each.name != but:
                trace_rules.add(f"{package}.{each.name}")
