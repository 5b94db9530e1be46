"""What a bundle brings to a machine: the core, the extension for its torch, packages that it lacks, and stand-ins.

`bundle.py` makes one. Each part is used only where it fits; where it does not, the machine builds its own.
"""

import hashlib
import importlib.util
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

LIBRARY, HOOKS = "libumadvise.so", "libumadvise_hooks.so"
STAND_INS = {"emulated_libcuda/libcuda.so.1": "libcuda.so.1", "fake_cupti/cuda13/libcupti.so.13": "libcupti.so.13"}
"""Of the C++ tests, where a build has them and where a bundle has them."""


class Prebuilt:
    """The parts of a bundle.

    Attributes:
        folder: the bundle's folder; None where there is none.
        packages: folders of the packages that cannot be imported here without them.
    """

    def __init__(self, folder: Path | None) -> None:
        """Looks for the packages, which this process can import from now on."""
        self.folder = folder
        folders = [] if folder is None else sorted((folder / "packages").glob("*"))
        self.packages = [folder for folder in folders if importlib.util.find_spec(folder.name) is None]
        sys.path += map(str, self.packages)

    def core(self, checkout: Path) -> Path | None:
        """The core, if it was built from what this checkout has."""
        if self.folder is None or not (self.folder / LIBRARY).is_file():
            return None
        made_of = (self.folder / "sources").read_text().strip()
        return self.folder / LIBRARY if made_of == sources_digest(checkout) else None

    def hooks_folder(self) -> Path:
        """Where extensions lie, each in a folder whose name says what it is for: see umadvise._hooks.loader."""
        return (self.folder or Path("no-bundle")) / "hooks"

    def stand_ins(self, build_directory: Path) -> dict[str, str]:
        """Variables that put the emulated device in the driver's place, for a dry run."""
        libcuda, cupti = self._stand_ins(build_directory)
        return {"LD_LIBRARY_PATH": str(libcuda.parent), "GPU_CHECK_CUPTI": str(cupti)}

    def has_stand_ins(self, build_directory: Path) -> bool:
        """Whether they need not be built."""
        return all(path.is_file() for path in self._stand_ins(build_directory))

    def _stand_ins(self, build_directory: Path) -> list[Path]:
        if self.folder is not None and (self.folder / "stand_ins").is_dir():
            return [self.folder / "stand_ins" / name for name in STAND_INS.values()]
        return [build_directory / "tests" / name for name in STAND_INS]


def cmake_commands(build_directory: Path, *targets: str, options: Iterable[str] = ()) -> list[list[str]]:
    """What configures and builds targets of csrc: by Ninja, if there is one and the folder has no other generator."""
    checkout = Path(__file__).resolve().parents[2]
    configure = ["cmake", "-S", str(checkout / "csrc"), "-B", str(build_directory), "-DUMADVISE_TESTS=ON", *options]
    if not (build_directory / "CMakeCache.txt").exists() and shutil.which("ninja") is not None:
        configure += ["-G", "Ninja"]
    return [configure, ["cmake", "--build", str(build_directory), "--parallel", "--target", *targets]]


def sources_digest(checkout: Path) -> str:
    """Of what the core is built from."""
    digest = hashlib.sha256()
    for path in sorted((checkout / "csrc").rglob("*")):
        if path.suffix in (".cpp", ".h", ".txt") and "tests" not in path.parts[-3:-1]:
            digest.update(f"{path.relative_to(checkout)}\n".encode() + path.read_bytes())
    return digest.hexdigest()
