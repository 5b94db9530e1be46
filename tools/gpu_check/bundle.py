"""Makes what a machine with a GPU would lose its minutes with: `python tools/gpu_check/bundle.py`, without a GPU.

    python tools/gpu_check/bundle.py [--torch FOLDER] [--package msgspec]... [--archive FILE.tar.gz]

The bundle has the native core, stripped; the extension for the torch that is installed here, and for each torch whose
folder is named; packages that the other machine lacks, as wheels for its Python; and the stand-ins for dry runs. With
`--archive` it is packed together with the checkout: unpack it there, and run `python tools/gpu_check` in it.
"""

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(CHECKOUT))

from prebuilt import HOOKS, LIBRARY, STAND_INS, cmake_commands, sources_digest  # noqa: E402

from umadvise._hooks import loader  # noqa: E402

_PACKED = (
    "umadvise",
    "csrc",
    "tools",
    "examples",
    "tests",
    "profiles",
    "docs",
    "pyproject.toml",
    "README.md",
    "LICENSE",
)
"""Of the checkout, what a check needs."""
_LEFT_OUT = ("__pycache__", ".pytest_cache")
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def parse_options(words: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="bundle.py", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=CHECKOUT / "build" / "gpu_bundle", metavar="FOLDER")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="pack checkout and bundle: a .tar.gz")
    torch_help = "of an unpacked torch wheel: its `torch`, for whose version the extension is compiled too"
    parser.add_argument("--torch", type=Path, action="append", default=[], metavar="FOLDER", help=torch_help)
    parser.add_argument("--python", default="3.12", metavar="VERSION", help="of the other machine; default: 3.12")
    parser.add_argument("--package", action="append", default=[], metavar="NAME", help="that the other machine lacks")
    parser.add_argument("--build-directory", type=Path, default=CHECKOUT / "build" / "gpu_check", metavar="FOLDER")
    return parser.parse_args(words)


def make(options: argparse.Namespace) -> None:
    """The bundle, in a folder that is new or was one before."""
    folder: Path = options.output
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "stand_ins").mkdir(parents=True)
    build = options.build_directory
    for words in cmake_commands(build, "umadvise", "emulated_libcuda", "fake_cupti13"):
        run(words)
    stripped(build / LIBRARY, folder / LIBRARY)
    for source, name in STAND_INS.items():
        stripped(build / "tests" / source, folder / "stand_ins" / name)
    for torch in [*installed(), *map(unpacked, options.torch)]:
        target = folder / "hooks" / loader.build_name(torch) / HOOKS
        target.parent.mkdir(parents=True, exist_ok=True)
        stripped(loader.compiled_library(torch), target)
        print(f"bundle: extension for torch {torch.version}", file=sys.stderr)
    for package in options.package:
        bring(package, options.python, folder / "packages" / package)
    (folder / "sources").write_text(sources_digest(CHECKOUT) + "\n")  # last: without it, it is no bundle


def run(words: list[str]) -> None:
    """Runs a command whose output is for the user."""
    subprocess.run(words, check=True, stdout=sys.stderr)


def stripped(source: Path, target: Path) -> None:
    """Copies a library without its symbols for debuggers."""
    run(["strip", "--strip-unneeded", "-o", str(target), str(source)])


def installed() -> list[loader.Torch]:
    """The torch of this Python, if it has one."""
    return [loader.installed_torch()] if importlib.util.find_spec("torch") is not None else []


def unpacked(folder: Path) -> loader.Torch:
    """A torch that need not run here: its headers and libraries are enough."""
    names: dict[str, object] = {}
    exec((folder / "version.py").read_text(), names)
    return loader.Torch(str(names["__version__"]), folder.resolve(), True)  # as every wheel since torch 2.7 has it


def bring(package: str, python: str, target: Path) -> None:
    """Unpacks a package's wheel for another Python, and those of what it needs."""
    platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
    with tempfile.TemporaryDirectory() as scratch:
        words = ["-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest", scratch]
        run([sys.executable, *words, "--python-version", python, *platforms, package])
        for wheel in Path(scratch).glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(target)
            print(f"bundle: {wheel.name}", file=sys.stderr)


def pack(folder: Path, archive: Path) -> None:
    """Checkout and bundle in one file; unpacked, the bundle lies where gpu_check looks for it."""

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if Path(member.name).name in _LEFT_OUT else member

    with tarfile.open(archive, "w:gz") as file:
        for name in _PACKED:
            file.add(CHECKOUT / name, name, filter=kept)
        file.add(folder, "build/gpu_bundle")


def main() -> int:
    """Makes it, and says what there is."""
    options = parse_options()
    make(options)
    size_bytes = sum(path.stat().st_size for path in options.output.rglob("*") if path.is_file())
    print(f"{options.output}: {size_bytes / 2**20:.1f} MiB")
    if options.archive is not None:
        pack(options.output, options.archive)
        print(f"{options.archive}: {options.archive.stat().st_size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
