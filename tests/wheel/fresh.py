"""Installs a wheel into empty environments of every Python that it is for, and uses it there, outside of the checkout.

    python tests/wheel/fresh.py [--torch REQUIREMENT] [--torch-on VERSION ...] WHEEL

Each environment gets the wheel alone, with what pip brings for it. Pythons that this machine lacks are named as not
tried. Exit codes: 0 where all that was tried works, 1 where something failed or no Python was there.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PROGRAMS = Path(__file__).parent
WITHOUT_TORCH, WITH_TORCH = PROGRAMS / "without_torch.py", PROGRAMS / "with_torch.py"
NOT_HERE = "not tried: this machine has no such Python"


def candidates(version: str) -> Iterator[str]:
    """Paths that may be a Python of this version: of PATH, then of pyenv."""
    if found := shutil.which(f"python{version}"):
        yield found
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(root.glob(f"versions/{version}.*/bin/python")))


def interpreter(version: str) -> str | None:
    """A Python of this version that runs; None where there is none."""
    asked = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    for path in candidates(version):  # pyenv leaves names on PATH behind which there is nothing
        answer = subprocess.run([path, "-c", asked], capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.strip() == version:
            return path
    return None


def bare_environment(folder: Path) -> dict[str, str]:
    """The environment variables of a user: nothing names this checkout, and no extension has been compiled."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("UMADVISE_", "PYTHON"))}
    return {**kept, "XDG_CACHE_HOME": str(folder / "cache"), "PIP_CACHE_DIR": pip_cache(), "PYTHONNOUSERSITE": "1"}


def pip_cache() -> str:
    """Where pip keeps downloads, which $XDG_CACHE_HOME would move."""
    command = [sys.executable, "-m", "pip", "cache", "dir"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def try_in(folder: Path, python: str, wheel: Path, torch: str | None) -> None:
    """Makes an environment, installs, and runs the programs beside this file.

    Raises:
        CalledProcessError: one of these steps has failed, and said why.
    """
    environment = bare_environment(folder)

    def run(*words: str | Path) -> None:
        subprocess.run([str(word) for word in words], check=True, cwd=folder, env=environment)

    run(python, "-m", "venv", folder / "venv")
    inside = folder / "venv" / "bin" / "python"
    pip = (inside, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "install", wheel)
    run(*pip, "check")
    run(inside, shutil.copy(WITHOUT_TORCH, folder))
    if torch is not None:
        run(*pip, "install", torch)
        run(inside, shutil.copy(WITH_TORCH, folder))


def outcome(version: str, wheel: Path, torch: str | None) -> str:
    """What came of the wheel in one version of Python, in words."""
    python = interpreter(version)
    if python is None:
        return NOT_HERE
    with tempfile.TemporaryDirectory(prefix="umadvise-wheel-") as folder:
        try:
            try_in(Path(folder), python, wheel, torch)
        except subprocess.CalledProcessError as error:
            return f"FAILED: {' '.join(error.cmd)}"
    return f"passed, {'without torch' if torch is None else 'without and with ' + torch}"


def main() -> int:
    """Tries every version, and says at the end what came of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, metavar="WHEEL")
    parser.add_argument("--torch", metavar="REQUIREMENT", default="torch", help="of --torch-on, for pip")
    parser.add_argument(
        "--torch-on", metavar="VERSION", nargs="*", default=[], choices=VERSIONS, help="train there with torch too"
    )
    arguments = parser.parse_args()
    outcomes = {}
    for version in VERSIONS:
        print(f"== Python {version}", flush=True)
        torch = arguments.torch if version in arguments.torch_on else None
        outcomes[version] = outcome(version, arguments.wheel.resolve(strict=True), torch)
    print(f"\n{arguments.wheel.name}")
    for version, came in outcomes.items():
        print(f"  Python {version}: {came}")
    worked = [came.startswith("passed") for came in outcomes.values() if came != NOT_HERE]
    return 0 if worked and all(worked) else 1


if __name__ == "__main__":
    sys.exit(main())
