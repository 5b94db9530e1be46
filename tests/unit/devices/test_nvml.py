"""NVML's answers, and its absence, through a stand-in for nvidia-ml-py."""

import inspect
import sys
import types
from typing import Any

import pynvml
import pytest
from fake_nvml import GIB, SLOTS, fake_nvml

from umadvise.devices import nvml, probe
from umadvise.errors import NvmlUnavailableError

LINK = ("generation", "width", "max_generation", "max_width")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(**functions: Any) -> Any:
        module = fake_nvml(**functions)
        monkeypatch.setitem(sys.modules, "pynvml", module)
        return module

    return install


def card(opened: nvml.Nvml) -> nvml.Card:
    found = opened.card_at(SLOTS[1])
    assert found is not None
    return found


def test_a_card_tells_memory_link_and_neighbours(install: Any) -> None:
    module = install()
    with nvml.opened() as opened:
        assert opened.driver_version() == "595.45.04"
        h200 = card(opened)
        assert h200.name == "NVIDIA H200"
        assert h200.memory() == nvml.CardMemory(140 * GIB, 100 * GIB)
        assert h200.link() == dict(zip(LINK, (1, 16, 5, 16), strict=True))
        assert h200.processes() == [nvml.Process(70, 39 * GIB), nvml.Process(71, None)]
        assert h200.in_mig_mode() is False
        assert h200.virtualization() is None
        assert module.running == 1
    assert module.running == 0


def test_what_the_card_sends_goes_to_the_host(install: Any) -> None:
    install()
    with nvml.opened() as opened:
        assert card(opened).throughput() == {"h2d_bytes_per_s": 1_000_000, "d2h_bytes_per_s": 250_000}


def test_cards_in_the_order_of_their_slots(install: Any) -> None:
    install()
    with nvml.opened() as opened:
        assert [each.name for each in opened.cards()] == ["NVIDIA T4", "NVIDIA H200"]
        assert opened.card_at("00000000:99:00.0") is None


def test_what_is_not_supported_is_unknown(install: Any) -> None:
    install(
        nvmlDeviceGetMemoryInfo=None,
        nvmlDeviceGetCurrPcieLinkGeneration=None,
        nvmlDeviceGetPcieThroughput=None,
        nvmlDeviceGetComputeRunningProcesses=None,
        nvmlDeviceGetMigMode=None,
        nvmlDeviceGetVirtualizationMode=None,
        nvmlDeviceGetName=None,
        nvmlSystemGetDriverVersion=None,
    )
    with nvml.opened() as opened:
        h200 = card(opened)
        unknown = (h200.memory(), h200.processes(), h200.in_mig_mode(), h200.virtualization())
        assert unknown == (None,) * 4
        assert h200.throughput() == {"h2d_bytes_per_s": None, "d2h_bytes_per_s": None}
        assert (h200.name, opened.driver_version()) == (None, None)
        assert h200.link() == dict(zip(LINK, (None, 16, 5, 16), strict=True))


def test_an_older_package_lacks_functions(install: Any) -> None:
    module = install()
    del module.nvmlDeviceGetMigMode
    with nvml.opened() as opened:
        assert card(opened).in_mig_mode() is None


@pytest.mark.parametrize(
    ("mode", "word"), [(0, None), (1, "passthrough"), (2, "vgpu"), (3, "host of vGPUs"), (9, "mode 9")]
)
def test_virtualization_in_words(install: Any, mode: int, word: str | None) -> None:
    install(nvmlDeviceGetVirtualizationMode=mode)
    with nvml.opened() as opened:
        assert card(opened).virtualization() == word


@pytest.mark.parametrize("name", [name for name in vars(fake_nvml()) if name.startswith("nvml")])
def test_the_real_package_takes_what_the_stand_in_takes(name: str) -> None:
    real = inspect.unwrap(getattr(pynvml, name))
    counts = {"nvmlDeviceGetPcieThroughput": 2, "nvmlDeviceGetMaxClockInfo": 2}
    per_card = int(name.startswith("nvmlDevice") and name != "nvmlDeviceGetCount")
    inspect.signature(real).bind(*range(counts.get(name, per_card)))


def test_the_real_packages_numbers_are_ours() -> None:
    assert (pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES) == (nvml._SENT, nvml._RECEIVED)
    assert (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM) == (probe._CORE_CLOCK, probe._MEMORY_CLOCK)
    modes = {"NONE": 0, "PASSTHROUGH": 1, "VGPU": 2, "HOST_VGPU": 3, "HOST_VSGA": 4}
    assert {word: getattr(pynvml, f"NVML_GPU_VIRTUALIZATION_MODE_{word}") for word in modes} == modes
    assert set(nvml._VIRTUALIZATION) == set(modes.values())
    assert pynvml.NVML_FEATURE_ENABLED == 1


def test_a_missing_package_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlUnavailableError, match="pip install nvidia-ml-py"), nvml.opened():
        pass


def test_another_package_of_that_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", types.ModuleType("pynvml"))
    with pytest.raises(NvmlUnavailableError, match="another package calls itself pynvml"), nvml.opened():
        pass


def test_no_driver_is_a_reason(install: Any) -> None:
    module = install(nvmlInit=None)
    with pytest.raises(NvmlUnavailableError, match="NVML does not start: Not Supported"), nvml.opened():
        pass
    assert module.running == 0


def test_a_driver_that_lists_no_cards(install: Any) -> None:
    install(nvmlDeviceGetCount=None)
    with nvml.opened() as opened:
        assert opened.cards() == []


def test_it_ends_after_an_error(install: Any) -> None:
    module = install()
    with pytest.raises(ZeroDivisionError), nvml.opened():
        raise ZeroDivisionError
    assert module.running == 0
