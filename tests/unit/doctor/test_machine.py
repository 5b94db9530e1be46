"""What `umadvise doctor` says of a machine and of what is installed there."""

import sys
from pathlib import Path

import pytest
from doctor_machines import OPEN_MODULE, card, make_machine

from umadvise import _native
from umadvise.doctor import software
from umadvise.doctor.machine import check_cards, check_memory, check_system
from umadvise.errors import HooksUnavailableError

# ---- machine --------------------------------------------------------------------------------------------------------


def test_a_linux_machine_is_well(tmp_path: Path) -> None:
    check = check_system(make_machine(tmp_path, {"proc/version": "Linux version 6.8 (gcc)"}))
    assert (check.state, check.found, check.remedy) == ("ok", "Linux 6.8, x86_64", None)


@pytest.mark.parametrize(
    ("names", "files", "says"),
    [
        ({"system": "Darwin"}, {}, "umadvise's core is for Linux"),
        ({"architecture": "aarch64"}, {}, "the emulated device is for x86-64"),
        ({}, {"proc/version": "Linux version 6.8 (Microsoft@WSL2)"}, "Windows (WSL)"),
        ({}, {"dev/dxg": ""}, "Windows (WSL)"),
    ],
)
def test_other_systems_are_told(tmp_path: Path, names: dict[str, str], files: dict[str, str], says: str) -> None:
    check = check_system(make_machine(tmp_path, files, **names))
    assert check.state == "limited"
    assert says in check.found
    assert check.remedy


def test_gpus_are_seen_without_a_driver(tmp_path: Path) -> None:
    audio, intel = card("01:00.1", kind="0x040300"), card("00:02.0", vendor="0x8086")
    machine = make_machine(tmp_path, card("01:00.0") | card("41:00.0") | audio | intel)
    assert check_cards(machine).found == "2 from NVIDIA on the PCI bus"


def test_no_gpu_is_missing_with_a_way_on(tmp_path: Path) -> None:
    check = check_cards(make_machine(tmp_path))
    assert (check.state, check.found) == ("missing", "no NVIDIA GPU on this machine")
    assert "emulated device" in (check.remedy or "")


def test_under_wsl_the_bus_says_nothing(tmp_path: Path) -> None:
    assert check_cards(make_machine(tmp_path, {"dev/dxg": ""})).state == "ok"


@pytest.mark.parametrize(
    ("meminfo", "state", "found"),
    [
        ("MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n", "ok", "4.00 GiB of 8.00 GiB available"),
        ("MemTotal: 8388608 kB\nMemAvailable: 1048576 kB\n", "limited", "1.00 GiB of 8.00 GiB available"),
        ("", "ok", "- of - available"),
    ],
)
def test_host_memory(tmp_path: Path, meminfo: str, state: str, found: str) -> None:
    check = check_memory(make_machine(tmp_path, {"proc/meminfo": meminfo}))
    assert (check.state, check.found) == (state, found)


def test_the_kernel_module_and_its_options(tmp_path: Path) -> None:
    bare = make_machine(tmp_path)
    assert (bare.kernel_module, bare.profiling_needs_admin, bare.has_device_nodes) == (None, None, False)
    files = {
        "proc/driver/nvidia/version": OPEN_MODULE,
        "proc/driver/nvidia/params": "EnableMSI: 1\nRmProfilingAdminOnly: 1\n",
        "dev/nvidiactl": "",
    }
    machine = make_machine(tmp_path, files)
    assert (machine.kernel_module, machine.profiling_needs_admin) == ("595.45.04 (open)", True)
    assert machine.has_device_nodes


# ---- software -------------------------------------------------------------------------------------------------------


def test_this_python_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    assert software.check_python().ok
    monkeypatch.setattr(sys, "version_info", (3, 10))
    assert software.check_python().remedy == "use Python 3.11 or newer"


def test_the_core_is_there_or_its_place_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert software.check_core().found.endswith("libumadvise.so")
    monkeypatch.setenv("UMADVISE_LIBRARY", "/no/such/libumadvise.so")
    check = software.check_core()
    assert check.state == "missing"
    assert "/no/such/libumadvise.so" in check.found
    assert "reinstall" in (check.remedy or "")


@pytest.mark.parametrize(
    ("cuda", "driver", "state", "says"),
    [
        (None, None, "ok", "built without CUDA"),
        (None, 13000, "limited", "built without CUDA"),
        ("13.0", 13000, "ok", "built for CUDA 13.0"),
        ("12.8", 13000, "ok", "built for CUDA 12.8"),
        ("13.0", 12080, "limited", "and the driver supports CUDA 12.8"),
        ("13.0", None, "ok", "built for CUDA 13.0"),
    ],
)
def test_torch_and_the_driver_go_together(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, driver: int | None, state: str, says: str
) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", cuda)
    check = software.check_torch(driver)
    assert check.state == state
    assert says in check.found
    assert check.facts == {"version": torch.__version__, "cuda": cuda}


def test_without_torch_planning_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    check = software.check_torch(None)
    assert check.state == "missing"
    assert "pip install torch" in (check.remedy or "")


def test_a_compiler_and_its_absence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert software.check_compiler().ok
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    check = software.check_compiler()
    assert check.state == "missing"
    assert "'c++' was not found" in check.found
    assert "apt install g++" in (check.remedy or "")


def test_the_extension_is_compiled_and_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "it loads" in software.check_extension().found

    def fail() -> Path:
        raise HooksUnavailableError("it needs a compiler, and there is none. Install one or set CXX")

    monkeypatch.setattr(_native, "hooks_path", fail)
    check = software.check_extension()
    assert (check.state, check.found) == ("missing", "it needs a compiler, and there is none")
    assert check.remedy == "Install one or set CXX"


def test_where_files_cannot_be_locked_the_extension_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umadvise._hooks.loader", None)
    for check in (software.check_compiler(), software.check_extension()):
        assert check.state == "missing"
        assert "for Linux" in check.found


def test_scipy_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    assert software.check_scipy().ok

    def missing(name: str) -> str:
        raise software.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(software.importlib.metadata, "version", missing)
    assert software.check_scipy().remedy == "pip install scipy"
