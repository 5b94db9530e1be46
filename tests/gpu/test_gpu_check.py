"""tools/gpu_check as far as that goes without a GPU: its dry run, and what it does when things fail."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
BUILT = CHECKOUT / "build" / "test"  # by `make test`, before it runs this


def gpu_check(output: Path, *words: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """Exit code and record."""
    command = [sys.executable, str(CHECKOUT / "tools" / "gpu_check"), "--output", str(output), *words]
    finished = subprocess.run(command, env={**os.environ, **environment}, check=False, capture_output=True, text=True)
    assert finished.stdout == f"{output}\n", finished.stderr
    return finished.returncode, json.loads(output.read_text())


def test_a_dry_run_passes_every_stage(tmp_path: Path) -> None:
    stages = ["environment", "hooks", "tests", "bert", "costs"]
    words = ["--dry-run"]
    if BUILT.exists():
        stages.insert(1, "build")
        words += ["--build-directory", str(BUILT)]
    status, record = gpu_check(tmp_path / "record.json", *words, "--stages", ",".join(stages))
    assert [(stage["name"], stage["reason"]) for stage in record["stages"]] == [(name, None) for name in stages]
    assert status == 0
    assert (record["schema"], record["dry_run"]) == ("umadvise.gpu_check/1", True)
    data = {stage["name"]: stage["data"] for stage in record["stages"]}
    assert data["bert"]["vanilla_repeats"]
    assert len(data["bert"]["rows"]) == 5
    counters = data["bert"]["rows"]["unified, best advice, a third"]["counters"]
    assert counters["bytes_d2h"]["user"] > 0  # the budget sends pages away,
    assert counters["fault_groups"] > counters["first_touches"]  # and ops fetch them back
    assert [size["bytes"] for size in data["costs"]["by_size"]] == sorted(s["bytes"] for s in data["costs"]["by_size"])


def test_a_stage_that_fails_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    words = ["--stages", "environment,build,costs", "--build-directory", str(tmp_path / "build")]
    status, record = gpu_check(tmp_path / "record.json", *words, CUDA_VISIBLE_DEVICES="", PATH="")
    assert status == 3
    reasons = {stage["name"]: stage["reason"] for stage in record["stages"] if not stage["passed"]}
    assert set(reasons) == {"environment", "build", "costs"}
    assert "sees no CUDA device" in reasons["environment"]
    assert reasons["build"].startswith("cmake cannot be started")
    assert "no CUDA device can be used here" in reasons["costs"]


def test_an_unknown_stage_is_a_usage_error(tmp_path: Path) -> None:
    command = [sys.executable, str(CHECKOUT / "tools" / "gpu_check"), "--stages", "everything"]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert finished.returncode == 2
    assert "no such stage: everything; expected some of environment," in finished.stderr


@pytest.fixture
def recording() -> ModuleType:
    specification = importlib.util.spec_from_file_location("record", CHECKOUT / "tools" / "gpu_check" / "record.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["record"] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


def test_a_command_is_stopped_with_what_it_started(recording: ModuleType, tmp_path: Path) -> None:
    check = recording.Check(tmp_path, tmp_path, tmp_path, True)
    check.stage_ends_s = time.monotonic() + 1.0
    child = "import subprocess, sys; print('begun', flush=True); subprocess.run(['sleep', '1000'])"
    with pytest.raises(recording.StageError, match="the stage's time is up"):
        check.run([sys.executable, "-c", child])
    assert check.output[1] == "begun\n"


def test_half_a_record_is_never_seen(recording: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    recording.write({"stages": [1]}, path)
    with pytest.raises(TypeError):
        recording.write({"stages": {1, 2}}, path)
    assert json.loads(path.read_text()) == {"stages": [1]}
