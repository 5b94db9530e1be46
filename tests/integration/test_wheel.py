import ctypes
import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, of the build that `make` has made."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    settings = {"build-dir": ROOT / "build" / "native", "build.targets": "umadvise"}
    words = [f"--config-settings={name}={value}" for name, value in settings.items()]
    subprocess.run([*command, *words, "-w", folder, ROOT], check=True)
    (path,) = folder.glob("*.whl")
    return path


def test_one_wheel_serves_every_python(wheel: Path) -> None:
    assert re.fullmatch(r"umadvise-[0-9.]+-py3-none-\w*linux\w*\.whl", wheel.name)


def test_the_wheel_holds_what_is_needed_at_run_time_and_no_more(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("umadvise/")}
    sources = {
        str(path.relative_to(ROOT)) for path in (ROOT / "umadvise").rglob("*.*") if "__pycache__" not in path.parts
    }
    assert sources <= names
    headers = {f"umadvise/include/{path.name}" for path in (ROOT / "csrc" / "include").glob("*.h")}
    assert {"umadvise/lib/libumadvise.so", *headers} <= names
    suffixes = {Path(name).suffix for name in names if not name.endswith("/")}
    assert suffixes <= {".py", ".typed", ".so", ".h", ".cpp", ".toml", ".js", ".css", ""}  # the last one: a LICENSE
    catalogue = {str(path.relative_to(ROOT)) for path in (ROOT / "profiles" / "devices").rglob("*.toml")}
    assert {f"umadvise/{name}" for name in catalogue} <= names


def test_torch_is_nobodys_hard_dependency(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    required = message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
    assert {re.split(r"[^\w-]", line)[0] for line in required if "extra ==" not in line} == {"msgspec", "numpy", "rich"}


def test_the_native_core_stands_alone(wheel: Path, tmp_path: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    library = archive.extract("umadvise/lib/libumadvise.so", tmp_path)
    header = archive.read("umadvise/include/umadvise.h").decode()
    (version,) = re.findall(r"#define UM_ABI_VERSION (\d+)u", header)
    assert ctypes.CDLL(library).um_abi_version() == int(version)
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    needed = {name.split(".so")[0] for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)}
    assert needed <= {"libstdc++", "libm", "libgcc_s", "libc", "libdl", "libpthread", "ld-linux-x86-64"}
