"""`umadvise doctor` as a command: on a machine where everything is missing, and on one whose driver is a stand-in."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import stand_ins
from stand_ins import CHECKOUT

PROGRAM = """
import sys
from pathlib import Path
from umadvise.__main__ import main
from umadvise.doctor import machine
machine.ROOT = Path(sys.argv.pop(1))
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment without compiler and compiled extension, whose driver and CUPTI cannot be loaded."""
    libraries = tmp_path / "lib"
    libraries.mkdir()
    for name in ("libcuda.so.1", "libcupti.so.12", "libcupti.so.13"):
        (libraries / name).write_text("no library")
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
    return {
        **environment,
        "PATH": "",
        "LD_LIBRARY_PATH": str(libraries),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")]),
    }


def doctor(environment: dict[str, str], root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, for a machine whose kernel shows the files under a root."""
    command = [sys.executable, "-c", PROGRAM, str(root), "doctor", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_machine_without_anything_is_told_what_still_works(bare: dict[str, str], tmp_path: Path) -> None:
    finished = doctor(bare, tmp_path / "nothing", "--json")
    assert (finished.returncode, finished.stderr) == (0, "")
    diagnosis = json.loads(finished.stdout)
    checks = {check["name"]: check for check in diagnosis["checks"]}
    for name, word in {
        "GPU": "no NVIDIA GPU",
        "driver": "libcuda.so.1",
        "CUPTI": "libcupti.so",
        "C++ compiler": "was not found",
    }.items():
        assert checks[name]["state"] == "missing", name
        assert word in checks[name]["found"], name
        assert checks[name]["remedy"], name
    abilities = {ability["name"]: ability for ability in diagnosis["abilities"]}
    works = [name for name, ability in abilities.items() if ability["works"]]
    assert works == ["plan, simulate, compare and report", "record a model's steps without running it"]
    assert all(ability["because"] for ability in abilities.values() if not ability["works"])


def test_the_same_in_words(bare: dict[str, str], tmp_path: Path) -> None:
    finished = doctor(bare, tmp_path / "nothing")
    assert (finished.returncode, finished.stderr) == (0, "")
    lines = finished.stdout.splitlines()
    missing = {line[9:].split("  ")[0] for line in lines if line.startswith("missing")}
    assert missing == {"GPU", "driver", "CUPTI", "C++ compiler", "torch extension"}
    assert "yes      plan, simulate, compare and report" in lines


def test_driver_and_cupti_are_asked_through_the_core(tmp_path: Path) -> None:
    folders = [stand_ins.libcuda_folder(), stand_ins.cupti(13).parent]
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, folders))}
    diagnosis: dict[str, Any] = json.loads(doctor(environment, tmp_path / "nothing", "--json").stdout)
    checks = {check["name"]: check for check in diagnosis["checks"]}
    assert checks["driver"]["state"] == "ok"
    assert "128.00 MiB" in checks["GPU 0"]["found"]
    assert checks["GPU 0, unified memory"]["state"] == checks["GPU 0, swapping"]["state"] == "ok"
    assert checks["CUPTI"]["state"] == "ok"
    assert checks["CUPTI"]["facts"]["version"] >= 130000
    assert checks["trial, emulated"]["state"] == "ok"
    because = {ability["name"]: ability["because"] for ability in diagnosis["abilities"]}
    assert "built without CUDA" in because["train on a GPU in unified memory"]
