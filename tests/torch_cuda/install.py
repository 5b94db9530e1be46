"""Installs umadvise and the stand-ins for a GPU into the environment of torch's CUDA build that runs this.

One build has the core and the stand-ins. The extension is compiled now, so that no test waits for it.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from on_stand_ins import BUILD, CHECKOUT, libraries

TARGETS = ("umadvise", "emulated_libcuda", "fake_libcudart", "cuda_kernels")


def folder_of(package: str, inner: str) -> Path:
    """A folder that a package of this environment brings.

    Args:
        package: its import name.
        inner: the folder's path in it.

    Raises:
        SystemExit: it is not there.
    """
    spec = find_spec(package)
    for root in (spec and spec.submodule_search_locations) or ():
        if Path(root, inner).is_dir():
            return Path(root, inner)
    raise SystemExit(f"{sys.prefix} has no {package}/{inner}: expected torch for CUDA 13 with its nvidia packages")


def main() -> None:
    """Installs, then tries it: a tensor on the GPU that is not there."""
    definitions = {
        "UMADVISE_TESTS": "ON",
        "UMADVISE_CUDA13_INCLUDE": folder_of("nvidia", "cu13/include"),
        "UMADVISE_TORCH": folder_of("torch", "include").parent,
    }
    words = [f"--config-settings=build-dir={BUILD}", f"--config-settings=build.targets={';'.join(TARGETS)}"]
    words += [f"--config-settings=cmake.define.{name}={value}" for name, value in definitions.items()]
    pip = [sys.executable, "-m", "pip", "install"]
    subprocess.run([*pip, *words, "--editable", f"{CHECKOUT}[test]"], check=True)
    subprocess.run([*pip, str(Path(__file__).with_name("backend"))], check=True)
    libraries()
    tried = "import torch; from umadvise._hooks.loader import compiled_library; compiled_library();"
    tried += "assert (torch.ones(2, device='cuda') + 1).tolist() == [2, 2]"
    launcher = str(Path(__file__).with_name("on_stand_ins.py"))
    subprocess.run([sys.executable, launcher, "-c", tried], check=True, env={**os.environ, "STAND_IN_MIB": "64"})


if __name__ == "__main__":
    main()
