"""`umadvise doctor`, thing by thing, on machines made of files and stand-ins."""

import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import GIB, SLOTS, Answer, fake_nvml

from umadvise import _native
from umadvise._abi import CudaDevice, CuptiLibrary
from umadvise.cuda_attributes import Attribute
from umadvise.doctor import gpu, profiling, software, trials, witness
from umadvise.doctor.examine import PAGING, SWAPPING, abilities
from umadvise.doctor.machine import Machine, check_cards, check_memory, check_system
from umadvise.doctor.records import Ability, Check, Diagnosis
from umadvise.errors import HooksUnavailableError, NativeError, UmadviseError
from umadvise.reporters import doctor

OPEN_MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release Build  (dvs-builder)\nGCC"


@pytest.fixture
def make_machine(tmp_path: Path) -> Callable[..., Machine]:
    """A machine whose kernel shows these files."""

    def make(files: dict[str, str] | None = None, **names: str) -> Machine:
        for path, text in (files or {}).items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return Machine(root=tmp_path, **{"system": "Linux", "release": "6.8", "architecture": "x86_64", **names})

    return make


def card(slot: str, vendor: str = "0x10de", kind: str = "0x030200") -> dict[str, str]:
    return {f"sys/bus/pci/devices/{slot}/{name}": f"{text}\n" for name, text in (("vendor", vendor), ("class", kind))}


# ---- machine -------------------------------------------------------------------------------------------------------


def test_a_linux_machine_is_well(make_machine: Callable[..., Machine]) -> None:
    check = check_system(make_machine({"proc/version": "Linux version 6.8 (gcc)"}))
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
def test_other_systems_are_told(
    make_machine: Callable[..., Machine], names: dict[str, str], files: dict[str, str], says: str
) -> None:
    check = check_system(make_machine(files, **names))
    assert check.state == "limited"
    assert says in check.found
    assert check.remedy


def test_gpus_are_seen_without_a_driver(make_machine: Callable[..., Machine]) -> None:
    audio, intel = card("01:00.1", kind="0x040300"), card("00:02.0", vendor="0x8086")
    machine = make_machine(card("01:00.0") | card("41:00.0") | audio | intel)
    assert check_cards(machine).found == "2 from NVIDIA on the PCI bus"


def test_no_gpu_is_missing_with_a_way_on(make_machine: Callable[..., Machine]) -> None:
    check = check_cards(make_machine())
    assert (check.state, check.found) == ("missing", "no NVIDIA GPU on this machine")
    assert "emulated device" in (check.remedy or "")


def test_under_wsl_the_bus_says_nothing(make_machine: Callable[..., Machine]) -> None:
    assert check_cards(make_machine({"dev/dxg": ""})).state == "ok"


@pytest.mark.parametrize(
    ("meminfo", "state", "found"),
    [
        ("MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n", "ok", "4.00 GiB of 8.00 GiB available"),
        ("MemTotal: 8388608 kB\nMemAvailable: 1048576 kB\n", "limited", "1.00 GiB of 8.00 GiB available"),
        ("", "ok", "- of - available"),
    ],
)
def test_host_memory(make_machine: Callable[..., Machine], meminfo: str, state: str, found: str) -> None:
    check = check_memory(make_machine({"proc/meminfo": meminfo}))
    assert (check.state, check.found) == (state, found)


def test_the_kernel_module_and_its_options(make_machine: Callable[..., Machine]) -> None:
    bare = make_machine()
    assert (bare.kernel_module, bare.profiling_needs_admin, bare.has_device_nodes) == (None, None, False)
    files = {
        "proc/driver/nvidia/version": OPEN_MODULE,
        "proc/driver/nvidia/params": "EnableMSI: 1\nRmProfilingAdminOnly: 1\n",
        "dev/nvidiactl": "",
    }
    machine = make_machine(files)
    assert (machine.kernel_module, machine.profiling_needs_admin) == ("595.45.04 (open)", True)
    assert machine.has_device_nodes


# ---- software ------------------------------------------------------------------------------------------------------


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


# ---- driver --------------------------------------------------------------------------------------------------------

NO_LIBRARY = "no NVIDIA driver: libcuda.so.1: cannot open shared object file"


@pytest.mark.parametrize(
    ("reason", "files", "remedy"),
    [
        (NO_LIBRARY, {}, "nothing to do without a GPU"),
        (NO_LIBRARY, card("01:00.0"), "install the NVIDIA driver, CUDA 12.2"),
        (NO_LIBRARY, {"proc/driver/nvidia/version": OPEN_MODULE}, "--gpus all"),
        (NO_LIBRARY, {"dev/dxg": ""}, "install NVIDIA's driver in Windows"),
        ("the NVIDIA driver is too old: it supports CUDA 11.8", {}, "update the NVIDIA driver"),
        ("cuInit failed: this libcuda is the toolkit's link-time stub", {}, "lib64/stubs"),
        ("cuInit failed: libcuda and the kernel driver differ in version", {}, "reboot"),
        ("the driver sees no device (is CUDA_VISIBLE_DEVICES empty?)", {}, "unset CUDA_VISIBLE_DEVICES"),
        (
            "cuInit failed: unknown error",
            {"proc/driver/nvidia/version": OPEN_MODULE},
            "let this user open /dev/nvidiactl",
        ),
        ("cuInit failed: unknown error", {}, "run nvidia-smi"),
    ],
)
def test_a_driver_that_cannot_be_used_has_a_remedy(
    make_machine: Callable[..., Machine],
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
    files: dict[str, str],
    remedy: str,
) -> None:
    monkeypatch.setattr(_native, "cuda_unavailable_reason", lambda: reason)
    check = gpu.check_driver(make_machine(files))
    assert (check.state, check.found) == ("missing", reason)
    assert remedy in (check.remedy or "")


def test_without_the_core_the_driver_is_not_asked(
    make_machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> str:
        raise UmadviseError("the native core is missing")

    monkeypatch.setattr(_native, "cuda_unavailable_reason", fail)
    assert gpu.check_driver(make_machine()).remedy == "see the native core"


class Driver:
    """A driver with devices that are called the same, whose attributes are these; the rest are 0."""

    def __init__(self, count: int = 1, name: str = "NVIDIA H200", **values: int | None) -> None:
        self.count = count
        self.name = name
        self.values: dict[str, int | None] = {
            "COMPUTE_CAPABILITY_MAJOR": 9,
            "MANAGED_MEMORY": 1,
            "CONCURRENT_MANAGED_ACCESS": 1,
            "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 1,
            "PCI_BUS_ID": 0x41,
            **values,
        }

    def device(self, ordinal: int) -> CudaDevice:
        if ordinal >= self.count:
            raise NativeError(2, "no such device")
        return CudaDevice(self.name, 13000, self.count, 140 * GIB)

    def attribute(self, _ordinal: int, attribute: int) -> int | None:
        return self.values.get(Attribute(attribute).name, 0)


@pytest.fixture
def drive(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def drive(nvml: types.ModuleType | None = None, **options: Any) -> None:
        driver = Driver(**options)
        monkeypatch.setattr(_native, "cuda_unavailable_reason", lambda: None)
        monkeypatch.setattr(_native, "cuda_device", driver.device)
        monkeypatch.setattr(_native, "cuda_attribute", driver.attribute)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)

    return drive


def devices() -> dict[str, Check]:
    return {check.name: check for check in gpu.check_devices()}


def test_a_driver_that_works(make_machine: Callable[..., Machine], drive: Callable[..., None]) -> None:
    drive(count=2)
    check = gpu.check_driver(make_machine({"proc/driver/nvidia/version": OPEN_MODULE}))
    assert check.found == "supports CUDA 13.0, kernel module 595.45.04 (open); 2 devices"
    assert check.facts == {"kernel_module": "595.45.04 (open)", "driver_version": 13000, "devices": 2}


def test_a_whole_gpu_is_well(drive: Callable[..., None]) -> None:
    drive(fake_nvml(nvmlDeviceGetComputeRunningProcesses=[]))
    checks = devices()
    assert list(checks) == [
        "GPU 0",
        "GPU 0, unified memory",
        "GPU 0, swapping",
        "GPU 0, sharing",
        "GPU 0, link",
        "GPU 0, free memory",
    ]
    assert {check.state for check in checks.values()} == {"ok"}
    assert checks["GPU 0"].found == "NVIDIA H200, 140.00 GiB, compute capability 9.0"
    assert checks["GPU 0"].facts["concurrent_managed_access"] == 1
    assert checks["GPU 0, link"].found == "PCIe 1 x16 now, 5 x16 at most; 1 MB/s to the device, 0 to the host"
    assert checks["GPU 0, free memory"].found == "100.00 GiB of 140.00 GiB"


@pytest.mark.parametrize(
    ("which", "values", "state", "says"),
    [
        ("GPU 0", {"INTEGRATED": 1}, "limited", "its memory is the host's"),
        ("GPU 0, unified memory", {"MANAGED_MEMORY": 0}, "missing", "attribute 83"),
        ("GPU 0, unified memory", {"CONCURRENT_MANAGED_ACCESS": 0}, "limited", "a budget is refused"),
        (
            "GPU 0, unified memory",
            {"PAGEABLE_MEMORY_ACCESS": 1, "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES": 1},
            "ok",
            "coherent",
        ),
        ("GPU 0, unified memory", {"PAGEABLE_MEMORY_ACCESS": 1}, "ok", "HMM"),
        ("GPU 0, swapping", {"VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 0}, "missing", "attribute 102"),
        ("GPU 0, swapping", {}, "ok", "cannot stay accessible (attribute 141)"),
        ("GPU 0, swapping", {"HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 1}, "ok", "stays accessible"),
        ("GPU 0, swapping", {"HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": None}, "ok", "cannot stay accessible"),
    ],
)
def test_attributes_in_words(
    drive: Callable[..., None], which: str, values: dict[str, int | None], state: str, says: str
) -> None:
    drive(**values)
    check = devices()[which]
    assert check.state == state
    assert says in check.found
    assert check.remedy or check.ok


@pytest.mark.parametrize(
    ("which", "functions", "state", "says"),
    [
        ("sharing", {"nvmlDeviceGetMigMode": [1, 1]}, "limited", "a MIG instance"),
        ("sharing", {"nvmlDeviceGetVirtualizationMode": 2}, "limited", "a virtual GPU"),
        ("sharing", {"nvmlDeviceGetVirtualizationMode": 1}, "ok", "the whole GPU (passthrough)"),
        ("link", {"nvmlDeviceGetCurrPcieLinkWidth": 4}, "limited", "PCIe 1 x4 now, 5 x16 at most"),
        ("link", {"nvmlDeviceGetCurrPcieLinkGeneration": 3}, "limited", "PCIe 3 x16 now"),
        ("link", {"nvmlDeviceGetMaxPcieLinkWidth": None}, "ok", "no PCIe link"),
        ("link", {"nvmlDeviceGetPcieThroughput": None}, "ok", "PCIe 1 x16 now, 5 x16 at most"),
        ("free memory", {"nvmlDeviceGetMemoryInfo": None}, "ok", "NVML does not tell"),
        ("free memory", {}, "limited", "process 70: 39.00 GiB, process 71: -"),
    ],
)
def test_what_nvml_tells_in_words(
    drive: Callable[..., None], which: str, functions: dict[str, Any], state: str, says: str
) -> None:
    drive(fake_nvml(**functions))
    check = devices()[f"GPU 0, {which}"]
    assert check.state == state
    assert says in check.found
    assert check.remedy or check.ok


def test_a_narrow_slot_tells_what_it_costs(drive: Callable[..., None]) -> None:
    drive(fake_nvml(nvmlDeviceGetCurrPcieLinkWidth=4))
    assert "4 times as long" in (devices()["GPU 0, link"].remedy or "")


@pytest.mark.parametrize("nvml", [None, fake_nvml(nvmlDeviceGetHandleByPciBusId=None), fake_nvml(nvmlInit=None)])
def test_without_nvml_there_is_less_to_tell(drive: Callable[..., None], nvml: Any) -> None:
    drive(nvml)
    assert list(devices()) == ["GPU 0", "GPU 0, unified memory", "GPU 0, swapping"]


def test_a_mig_instance_is_known_by_its_name(drive: Callable[..., None]) -> None:
    drive(None, name="NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    assert "a MIG instance" in devices()["GPU 0, sharing"].found


def test_a_device_that_fails_leaves_the_others(drive: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    drive(count=2)
    good = _native.cuda_device

    def second_fails(ordinal: int) -> CudaDevice:
        if ordinal == 1:
            raise NativeError(5, "asking for the device's name failed")
        return good(ordinal)

    monkeypatch.setattr(_native, "cuda_device", second_fails)
    checks = devices()
    assert checks["GPU 0"].ok
    assert (checks["GPU 1"].state, checks["GPU 1"].found) == ("missing", "asking for the device's name failed")


# ---- who can watch -------------------------------------------------------------------------------------------------


def test_cupti_its_absence_and_its_permissions(
    make_machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> CuptiLibrary:
        raise NativeError(2, "no CUPTI found (libcupti.so.13: no such file): install the package nvidia-cuda-cupti")

    monkeypatch.setattr(_native, "cupti_library", fail)
    check = profiling.check_cupti(make_machine())
    assert check.state == "missing"
    assert check.found.startswith("no CUPTI found (libcupti.so.13: no such file); counters of page faults")
    assert check.remedy == "install the package nvidia-cuda-cupti"
    monkeypatch.setattr(_native, "cupti_library", lambda: CuptiLibrary("/opt/libcupti.so.13", 130000))
    check = profiling.check_cupti(make_machine())
    assert (check.state, check.found) == ("ok", "/opt/libcupti.so.13, API 130000")
    restricted = make_machine({"proc/driver/nvidia/params": "RmProfilingAdminOnly: 1\n"})
    check = profiling.check_cupti(restricted)
    assert check.state == "limited"
    assert "NVreg_RestrictProfilingToAdminUsers=0" in (check.remedy or "")


def test_nvml_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert profiling.check_nvml(has_driver=True).remedy == "pip install nvidia-ml-py"
    assert profiling.check_nvml(has_driver=False).remedy == "nothing to do without a GPU"
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlInit=None))
    assert profiling.check_nvml(has_driver=True).remedy == "see the driver"
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    assert profiling.check_nvml(has_driver=True).found.startswith("driver 595.45.04")


class CudaPython(types.ModuleType):
    """cuda.bindings.driver for one device: calls give a code and an answer."""

    def __init__(self, attributes: dict[int, int], **ranges: Any) -> None:
        super().__init__("cuda.bindings.driver")
        self._attributes = attributes
        self._ranges = ranges
        self.code = 0

    def cuInit(self, _flags: int) -> tuple[int]:  # noqa: N802
        return (self.code,)

    def cuDeviceGet(self, ordinal: int) -> tuple[int, int | None]:  # noqa: N802
        return (0, ordinal) if ordinal == 0 else (101, None)

    def CUdevice_attribute(self, number: int) -> int:  # noqa: N802
        if number not in self._attributes:
            raise ValueError(number)
        return number

    def cuDeviceGetAttribute(self, attribute: int, _device: int) -> tuple[int, int]:  # noqa: N802
        return 0, self._attributes[attribute]

    def CUmem_range_attribute(self, number: int) -> int:  # noqa: N802
        return number

    def CUdeviceptr(self, address: int) -> int:  # noqa: N802
        return address

    def cuMemRangeGetAttribute(self, _size: int, attribute: int, _at: int, _bytes: int) -> tuple[int, Any]:  # noqa: N802
        return 0, self._ranges[f"range_{attribute}"]


@pytest.fixture
def cuda_python(monkeypatch: pytest.MonkeyPatch) -> Callable[..., CudaPython]:
    def install(attributes: dict[int, int], **ranges: Any) -> CudaPython:
        module = CudaPython(attributes, **ranges)
        monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
        monkeypatch.setitem(sys.modules, "cuda.bindings", types.ModuleType("cuda.bindings"))
        monkeypatch.setitem(sys.modules, "cuda.bindings.driver", module)
        return module

    return install


def test_the_witness_agrees_or_says_where_not(
    drive: Callable[..., None], cuda_python: Callable[..., CudaPython]
) -> None:
    drive()
    cuda_python({83: 1, 89: 1, 18: 0})
    assert profiling.check_witness(has_driver=True).ok
    cuda_python({83: 1, 89: 0})
    check = profiling.check_witness(has_driver=True)
    assert check.state == "limited"
    assert "attribute 89 of GPU 0 is 1 here and 0 there" in check.found


def test_the_witness_is_optional(monkeypatch: pytest.MonkeyPatch, drive: Callable[..., None]) -> None:
    for name in ("cuda", "cuda.bindings", "cuda.bindings.driver"):
        monkeypatch.setitem(sys.modules, name, None)
    assert not witness.contradicts(1 << 40, 4096, 3, 1)
    assert "nothing to do" in (profiling.check_witness(has_driver=False).remedy or "")
    drive()
    assert profiling.check_witness(has_driver=True).remedy == "pip install cuda-bindings"


def test_the_witness_needs_a_driver(cuda_python: Callable[..., CudaPython], monkeypatch: pytest.MonkeyPatch) -> None:
    module = cuda_python({})
    module.code = 100
    with pytest.raises(UmadviseError, match="the driver answered 100"):
        witness.driver()

    def not_found(_flags: int) -> tuple[int]:
        raise RuntimeError('Failure finding "libcuda.so"\nin many places')

    monkeypatch.setattr(module, "cuInit", not_found)
    with pytest.raises(UmadviseError, match=r'cannot load the driver: Failure finding "libcuda\.so"$'):
        witness.driver()


def test_the_witness_tells_of_ranges(cuda_python: Callable[..., CudaPython]) -> None:
    cuda_python({}, range_2=0, range_3=[0])
    assert witness.range_attribute(1 << 40, 4096, 2) == 0
    assert witness.range_attribute(1 << 40, 4096, 3) == 0
    assert [witness.contradicts(1 << 40, 4096, 3, value) for value in (0, 1)] == [False, True]


# ---- trials --------------------------------------------------------------------------------------------------------


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


# ---- what follows --------------------------------------------------------------------------------------------------


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


# ---- the report ----------------------------------------------------------------------------------------------------

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
    data = json.loads(doctor.json(DIAGNOSIS))
    assert data["schema"] == "umadvise.doctor/1"
    assert data["checks"][1]["facts"] == {"kernel_module": None}
    assert data["abilities"][0] == {"name": "plan", "works": True, "because": None}


def test_the_made_up_card_is_in_the_slot_that_the_driver_names() -> None:
    assert SLOTS[1] == "00000000:41:00.0"
    assert Answer(pid=1).pid == 1
