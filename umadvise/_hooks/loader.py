"""Compiles the extension against the installed torch on first use, and keeps it in the user's cache directory.

It is loaded from there only where no other user can have written it. Where the cache cannot be used, or others can
write to it, each process compiles one of its own, and a warning says why.

The extension is plain C++ behind `extern "C"` (no pybind, no Python.h), so one build serves every Python that has this
torch. Its um_* symbols stay undefined: they come from libumadvise, which is loaded globally before it.
"""

import atexit
import fcntl
import glob
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from umadvise._hooks import core_headers
from umadvise.errors import HooksUnavailableError
from umadvise.user_cache import user_cache, why_untrusted

log = logging.getLogger("umadvise")

_SOURCE_DIRECTORY = Path(__file__).parent
_LIBRARY = "libumadvise_hooks.so"
_OVERRIDE = "UMADVISE_HOOKS_LIBRARY"
# C++20 because torch's own headers need it from 2.12 on; earlier headers compile with it too.
_OPTIONS = ("-O2", "-DNDEBUG", "-std=c++20", "-fPIC", "-fvisibility=hidden")
_ERROR_LINES = 12
_MOST_UNITS = 2
"""Each parses torch's headers: 8 s of CPU time where all sources in one unit take 26. Two units take 20 and 27 s, four
17 to 24 s each."""


@dataclass(frozen=True)
class Torch:
    """What the build depends on: the installed torch.

    Attributes:
        version: the text of `torch.__version__`, such as "2.13.0+cpu".
        directory: the torch package, with `include/` and `lib/`.
        cxx11_abi: the libstdc++ ABI that torch was built with.
    """

    version: str
    directory: Path
    cxx11_abi: bool


def installed_torch() -> Torch:
    """Describes the torch of this interpreter.

    Raises:
        HooksUnavailableError: there is none.
    """
    try:
        import torch
    except ImportError as error:
        raise HooksUnavailableError(
            f"putting tensors into unified memory needs PyTorch, which cannot be imported: {error}. "
            "Install torch 2.9 or later; planning and reporting work without it"
        ) from error
    return Torch(torch.__version__, Path(torch.__file__).parent, torch.compiled_with_cxx11_abi())


def compiled_library(torch: Torch | None = None) -> Path:
    """The extension for a torch, compiled now when the cache has none; or the file that $UMADVISE_HOOKS_LIBRARY names.

    What another compiler made, for this torch and of these sources, serves where there is none now.

    Args:
        torch: the torch that the extension is compiled against; None is the one that this Python imports.

    Raises:
        HooksUnavailableError: there is no torch, no compiler, or the compilation fails; with reason and remedy.
    """
    if torch is None and (named := os.environ.get(_OVERRIDE)):
        return _named(Path(named))
    torch = torch or installed_torch()
    try:
        return _kept_library(torch)
    except OSError as error:
        library = _private_library(torch)
        log.warning(
            "the compiled torch extension is not kept, so that each process compiles it again: %s. Make the cache "
            "directory one that you alone can write to, or set XDG_CACHE_HOME to such a one",
            error,
        )
        return library


def _kept_library(torch: Torch) -> Path:
    """The extension in the user's cache, compiled first where there is none.

    Raises:
        OSError: the cache cannot be used, or is not to be trusted.
        HooksUnavailableError: there is no compiler, or the compilation fails.
    """
    cache = user_cache()
    if cache is None:
        raise FileNotFoundError("the user has no home directory")
    directory, build = cache / "umadvise" / "hooks", build_name(torch)
    try:
        command = compiler()
    except HooksUnavailableError:
        for library in sorted(directory.glob(f"{glob.escape(build)}-*/{_LIBRARY}")):
            if why_untrusted(library, cache) is None:
                return library
        raise
    program, *arguments = command
    library = directory / f"{build}-{_digest(Path(program).name, *arguments)[:8]}" / _LIBRARY
    there = next(path for path in (library, *library.parents) if path.exists())
    if there.is_relative_to(cache) and (why := why_untrusted(there, cache)) is not None:
        raise PermissionError(f"code is not loaded from where others may have written it: {why}")
    if there == library:
        return library
    _make_private(library.parent)
    with _locked(library.parent):
        if not library.is_file():  # another process may have built it while we waited
            log.warning("compiling the torch %s extension (once, some seconds)", torch.version)
            _build(command, torch, library)
    return library


def _make_private(directory: Path) -> None:
    """Makes a directory, with those above it, that only this user can write to, whatever the umask."""
    if not directory.is_dir():
        _make_private(directory.parent)
        with suppress(FileExistsError):  # another process may make it at the same time
            directory.mkdir(mode=0o700)


def _private_library(torch: Torch) -> Path:
    """The extension in a directory that this user alone can read and write, compiled for this process.

    Raises:
        HooksUnavailableError: there is no compiler, the compilation fails, or there is no place for it either.
    """
    try:
        directory = tempfile.mkdtemp(prefix="umadvise-hooks-")
    except OSError as error:
        raise HooksUnavailableError(
            f"the compiled torch extension cannot be written anywhere: {error}. Set TMPDIR to a directory to write to"
        ) from error
    atexit.register(_remove, directory, os.getpid())
    library = Path(directory, _LIBRARY)
    _build(compiler(), torch, library)
    return library


def _remove(directory: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked child runs its parent's exit functions too
        shutil.rmtree(directory, ignore_errors=True)


def _named(library: Path) -> Path:
    if not library.is_file():
        raise HooksUnavailableError(
            f"{_OVERRIDE} names {library}, which is no file. Name the extension that was compiled for this torch, or "
            "unset it to have it compiled"
        )
    return library


def build_name(torch: Torch) -> str:
    """Torch's version and ABI, and a hash of the sources and options: all that the extension depends on but a compiler.

    It has no path in it, so what one machine has compiled is found on another one.
    """
    inputs = [
        *_SOURCE_DIRECTORY.glob("*.cpp"),
        *_SOURCE_DIRECTORY.glob("*.h"),
        *core_headers().glob("*.h"),
    ]
    contents = (part for path in sorted(inputs, key=lambda path: path.name) for part in (path.name, path.read_bytes()))
    return f"{torch.version}-cxx11abi{int(torch.cxx11_abi)}-{_digest(*_OPTIONS, *contents)[:16]}"


def compiler() -> list[str]:
    """$CXX (which may carry arguments), else c++ or g++.

    Raises:
        HooksUnavailableError: there is none; with the remedy.
    """
    chosen = shlex.split(os.environ.get("CXX", ""))
    candidates = [chosen] if chosen else [["c++"], ["g++"]]
    for command in candidates:
        if found := shutil.which(command[0]):
            return [found, *command[1:]]
    raise HooksUnavailableError(
        f"putting tensors into unified memory needs a C++20 compiler, and {candidates[0][0]!r} was not found. "
        "Install one (Debian and Ubuntu: apt install g++) or set CXX; planning and reporting work without it"
    )


def _compile_flags(torch: Torch) -> list[str]:
    return [
        *_OPTIONS,
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11_abi)}",
        f"-isystem{torch.directory / 'include'}",
        f"-I{core_headers()}",
    ]


def _digest(*parts: str | bytes) -> str:
    return hashlib.sha256(b"\0".join(part.encode() if isinstance(part, str) else part for part in parts)).hexdigest()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Holds the build directory's lock, so that processes that start together compile once."""
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("waiting for another process that compiles the torch extension in %s", directory)
            fcntl.flock(lock, fcntl.LOCK_EX)
        for abandoned in directory.glob(f"{tempfile.gettempprefix()}*"):  # by a process that was killed at it
            shutil.rmtree(abandoned, ignore_errors=True)
        yield


def _units(scratch: Path) -> list[Path]:
    """Writes files that include the sources, of about the same size: torch's headers take most of a compilation."""
    units: list[list[Path]] = [[] for _ in range(min(os.cpu_count() or 1, _MOST_UNITS))]
    for source in sorted(_SOURCE_DIRECTORY.glob("*.cpp"), key=lambda source: (-source.stat().st_size, source.name)):
        min(units, key=lambda unit: sum(each.stat().st_size for each in unit)).append(source)
    files = [scratch / f"unit_{index}.cpp" for index in range(len(units))]
    for file, unit in zip(files, units, strict=True):
        file.write_text("".join(f'#include "{source}"\n' for source in unit))
    return files


def _build(command: list[str], torch: Torch, library: Path) -> None:
    """Compiles the sources side by side, links, and puts the result in place with one rename."""
    flags = _compile_flags(torch)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        units = _units(Path(scratch))
        objects = [unit.with_suffix(".o") for unit in units]
        with ThreadPoolExecutor(max_workers=len(units)) as pool:
            compilations = [
                pool.submit(_run, [*command, *flags, "-c", str(unit), "-o", str(target)])
                for unit, target in zip(units, objects, strict=True)
            ]
            for compilation in compilations:
                compilation.result()
        linked = Path(scratch, library.name)
        libraries = [f"-L{torch.directory / 'lib'}", "-lc10", "-ltorch_cpu"]
        _run([*command, "-shared", *map(str, objects), *libraries, "-o", str(linked)])
        linked.chmod(0o755)  # by the umask of some systems its group could write to it
        linked.rename(library)


def _run(command: list[str]) -> None:
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise HooksUnavailableError(f"the C++ compiler {command[0]} does not run: {error}. Set CXX to one") from error
    if finished.returncode != 0:
        last_lines = "\n".join(finished.stderr.strip().splitlines()[-_ERROR_LINES:])
        raise HooksUnavailableError(
            f"the torch extension could not be compiled; {command[0]} ended with status {finished.returncode}:\n"
            f"{last_lines}\nSet CXX to a compiler that knows C++20 (g++ 11 or later, clang 14 or later)"
        )
