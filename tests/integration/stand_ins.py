"""Stand-ins for CUDA's libraries, of the C++ tests, which `make test` builds before Python's tests run."""

import functools
import os
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
BUILD = CHECKOUT / "build" / "native"
_TARGETS = ["emulated_libcuda", "fake_cupti12", "fake_cupti13"]


@functools.cache
def folder() -> Path:
    """The folder that holds `libcuda_folder` and `cupti`; they are built first where there are none."""
    library = os.environ.get("UMADVISE_LIBRARY")
    builds = [BUILD] if library is None else [Path(library).parent, BUILD]
    for build in builds:
        if (build / "tests" / "fake_cupti" / "cuda13").is_dir():
            return build / "tests"
    configure = ["cmake", "-S", str(CHECKOUT / "csrc"), "-B", str(BUILD), "-G", "Ninja", "-DUMADVISE_TESTS=ON"]
    subprocess.run(configure, check=True)
    subprocess.run(["cmake", "--build", str(BUILD), "--target", *_TARGETS], check=True)
    return BUILD / "tests"


def libcuda_folder() -> Path:
    """Where a libcuda.so.1 lies behind which the emulated device works."""
    return folder() / "emulated_libcuda"


def cupti(major: int) -> Path:
    """A libcupti.so as CUDA 12 or 13 has it, which tells of what happens behind that libcuda."""
    return folder() / "fake_cupti" / f"cuda{major}" / f"libcupti.so.{major}"
