"""`umadvise doctor`: its trials, what follows from what was found, and the report."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_nvml import GIB

from umadvise.doctor import trials
from umadvise.doctor.examine import PAGING, SWAPPING, abilities
from umadvise.doctor.records import Ability, Check, Diagnosis
from umadvise.reports.reporters import doctor

# ---- trials ---------------------------------------------------------------------------------------------------------


def test_a_tensor_lives_on_the_emulated_device() -> None:
    found = trials.run("emulated")
    assert found["error"] is None
    assert "cuMemAllocManaged" in found["functions"]
    assert found["features"][PAGING] is None
    assert found["features"][SWAPPING] is None
    assert trials.check_trial("emulated", found).ok


def test_a_trial_that_fails_or_dies_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for text, says in (
        ('echo \'{"error": "no CUDA device"}\'', "no CUDA device"),
        ("echo 'Traceback' >&2; echo 'boom' >&2; exit 3", "it ended with status 3: boom"),
        ("kill -SEGV $$", "it ended with signal 11: it said nothing"),
    ):
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        check = trials.check_trial("cuda", trials.run("cuda"))
        assert (check.state, check.found) == ("missing", says)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    assert "cannot be started" in trials.run("cuda")["error"]

    def slow(*_arguments: Any, **_named: Any) -> None:
        raise subprocess.TimeoutExpired("python", trials.TIMEOUT_S)

    monkeypatch.setattr(subprocess, "run", slow)
    assert trials.run("cuda")["error"] == "it did not end within 120 s"


def test_a_trial_on_a_gpu_in_words() -> None:
    found = {
        "error": None,
        "functions": {"cuMemAdvise": None, "cuMemDiscardBatchAsync": "cuMemDiscardBatchAsync needs CUDA 13.0"},
        "features": {PAGING: None, SWAPPING: "no chunks here"},
        "auto_budget_bytes": 8 * GIB,
        "no_auto_budget": None,
        "unsampled": "another profiler is active",
    }
    check = trials.check_trial("cuda", found)
    assert 'budget="auto" is 8.00 GiB now' in check.found
    assert "lacks 1 functions that umadvise does without: cuMemDiscardBatchAsync needs CUDA 13.0" in check.found
    assert check.facts["unsampled"] == "another profiler is active"
    assert check.facts[SWAPPING] == "no chunks here"
    crowded = {**found, "auto_budget_bytes": None, "no_auto_budget": "others have it all", "functions": {}}
    assert trials.check_trial("cuda", crowded).found.endswith("; others have it all")


# ---- what follows ---------------------------------------------------------------------------------------------------


def well(**changes: Check) -> dict[str, Check]:
    names = (
        "system",
        "native core",
        "PyTorch",
        "torch extension",
        "driver",
        "GPU 0, unified memory",
        "GPU 0, swapping",
        "CUPTI",
        "trial, emulated",
        "trial, GPU",
    )
    checks = {name: Check(name=name, state="ok", found="x86_64", facts={"cuda": "13.0"}) for name in names}
    return checks | {check.name: check for check in changes.values()}


def failing(checks: dict[str, Check]) -> dict[str, str | None]:
    return {ability.name: ability.because for ability in abilities(checks) if not ability.works}


GPU_WORK = [
    "train on a GPU in unified memory",
    "keep a budget on a GPU, with advice and prefetches",
    "swap explicitly on a GPU",
    "count page faults on a GPU",
]


def test_where_all_is_well_everything_works() -> None:
    assert failing(well()) == {}
    assert len(abilities(well())) == 7


@pytest.mark.parametrize(
    ("check", "names"),
    [
        (Check(name="driver", state="missing", found="none"), GPU_WORK),
        (Check(name="GPU 0, unified memory", state="missing", found="none"), GPU_WORK),
        (Check(name="trial, GPU", state="missing", found="none"), GPU_WORK),
        (Check(name="PyTorch", state="ok", found="without CUDA", facts={"cuda": None}), GPU_WORK),
        (Check(name="PyTorch", state="limited", found="too new", facts={"cuda": "13.0"}), GPU_WORK),
        (Check(name="GPU 0, unified memory", state="limited", found="none"), [GPU_WORK[1]]),
        (Check(name="GPU 0, swapping", state="missing", found="none"), [GPU_WORK[2]]),
        (Check(name="CUPTI", state="missing", found="none"), [GPU_WORK[3]]),
        (Check(name="trial, GPU", state="ok", found="", facts={"unsampled": "denied"}), [GPU_WORK[3]]),
        (Check(name="trial, GPU", state="ok", found="", facts={PAGING: "no"}), [GPU_WORK[1]]),
        (Check(name="trial, GPU", state="ok", found="", facts={SWAPPING: "no"}), [GPU_WORK[2]]),
        (Check(name="trial, emulated", state="missing", found="none"), ["train on the emulated device"]),
        (Check(name="torch extension", state="missing", found="none"), ["train on the emulated device", *GPU_WORK]),
        (
            Check(name="PyTorch", state="missing", found="none"),
            ["record a model's steps without running it", "train on the emulated device", *GPU_WORK],
        ),
    ],
)
def test_what_is_missing_takes_with_it_what_needs_it(check: Check, names: list[str]) -> None:
    assert list(failing(well(changed=check))) == names


def test_without_the_core_nothing_works() -> None:
    missing = Check(name="native core", state="missing", found="not there")
    assert len(failing(well(changed=missing))) == 7


def test_an_emulated_device_that_was_not_tried_does_not_work() -> None:
    checks = well(system=Check(name="system", state="limited", found="Linux 6.8, aarch64"))
    del checks["trial, emulated"]
    assert failing(checks) == {"train on the emulated device": "Linux 6.8, aarch64"}


# ---- the report -----------------------------------------------------------------------------------------------------

DIAGNOSIS = Diagnosis(
    umadvise_version="0.1.0",
    system="Linux 6.8 x86_64",
    checks=(
        Check(name="Python", state="ok", found="3.11.2"),
        Check(
            name="driver",
            state="missing",
            found="no NVIDIA driver: libcuda.so.1: cannot open shared object file",
            remedy="install the NVIDIA driver",
            facts={"kernel_module": None},
        ),
    ),
    abilities=(Ability("plan", True), Ability("train on a GPU", False, "driver: no NVIDIA driver")),
)

REPORT = """\
umadvise 0.1.0 on Linux 6.8 x86_64

ok       Python                 3.11.2
missing  driver                 no NVIDIA driver: libcuda.so.1: cannot
                                open shared object file
                                -> install the NVIDIA driver

What works here
yes      plan
no       train on a GPU: driver: no NVIDIA driver
"""


def test_the_report_word_for_word() -> None:
    assert doctor.render(DIAGNOSIS, 72) == REPORT


def test_the_report_as_data() -> None:
    data = json.loads(msgspec.json.encode(DIAGNOSIS))
    assert data["schema"] == "umadvise.doctor/1"
    assert data["checks"][1]["facts"] == {"kernel_module": None}
    assert data["abilities"][0] == {"name": "plan", "works": True, "because": None}
