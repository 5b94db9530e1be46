"""What `umadvise doctor` says of drivers, GPUs and those who can watch them: all of them stand-ins."""

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doctor_machines import OPEN_MODULE, card, make_machine
from fake_nvml import GIB, fake_nvml

from umadvise import _native
from umadvise._native.abi import CudaDevice, CuptiLibrary
from umadvise.devices.cuda_attributes import Attribute
from umadvise.doctor import gpu, profiling, witness
from umadvise.doctor.records import Check
from umadvise.errors import NativeError, UmadviseError

# ---- driver ---------------------------------------------------------------------------------------------------------

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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
    files: dict[str, str],
    remedy: str,
) -> None:
    monkeypatch.setattr(_native, "cuda_unavailable_reason", lambda: reason)
    check = gpu.check_driver(make_machine(tmp_path, files))
    assert (check.state, check.found) == ("missing", reason)
    assert remedy in (check.remedy or "")


def test_without_the_core_the_driver_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise UmadviseError("the native core is missing")

    monkeypatch.setattr(_native, "cuda_unavailable_reason", fail)
    assert gpu.check_driver(make_machine(tmp_path)).remedy == "see the native core"


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


def test_a_driver_that_works(tmp_path: Path, drive: Callable[..., None]) -> None:
    drive(count=2)
    check = gpu.check_driver(make_machine(tmp_path, {"proc/driver/nvidia/version": OPEN_MODULE}))
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
        ("GPU 0, swapping", {}, "ok", "chunks work"),
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


# ---- who can watch --------------------------------------------------------------------------------------------------


def test_cupti_its_absence_and_its_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> CuptiLibrary:
        raise NativeError(2, "no CUPTI found (libcupti.so.13: no such file): install the package nvidia-cuda-cupti")

    monkeypatch.setattr(_native, "cupti_library", fail)
    check = profiling.check_cupti(make_machine(tmp_path))
    assert check.state == "missing"
    assert check.found.startswith("no CUPTI found (libcupti.so.13: no such file); counters of page faults")
    assert check.remedy == "install the package nvidia-cuda-cupti"
    monkeypatch.setattr(_native, "cupti_library", lambda: CuptiLibrary("/opt/libcupti.so.13", 130000))
    check = profiling.check_cupti(make_machine(tmp_path))
    assert (check.state, check.found) == ("ok", "/opt/libcupti.so.13, API 130000")
    check = profiling.check_cupti(make_machine(tmp_path, {"dev/nvidiactl": ""}))
    assert (check.state, check.facts["fault_counters_node"]) == ("limited", False)
    assert "/dev/nvidia-uvm-tools is missing or closed to this user" in check.found
    assert profiling.check_cupti(make_machine(tmp_path, {"dev/nvidia-uvm-tools": ""})).ok
    restricted = make_machine(tmp_path, {"proc/driver/nvidia/params": "RmProfilingAdminOnly: 1\n"})
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
