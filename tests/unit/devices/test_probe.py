"""Measuring a device: the fit of its link, what a made-up NVML tells, and the command."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import fake_nvml
from hypothesis import given
from hypothesis import strategies as st

from umadvise import _native
from umadvise.__main__ import main
from umadvise._native.abi import DeviceInfo
from umadvise.devices import catalogue
from umadvise.devices.probe import SIZES_BYTES, fit, probe
from umadvise.records.device import DeviceProfile


@given(st.floats(0, 1e5), st.floats(1e8, 1e12))
def test_a_link_without_noise_is_found_exactly(fixed_ns: float, bytes_per_s: float) -> None:
    times = [fixed_ns + size / bytes_per_s * 1e9 for size in SIZES_BYTES]
    found_ns, found = fit(SIZES_BYTES, times)
    assert found == pytest.approx(bytes_per_s, rel=1e-6)
    assert found_ns == pytest.approx(fixed_ns, rel=1e-6, abs=1e-3)


@given(st.lists(st.floats(1e3, 1e9), min_size=len(SIZES_BYTES), max_size=len(SIZES_BYTES)))
def test_any_measurement_gives_a_possible_link(times: list[float]) -> None:
    fixed_ns, bytes_per_s = fit(SIZES_BYTES, sorted(times))
    assert 0 <= fixed_ns < min(times)
    assert bytes_per_s > 0


class _Device:
    """A device with an H200's name and a link without noise."""

    def __init__(self, **changes: Any) -> None:
        self._info = dataclasses.replace(
            DeviceInfo(
                name="NVIDIA H200",
                provider="cuda",
                ordinal=0,
                driver_version=13000,
                concurrent_managed=1,
                pageable_access=None,
                total_bytes=150_000_000_000,
                free_bytes=0,
                counting=1,
                live_allocations=0,
            ),
            **changes,
        )

    def info(self) -> DeviceInfo:
        return self._info

    def measure_link(self, size_bytes: int, copies: int, *, h2d: bool, d2h: bool) -> tuple[int | None, int | None]:
        assert copies > 0
        speeds = (50, 40) if not (h2d and d2h) else (30, 45)  # the second is more than alone: noise
        h2d_ns, d2h_ns = (1000 + round(size_bytes / speed) for speed in speeds)
        return h2d_ns if h2d else None, d2h_ns if d2h else None


def _probed(device: Any) -> DeviceProfile:
    found = probe(device)
    assert catalogue.decode(catalogue.encode(found)) == found
    return found


def test_the_link_is_measured_and_the_rest_is_asked_offake_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    found = _probed(_Device())
    assert (found.name, found.link.kind, found.memory_bytes) == ("nvidia-h200", "pcie5-x16", 150_000_000_000)
    assert found.link.h2d.fixed_ns.value == found.link.d2h.fixed_ns.value == 1000
    assert (found.bandwidth_h2d, found.bandwidth_d2h) == pytest.approx((50e9, 40e9), rel=1e-3)
    assert found.link.h2d.both_bytes_per_s.value == pytest.approx(30e9, rel=1e-3)
    assert found.link.d2h.both_bytes_per_s.value == found.bandwidth_d2h
    assert found.memory_bytes_per_s == pytest.approx(4.917e12, rel=1e-3)  # 4.8 TB/s in the data sheet
    assert found.peak("fp32") is None
    assert found.peak("bf16") is None
    assert found.pages_managed_memory
    assert not found.coherent


@pytest.mark.parametrize("coherent", [0, 1])
def test_the_driver_tells_whether_it_is_coherent(monkeypatch: pytest.MonkeyPatch, coherent: int) -> None:
    attributes = {100: coherent, 50: 0, 33: 0x41, 34: 0}
    monkeypatch.setattr(_native, "cuda_attribute", lambda _ordinal, number: attributes[number])
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlDeviceGetName="renamed"))
    found = _probed(_Device())
    assert found.coherent == bool(coherent)
    assert found.link.kind == "pcie5-x16"  # by its slot, whatever it is called


def test_what_nobody_tells_is_unknown_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    found = _probed(_Device(concurrent_managed=None))
    assert found.memory_bytes_per_s is None
    assert "pip install nvidia-ml-py" in found.memory.bytes_per_s.source
    assert found.unified_memory.supported.value is None
    assert not found.pages_managed_memory

    def fail() -> None:
        raise module.NVMLError("Driver Not Loaded")

    module: Any = fake_nvml(nvmlInit=fail)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert "Driver Not Loaded" in _probed(_Device()).memory.bytes_per_s.source
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    assert _probed(_Device(name="NVIDIA B300")).memory_bytes_per_s is None


def test_arithmetic_is_cores_times_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlDeviceGetNumGpuCores=lambda _: 16896))
    assert _probed(_Device()).peak("fp32") == pytest.approx(67e12, rel=0.01)  # the data sheet's


def test_the_emulated_device_is_measured_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "here.toml"
    assert main(["devices", "--probe", "--device", "emulated", "-o", str(path)]) == 0
    output = capsys.readouterr()
    assert output.out == ""
    assert str(path) in output.err
    here = catalogue.load_device(path)
    assert here.memory_bytes == 2 << 30
    assert here.peak("fp32") is None
    assert main(["devices", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["peak_flops"]["fp32"]["value"] is None
    assert shown["link"]["h2d"]["bytes_per_s"]["value"] == here.bandwidth_h2d > 0


@pytest.mark.parametrize("words", [["k40", "--probe"], ["-o", "x.toml"], ["--device", "emulated"]])
def test_words_that_do_not_go_together_are_bad_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", *words]) == 2
    assert "--probe" in capsys.readouterr().err
