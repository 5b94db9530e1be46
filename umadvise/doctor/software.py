"""Python and what is installed in it: the core, torch, a compiler, the extension."""

import importlib
import importlib.metadata
import platform
import sys
from typing import Any

from umadvise.doctor.records import Check
from umadvise.errors import UmadviseError

_OLDEST_PYTHON = (3, 11)
_CORE_REMEDY = "reinstall umadvise (in a checkout: pip install -e .)"


def check_python() -> Check:
    """The interpreter."""
    version = platform.python_version()
    if sys.version_info < _OLDEST_PYTHON:
        return Check("Python", "missing", version, "use Python 3.11 or newer")
    return Check("Python", "ok", f"{version} ({sys.executable})")


def check_core() -> Check:
    """The library libumadvise."""
    from umadvise import _native

    try:
        path = _native.library_path()
        _native.string(0)  # loads it
    except UmadviseError as error:
        return Check("native core", "missing", str(error), _CORE_REMEDY)
    return Check("native core", "ok", str(path))


def check_torch(driver_version: int | None) -> Check:
    """PyTorch, and whether its CUDA build and the driver go together.

    Args:
        driver_version: newest CUDA that the driver supports, as 1000 * major + 10 * minor; None without a driver.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        remedy = "pip install torch (2.9 or newer); planning, simulating from traces and reporting work without it"
        return Check("PyTorch", "missing", f"cannot be imported: {error}", remedy)
    cuda = torch.version.cuda
    facts = {"version": str(torch.__version__), "cuda": cuda}
    if cuda is None:
        found, remedy = f"{torch.__version__}, built without CUDA", "to use a GPU, install torch's build for CUDA"
        state = "ok" if driver_version is None else "limited"
        return Check("PyTorch", state, found, remedy, facts=facts)  # type: ignore[arg-type]
    found = f"{torch.__version__}, built for CUDA {cuda}"
    major = int(str(cuda).partition(".")[0])
    if driver_version is not None and driver_version // 1000 < major:
        found += f", and the driver supports CUDA {driver_version // 1000}.{driver_version % 1000 // 10}"
        remedy = f"update the NVIDIA driver, or install torch's build for CUDA {driver_version // 1000}"
        return Check("PyTorch", "limited", found, remedy, facts)
    return Check("PyTorch", "ok", found, facts=facts)


def check_compiler() -> Check:
    """What compiles the extension."""
    try:
        command = _loader().compiler()
    except UmadviseError as error:
        remedy = "install one (Debian and Ubuntu: apt install g++), or set CXX"
        found = str(error).partition(". ")[0]
        return Check("C++ compiler", "missing", found, remedy)
    return Check("C++ compiler", "ok", " ".join(command))


def _loader() -> Any:
    try:
        return importlib.import_module("umadvise._hooks.loader")
    except ImportError as error:  # it locks files as Unix does
        raise UmadviseError(f"the extension is for Linux: {error}") from None


def check_extension() -> Check:
    """The extension against the installed torch; compiled now where the cache has none."""
    from umadvise import _native

    try:
        _loader()
        path = _native.hooks_path()
        _native.hooks_function("um_hooks_abi_version")  # loads it
    except UmadviseError as error:
        found, _, remedy = str(error).partition(". ")
        remedy = remedy or "make torch and a C++20 compiler work (see above), and run umadvise doctor again"
        return Check("torch extension", "missing", found, remedy)
    return Check("torch extension", "ok", f"compiled, and it loads: {path}")


def check_scipy() -> Check:
    """What the lower bound is solved with."""
    try:
        version = importlib.metadata.version("scipy")
    except importlib.metadata.PackageNotFoundError:
        found = "not installed: the lower bound that plans are compared with needs it (umadvise compare)"
        return Check("scipy", "limited", found, "pip install scipy")
    return Check("scipy", "ok", version)
