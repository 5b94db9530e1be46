"""Sees whether it is the same to run a marked region once or twice; only then it is followed."""

from collections.abc import Hashable
from functools import partial
from types import FunctionType, MethodType
from typing import Any
from weakref import ref

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from umadvise.training.recompute.tape import storage_key, storages_of, tensors_in, tensors_written


def identity_of(function: Any) -> Hashable:
    """What tells a region's function from others at its place, though it may be wrapped anew each step."""
    while isinstance(function, partial):
        function = function.func
    parts = [function, getattr(function, "__self__", None), *(getattr(function, "__defaults__", None) or ())]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            parts.append(cell.cell_contents)
        except ValueError:  # nothing has been assigned to it yet
            continue
    modules = tuple((ref(each), each.training) for each in parts if isinstance(each, torch.nn.Module))
    code = tuple(each.__code__ for each in parts if isinstance(each, FunctionType | MethodType))
    return type(function), modules, code


class SideEffects(TorchDispatchMode):
    """Finds out whether running a region twice would change anything but its results.

    Attributes:
        keeps_to_itself: whether nothing was written that was there before the region, and no random numbers drawn that
            its second run would draw anew.
    """

    def __init__(self, *, draws_twice: bool) -> None:
        """Sees nothing before it is entered; `draws_twice` where the second run has no random state of the first."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws_twice = draws_twice
        self._made: dict[int, StorageWeakRef] = {}  # the references keep addresses from being used again
        self.keeps_to_itself = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an op."""
        named = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):  # nothing says what it writes to
            self.keeps_to_itself = False
            return func(*args, **named)
        if any(storage_key(tensor) not in self._made for tensor in tensors_written(func, args, named)):
            self.keeps_to_itself = False
        if self._draws_twice and torch.Tag.nondeterministic_seeded in func.tags:
            self.keeps_to_itself = False
        made = func(*args, **named)
        given = {storage_key(tensor) for tensor in tensors_in((args, named))}
        self._made |= {key: each for key, each in storages_of(made).items() if key not in given}
        return made
