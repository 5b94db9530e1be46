"""What torch's libraries import of CUDA's runtime and driver, against what the stand-ins have: a newer torch that needs
more fails here, by name.
"""

import os
import subprocess
from pathlib import Path

import on_stand_ins
import pytest
import torch

RUNTIME_VERSION = "libcudart.so.13"
OF_OUR_OWN = {"fake_libcudart_kernel_failed"}  # what the kernels tell the runtime


def names(library: Path, which: str) -> set[str]:
    """Dynamic symbols, with their versions: "name@version" or "name@@version" where there is one."""
    words = ["nm", "--dynamic", "--format=just-symbols", which, str(library)]
    return set(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split())


@pytest.fixture(scope="module")
def imported() -> set[str]:
    folder = Path(torch.__file__).parent
    libraries = [*folder.glob("lib/*.so*"), *folder.glob("_C*.so")]
    assert len(libraries) > 5
    return set.union(*(names(path, "--undefined-only") for path in libraries))


@pytest.fixture(scope="module")
def defined() -> dict[str, set[str]]:
    build = Path(os.environ["LD_LIBRARY_PATH"].partition(os.pathsep)[0]).parents[1]
    return {path.name: names(path, "--defined-only") for path in on_stand_ins.libraries(build)}


def test_the_runtime_has_what_is_imported_and_no_more(imported: set[str], defined: dict[str, set[str]]) -> None:
    wanted = {name.partition("@")[0] for name in imported if name.endswith(f"@{RUNTIME_VERSION}")}
    had = {name.partition("@")[0] for name in defined[RUNTIME_VERSION] if name.endswith(f"@@{RUNTIME_VERSION}")}
    assert len(wanted) >= 93
    assert had - OF_OUR_OWN == wanted


def test_the_driver_has_what_is_linked_by_name(imported: set[str], defined: dict[str, set[str]]) -> None:
    wanted = {name for name in imported if name[:2] == "cu" and name[2:3].isupper() and not name.startswith("cuFile")}
    assert len(wanted) >= 23
    assert wanted <= defined["libcuda.so.1"], wanted - defined["libcuda.so.1"]
