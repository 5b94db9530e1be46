"""What no emulated device can do: refused by name, with what to do instead. And two things that pass through."""

import contextlib
import importlib.abc
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from umadvise.errors import UntranslatedError
from umadvise.torch_seam.cuda_spellings.words import check_index
from umadvise.torch_seam.replacements import Replacements, refusing


class NoTritonError(UntranslatedError, ModuleNotFoundError):
    """`import triton`: packages that can do without it see that it is not there."""


def _load_inline(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    if named.get("cuda_sources") or len(arguments) > 2:
        _no_extension()
    return original(*arguments, **named)


def _load(original: Callable[..., Any], name: str, sources: Any, *arguments: Any, **named: Any) -> Any:
    if any(str(source).endswith((".cu", ".cuh")) for source in ([sources] if isinstance(sources, str) else sources)):
        _no_extension()
    return original(name, sources, *arguments, **named)


_no_extension = refusing(
    UntranslatedError,
    "an extension in CUDA C++",
    "its kernels run on a GPU only",
    "use the operation of torch that it replaces",
)


def _data_parallel(
    original: Callable[..., None], self: Any, module: Any, device_ids: Any = None, *arguments: Any, **named: Any
) -> None:
    """On one device `torch.nn.DataParallel` runs the module itself, as torch does where there is no GPU."""
    for index in device_ids or ():
        check_index(index.index if isinstance(index, torch.device) else index)
    original(self, module, device_ids, *arguments, **named)


class _NoTriton(importlib.abc.MetaPathFinder):
    """Says it by name where a script or a package imports Triton; whether it is there may still be asked."""

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if name.split(".", 1)[0] != "triton" or sys._getframe(2).f_code.co_name == "find_spec":
            return None
        raise NoTritonError(
            "Triton", "its kernels are compiled for a GPU", "use the operation of torch that it replaces"
        )


def install(replaced: Replacements) -> None:
    """Replaces what is refused."""
    replaced.around(torch.nn.DataParallel, "__init__", _data_parallel)
    with contextlib.suppress(ImportError):  # it needs setuptools, which not everybody has
        from torch.utils import cpp_extension

        replaced.put(cpp_extension, "CUDAExtension", _no_extension)
        replaced.around(cpp_extension, "load", _load)
        replaced.around(cpp_extension, "load_inline", _load_inline)


@contextlib.contextmanager
def no_triton() -> Iterator[None]:
    """Refuses `import triton` until the `with` ends."""
    finder = _NoTriton()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
