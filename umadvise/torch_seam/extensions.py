"""Functions of C++ extensions as ops: one call of one that is given tensors is one op to the guard.

A function that pybind11 makes callable reaches memory by `data_ptr<T>()`, without torch's dispatcher, and a GPU's
kernel that reads or writes where a tensor lies no more raises nothing. So what such a function is given is brought in
and stays, with its address, until the call has returned and what it started in the current stream is done; what it
makes is its own; and as nobody says what it writes, all that it is given counts as written.

They are known by what pybind11 writes into their documentation: the types of their arguments. What is called by another
way than through its module or its class (a name that was imported before) is replaced where modules keep it.
"""

import functools
import gc
import re
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ExtensionFileLoader
from types import BuiltinFunctionType, ModuleType
from typing import Any

import torch

from umadvise import _native
from umadvise.torch_seam.regions import refused
from umadvise.torch_seam.replacements import Replacements

_TAKES_TENSORS = re.compile(r"\(.*\b(torch\.Tensor|at::Tensor)\b")
"""How pybind11 signs a function that is given tensors, or gives some back."""
_METHOD = type(vars(torch._C.Graph)["nodes"])
"""What pybind11 makes of a method."""
_TORCHS_OWN = {"torch", "functorch"}
"""Packages whose functions go through torch's dispatcher, but for these:"""
_AHEAD_OF_TIME = {"run", "boxed_run", "load_constants", "update_constant_buffer"}
"""Methods of what AOTInductor has compiled (torch/csrc/inductor/aoti_package/pybind.cpp, aoti_runner/pybind.cpp)."""


def install(replaced: Replacements) -> None:
    """Has the functions of extensions run as ops from now on, of those that are loaded and of those that will be."""
    # `torch.utils.cpp_extension.load` puts none into sys.modules.
    loaded = [each for each in gc.get_objects() if type(each) is ModuleType and _is_extension(each)]
    originals = {id(each): new for module in loaded for each, new in _guard(replaced, module)}
    if originals:
        _replace_names(replaced, originals)
    for each in list(vars(getattr(torch._C, "_aoti", object)).values()):
        if isinstance(each, type):
            for name in _AHEAD_OF_TIME & vars(each).keys():
                replaced.put(each, name, as_op(getattr(each, name), f"{each.__name__}::{name}"))

    def execute(original: Callable[..., None], loader: Any, module: ModuleType) -> None:
        original(loader, module)
        if _is_extension(module):
            list(_guard(replaced, module))

    replaced.around(ExtensionFileLoader, "exec_module", execute)


def _is_extension(module: object) -> bool:
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    return isinstance(loader, ExtensionFileLoader) and str(module.__name__).partition(".")[0] not in _TORCHS_OWN


def _guard(replaced: Replacements, owner: Any) -> Iterator[tuple[Any, Any]]:
    """The functions of a module or a class that are given tensors, each with what stands in its place now."""
    for name, value in list(vars(owner).items()):
        static = isinstance(value, staticmethod)
        function = value.__func__ if static else value
        if type(function) in (BuiltinFunctionType, _METHOD):
            if _TAKES_TENSORS.search(function.__doc__ or ""):
                guarded = as_op(function, f"{owner.__name__}::{name}")
                replaced.put(owner, name, staticmethod(guarded) if static else guarded)
                yield function, guarded
        elif isinstance(value, type) and value.__module__ == owner.__name__:
            yield from _guard(replaced, value)
        elif isinstance(value, ModuleType) and value.__name__ == f"{owner.__name__}.{name}" and value.__spec__ is None:
            yield from _guard(replaced, value)


def _replace_names(replaced: Replacements, guarded: dict[int, Any]) -> None:
    """Names that modules have for the originals."""
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if type(value) is BuiltinFunctionType and id(value) in guarded:
                replaced.put(module, name, guarded[id(value)])


def as_op(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function that calls another one as one op.

    Args:
        function: what is called; it may use the memory of the tensors that it is given by address.
        name: what recordings and reports call it.
    """
    begin, end = _native.region_functions(torch.Tensor, torch.nn.Parameter)
    handle = _native.region(name, (), writes="all")

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        given = list(_tensors_in((arguments, named)))
        begun = begin(handle, given) if given else 0
        if begun < 0:
            raise refused(-begun)
        if begun == 0:
            return function(*arguments, **named)
        made: list[torch.Tensor] = []
        try:
            result = function(*arguments, **named)
            made.extend(_tensors_in(result))
            return result
        finally:
            end(id(made))

    call._torchdynamo_disable = True  # type: ignore[attr-defined]  # an extension's function breaks a graph by itself
    return call


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors_in(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors_in(each)
