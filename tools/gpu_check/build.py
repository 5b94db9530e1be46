"""The stages that get the native parts: from a bundle where they fit, else built here."""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from prebuilt import LIBRARY, cmake_commands
from record import GpuCheck, StageError

_LOADS = "from umadvise._native import library; library.core_library()"
_SERVES = "from umadvise import _native; _native.hooks_function('um_hooks_cuda_allocate')"


def core(check: GpuCheck) -> Any:
    """The native core."""
    why_not = "there is none, or it was built from other sources"
    if (library := check.prebuilt.core(check.checkout)) is not None:
        try:
            _load(check, library)
            return {"from": "bundle", "why_not_bundle": None, "library": str(library)}
        except StageError as error:
            why_not = str(error)
    library = check.build_directory / LIBRARY
    make(check, "umadvise")
    _load(check, library)
    return {"from": "built here", "why_not_bundle": why_not, "library": str(library)}


def for_driver(check: GpuCheck) -> None:
    """What programs that call the driver can use without waiting for it: a core that is there, or the stand-ins."""
    if check.dry_run and not check.prebuilt.has_stand_ins(check.build_directory):
        make(check, "emulated_libcuda", "fake_cupti13")
    built = check.prebuilt.core(check.checkout) or check.build_directory / LIBRARY
    if built.is_file():
        check.libraries.setdefault("UMADVISE_LIBRARY", str(built))


def _load(check: GpuCheck, library: Path) -> None:
    check.libraries["UMADVISE_LIBRARY"] = str(library)
    check.run([sys.executable, "-c", _LOADS])


def make(check: GpuCheck, *targets: str, options: tuple[str, ...] = ()) -> None:
    """Builds targets of csrc."""
    for words in cmake_commands(check.build_directory, *targets, options=options):
        check.run(words)


def hooks(check: GpuCheck) -> Any:
    """The extension for this machine's torch: the stage environment has tried the bundle's."""
    found = (check.output.data("environment") or {}).get("hooks", {"library": None, "why_not": None})
    if found["library"] is not None:
        check.libraries["UMADVISE_HOOKS_LIBRARY"] = found["library"]
        return {"from": "bundle", "why_not_bundle": None}
    check.run([sys.executable, "-c", _SERVES])
    return {"from": "built here", "why_not_bundle": found["why_not"]}


def conformance(check: GpuCheck) -> Any:
    """The driver table compared with the toolkit's own headers, where the machine has a toolkit."""
    toolkit = toolkit_headers(check)
    if toolkit is None:
        return {"compared": None, "reason": "no nvcc on the PATH, so no headers of a toolkit"}
    major, include = toolkit
    if major not in (12, 13):
        return {"compared": None, "reason": f"{include} has CUDA {major}, and the driver table is about 12 and 13"}
    name = f"test_cuda{major}_conformance"
    make(check, name, options=(f"-DUMADVISE_CUDA{major}_INCLUDE={include}",))
    return {"compared": check.run([str(check.build_directory / "tests" / name)]).strip(), "include": str(include)}


def toolkit_headers(check: GpuCheck) -> tuple[int, Path] | None:
    """Major version and include folder of the toolkit whose nvcc is on the PATH; None where none is.

    Raises:
        StageError: there is an nvcc, and no headers where it says that they are.
    """
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return None
    roots = [Path(value) for name in ("CUDA_HOME", "CUDA_PATH") if (value := os.environ.get(name))]
    roots.append(Path(nvcc).resolve().parents[1])
    roots += _asked(check, nvcc)
    places = [folder for root in roots for folder in (root / "include", *root.glob("targets/*/include"))]
    for include in places:
        if (include / "cudaTypedefs.h").is_file():
            version = re.search(r"#define CUDA_VERSION (\d+)", (include / "cuda.h").read_text())
            return (int(version[1]) // 1000 if version else 0), include
    raise StageError(f"{nvcc} is there, and no cudaTypedefs.h: looked in {', '.join(map(str, places))}")


def _asked(check: GpuCheck, nvcc: str) -> list[Path]:
    """The root that nvcc itself names: where it is a script that calls another one, its own path says nothing."""
    source = check.scratch / "empty.cu"
    source.write_text("")
    try:
        check.run([nvcc, "--dryrun", "-E", str(source)], must_succeed=False)
    except StageError:
        return []
    with check.output.log.open("rb") as file:
        file.seek(max(0, check.output.log.stat().st_size - 20000))
        tops = re.findall(r"^#\$ TOP=(\S+)", file.read().decode(errors="replace"), re.MULTILINE)
    return [Path(top).resolve() for top in tops[-1:]]
