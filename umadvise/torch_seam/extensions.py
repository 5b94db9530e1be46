"""Functions of C++ extensions: what one is given stays where it is while it runs, and counts as written.

A function that pybind11 makes callable reaches memory by `data_ptr<T>()`, without torch's dispatcher, and a GPU's
kernel that reads or writes where a tensor lies no more raises nothing. So what such a function is given is brought in,
and stays until the call has returned and what it started in the current stream is done; nobody says what it writes, so
all of it counts as written. Ops of torch's that run inside are ops of their own.

Such functions are known by what pybind11 writes into their documentation: the types of their arguments. What takes a
function's place is a builtin as that is. Names that modules have for it are replaced too.
"""

import gc
import importlib
import re
import sys
from collections import UserList, deque
from collections.abc import Callable, Iterator
from importlib.machinery import ExtensionFileLoader
from types import BuiltinFunctionType, GeneratorType, ModuleType
from typing import Any

import torch

from umadvise import _native
from umadvise.torch_seam.replacements import Replacements

_TAKES_TENSORS = re.compile(r"\(.*\b(torch\.Tensor|at::Tensor)\b")
"""How pybind11 signs a function that is given tensors, or gives some back."""
_METHOD: Any = type(vars(torch._C.Graph)["nodes"])
"""What pybind11 makes of a method."""
_TORCHS_OWN = {"torch", "functorch"}
"""Packages whose functions go through torch's dispatcher, but for these:"""
_AHEAD_OF_TIME = {"run", "boxed_run", "load_constants", "update_constant_buffer"}
"""Methods of what AOTInductor has compiled (torch/csrc/inductor/aoti_package/pybind.cpp, aoti_runner/pybind.cpp)."""
_PLAIN = {bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
_TAKES_LISTS = re.compile(r"\b(Sequence|List|list|Iterable)\[(torch\.Tensor|at::Tensor)\b")
_ONCE = (GeneratorType, map, filter, zip)
"""What can be gone through only once, and pybind11 takes for a list: it is passed on as a tuple."""
_ITERABLES: tuple[type, ...] = (
    list,
    tuple,
    set,
    frozenset,
    deque,
    UserList,
    type({}.keys()),
    type({}.values()),
    torch.nn.ParameterList,
)
"""What pybind11 takes for a list."""
_DEEPEST = 4


def install(replaced: Replacements) -> None:
    """Guards the functions of extensions from now on, of those that are loaded and of those that will be."""
    # `torch.utils.cpp_extension.load` puts none into sys.modules.
    loaded = [each for each in gc.get_objects() if type(each) is ModuleType and _is_extension(each)]
    originals = {id(each): new for module in loaded for each, new in _guard(replaced, module, module.__name__)}
    if originals:
        _replace_names(replaced, originals)
    for each in list(vars(getattr(torch._C, "_aoti", object)).values()):
        if isinstance(each, type):
            for name in _AHEAD_OF_TIME & vars(each).keys():
                replaced.put(each, name, _METHOD(guarded(getattr(each, name), f"{each.__name__}::{name}")))

    def execute(original: Callable[..., None], loader: Any, module: ModuleType) -> None:
        original(loader, module)
        if _is_extension(module):
            list(_guard(replaced, module, module.__name__))

    replaced.around(ExtensionFileLoader, "exec_module", execute)


def _is_extension(module: Any) -> bool:
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    return isinstance(loader, ExtensionFileLoader) and str(module.__name__).partition(".")[0] not in _TORCHS_OWN


def _guard(replaced: Replacements, owner: Any, module: str, seen: set[int] | None = None) -> Iterator[tuple[Any, Any]]:
    """The functions in a module or a class of it that are given tensors, each with what takes its place."""
    seen = set() if seen is None else seen
    if id(owner) in seen:
        return
    seen.add(id(owner))
    for name, value in list(vars(owner).items()):
        kind = type(value)
        function = value.__func__ if kind is staticmethod or kind is _METHOD else value
        if type(function) is BuiltinFunctionType:
            if _TAKES_TENSORS.search(function.__doc__ or "") and type(function.__self__) is not _Parts:
                builtin = guarded(function, f"{owner.__name__}::{name}")
                replaced.put(owner, name, builtin if function is value else kind(builtin))
                yield function, builtin
        elif isinstance(value, type) and value.__module__ == module:
            yield from _guard(replaced, value, module, seen)
        elif kind is ModuleType and value.__name__ == f"{module}.{name}" and value.__spec__ is None:
            yield from _guard(replaced, value, value.__name__, seen)


def _replace_names(replaced: Replacements, originals: dict[int, Any]) -> None:
    """Names that modules have for the originals."""
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if type(value) is BuiltinFunctionType and id(value) in originals:
                replaced.put(module, name, originals[id(value)])


def guarded(function: Callable[..., Any], name: str) -> Any:
    """A builtin that calls a function which may use its tensors' memory by address.

    Args:
        function: what it calls.
        name: what recordings and reports call it.
    """
    return _native.extension_function(
        function,
        name,
        prepare=_prepare_lists if _TAKES_LISTS.search(function.__doc__ or "") else _prepare,
        tensors_in=_tensors_in,
        make_parts=_Parts,
        classes=(torch.Tensor, torch.nn.Parameter, torch.OutOfMemoryError),
    )


class _Parts(tuple[Any, ...]):
    """What a builtin is made of; it belongs to this, so that pickle finds it in its module."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self[0].__module__,)


def _prepare(
    arguments: tuple[Any, ...], named: dict[str, Any] | None = None
) -> tuple[list[torch.Tensor], tuple[Any, ...], dict[str, Any]]:
    """The tensors that a function is given, and its arguments as they are passed on."""
    found: list[torch.Tensor] = []
    for each in arguments:
        _gather(each, found)
    for each in (named or {}).values():
        _gather(each, found)
    return found, arguments, named or {}


def _prepare_lists(
    arguments: tuple[Any, ...], named: dict[str, Any] | None = None
) -> tuple[list[torch.Tensor], tuple[Any, ...], dict[str, Any]]:
    """The same, for a function that takes lists of tensors."""
    kept = tuple([tuple(each) if isinstance(each, _ONCE) else each for each in arguments])
    kept_by_name = {name: tuple(each) if isinstance(each, _ONCE) else each for name, each in (named or {}).items()}
    return _prepare(kept, kept_by_name)


def _gather(value: Any, found: list[torch.Tensor], depth: int = 0) -> None:
    if type(value) in _PLAIN:
        return
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif depth < _DEEPEST and isinstance(value, (dict, *_ITERABLES)):
        inside: Any = value
        for each in inside.values() if isinstance(value, dict) else inside:
            if type(each) not in _PLAIN:
                _gather(each, found, depth + 1)


def _tensors_in(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _gather(value, found)
    return found
