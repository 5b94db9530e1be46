"""Loads libumadvise and the hooks library, each at the first call into it."""

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from umadvise._native import header
from umadvise.errors import HooksUnavailableError, NativeError, UmadviseError


def _bind(library: ctypes.CDLL, functions: dict[str, header.Function], last_error: str) -> None:
    def check(status: int, _function: Any, _arguments: Any) -> None:
        if status:  # 0 is Status.OK
            raise NativeError(status, getattr(library, last_error)().decode(errors="replace"))

    for name, declared in functions.items():
        function = getattr(library, name)
        function.argtypes, function.restype = declared.arguments, declared.result
        if declared.checked:
            function.errcheck = check


def library_path() -> Path:
    """Where libumadvise lies: $UMADVISE_LIBRARY, else `lib/` of the package (an editable install has two halves).

    Raises:
        UmadviseError: it lies nowhere.
    """
    import umadvise

    override = os.environ.get("UMADVISE_LIBRARY")
    candidates = [Path(override)] if override else [Path(root, "lib", "libumadvise.so") for root in umadvise.__path__]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    places = ", ".join(map(str, candidates))
    raise UmadviseError(
        f"the native core is missing: expected {places}. Reinstall umadvise (in a checkout: pip install -e .), "
        "or point UMADVISE_LIBRARY at a built libumadvise.so"
    )


@functools.cache
def core_library() -> ctypes.CDLL:
    """The loaded core. Global, because the hooks library resolves its um_* symbols from it."""
    path = library_path()

    def wrong(problem: str) -> UmadviseError:
        return UmadviseError(f"the native core {path} {problem}. Reinstall umadvise")

    return _loaded(path, header.core(), "um", wrong, ctypes.RTLD_GLOBAL)


@functools.cache
def hooks_library() -> ctypes.CDLL:
    """The loaded hooks library, compiled first where the cache has none for this torch.

    Raises:
        HooksUnavailableError: there is no torch or no working compiler, or the library does not load.
    """
    from umadvise._hooks import loader

    core_library()
    path = loader.compiled_library()

    def wrong(problem: str) -> UmadviseError:
        remedy = "Delete that file to have it compiled again"
        return HooksUnavailableError(f"the compiled torch extension {path} {problem}. {remedy}")

    return _loaded(path, header.hooks(), "um_hooks", wrong, ctypes.DEFAULT_MODE)


def _loaded(
    path: Path, declared: header.Header, prefix: str, wrong: Callable[[str], UmadviseError], mode: int
) -> ctypes.CDLL:
    """A library whose functions take and give what a header declares; `wrong` makes the error of a problem."""
    try:
        library = ctypes.CDLL(str(path), mode=mode)
        _bind(library, declared.functions, f"{prefix}_last_error")
    except (OSError, AttributeError) as error:
        raise wrong(f"cannot be loaded: {error}") from error
    found, expected = getattr(library, f"{prefix}_abi_version")(), declared.numbers[f"{prefix.upper()}_ABI_VERSION"]
    if found != expected:
        raise wrong(f"speaks ABI version {found}, expected {expected}")
    return library


@functools.cache
def intern(text: str) -> int:
    """The 32-bit id of a name; 0 for the empty one. A lone surrogate, which is no character, becomes "?"."""
    return int(core_library().um_intern(text.encode(errors="replace"))) if text else 0


@functools.cache
def string(name: int) -> str:
    """The text of an interned name; empty for 0."""
    return str(core_library().um_string(name).decode(errors="replace"))
