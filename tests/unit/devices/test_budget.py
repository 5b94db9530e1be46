"""budget="auto": by hand, from what a driver and NVML say is free."""

import importlib.metadata
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_nvml import GIB, SLOTS, fake_nvml

import umadvise
from umadvise import _native
from umadvise.devices import budget, nvml
from umadvise.devices.cuda_attributes import Attribute, pci_address
from umadvise.errors import BudgetError, InvalidSizeError, NativeError

MIB = 1 << 20


class OnCuda:
    """A device of 140 GiB that says it is CUDA's, with so much free, and so much of ours on it."""

    def __init__(self, device: _native.Device, free_bytes: int, resident_bytes: int = 0) -> None:
        self.info = lambda: replace(
            device.info(), provider="cuda", ordinal=0, total_bytes=140 * GIB, free_bytes=free_bytes
        )
        self.memory = lambda: msgspec.structs.replace(device.memory(), resident_bytes=resident_bytes)


@pytest.fixture(autouse=True)
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the driver is not there."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(budget, "pci_address", lambda _ordinal: None)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def card(free_bytes: int, **functions: Any) -> None:
        memory = nvml.CardMemory(140 * GIB, free_bytes)
        module = fake_nvml(**functions)
        monkeypatch.setitem(sys.modules, "pynvml", module)
        monkeypatch.setattr(budget, "pci_address", lambda _ordinal: SLOTS[1])
        monkeypatch.setattr(nvml.Card, "memory", lambda _: memory)

    return card


def on(device: Any) -> int | None:
    return budget.budget_on(device, "auto")


def test_the_reserve_is_a_sixteenth_and_at_least_256_mib() -> None:
    assert budget.reserve_bytes(140 * GIB) == 140 * GIB // 16
    assert budget.reserve_bytes(2 * GIB) == 256 * MIB


def test_auto_is_what_is_free_less_the_reserve(device: _native.Device) -> None:
    assert on(OnCuda(device, 100 * GIB)) == 100 * GIB - 8960 * MIB
    assert on(OnCuda(device, 100 * GIB + 12345)) == 100 * GIB - 8960 * MIB  # in whole blocks of 2 MiB


def test_what_we_have_there_already_counts_as_free(device: _native.Device) -> None:
    assert on(OnCuda(device, 90 * GIB, resident_bytes=10 * GIB)) == 100 * GIB - 8960 * MIB
    # What is known of residency on CUDA is an upper bound: never more than is in use there.
    assert on(OnCuda(device, 130 * GIB, resident_bytes=100 * GIB)) == 140 * GIB - 8960 * MIB


def test_the_smaller_of_cuda_and_nvml_counts(device: _native.Device, card: Callable[..., None]) -> None:
    card(60 * GIB)
    assert on(OnCuda(device, 100 * GIB)) == 60 * GIB - 8960 * MIB
    assert on(OnCuda(device, 50 * GIB)) == 50 * GIB - 8960 * MIB


def test_too_little_names_who_has_it(device: _native.Device, card: Callable[..., None]) -> None:
    card(8 * GIB)
    with pytest.raises(BudgetError) as raised:
        on(OnCuda(device, 8 * GIB))
    message = str(raised.value)
    assert "8.00 GiB of 140.00 GiB free (process 70 39.00 GiB, process 71 -)" in message
    assert "8.75 GiB are left to others" in message
    assert "give a budget in bytes" in message


@pytest.mark.parametrize("broken", [{"nvmlInit": None}, {"nvmlDeviceGetHandleByPciBusId": None}])
def test_without_nvml_cudas_word_counts(
    device: _native.Device, card: Callable[..., None], broken: dict[str, Any]
) -> None:
    card(1 * GIB, **broken)
    assert on(OnCuda(device, 100 * GIB)) == 100 * GIB - 8960 * MIB
    with pytest.raises(BudgetError, match=r"140\.00 GiB free, and"):
        on(OnCuda(device, 1 * GIB))


def test_the_emulated_device_is_nobodys_neighbour(device: _native.Device) -> None:
    assert on(device) is None


def test_budgets_are_read(device: _native.Device) -> None:
    assert [budget.parse_budget(given) for given in (None, "auto", " AUTO ", "2GiB", 7)] == [
        None,
        "auto",
        "auto",
        2 * GIB,
        7,
    ]
    assert budget.budget_on(device, 7) == 7
    with pytest.raises(InvalidSizeError):
        budget.parse_budget("automatic")
    for nothing in (0, "0", "0 GiB"):
        with pytest.raises(InvalidSizeError, match=r"0 bytes holds no tensor: give at least 4\.00 MiB"):
            budget.parse_budget(nothing)


def test_sessions_and_patch_take_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(budget, "_auto", lambda device: 32 * MIB if device.info().provider == "emulated" else None)
    umadvise.patch(umadvise.EmulatedDevice(capacity="64MiB"), budget="auto")
    try:
        assert umadvise.torch_seam.runtime.current().limit_bytes == 32 * MIB
        with umadvise.session(torch.nn.Linear(2, 2), budget="16MiB", policy="advise"):
            assert umadvise.torch_seam.runtime.current().limit_bytes == 16 * MIB
        with umadvise.session(torch.nn.Linear(2, 2), budget="auto", policy="advise"):
            assert umadvise.torch_seam.runtime.current().session_budget_bytes == 32 * MIB
        assert umadvise.torch_seam.runtime.current().session_budget_bytes is None
    finally:
        umadvise.unpatch()
    device = umadvise.EmulatedDevice(capacity="64MiB")
    with umadvise.session(torch.nn.Linear(2, 2), device=device, budget="auto", policy="advise"):
        assert umadvise.torch_seam.runtime.current().limit_bytes == 32 * MIB


# ---- the slot of a device ------------------------------------------------------------------------------------------


def test_a_slot_is_written_as_nvml_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {Attribute.PCI_DOMAIN_ID: 1, Attribute.PCI_BUS_ID: 0x41, Attribute.PCI_DEVICE_ID: 0x1F}
    monkeypatch.setattr(_native, "cuda_attribute", lambda _ordinal, attribute: values[attribute])
    assert pci_address(0) == "00000001:41:1f.0"


def test_attributes_have_the_numbers_of_cuda_h() -> None:
    files = importlib.metadata.files("nvidia-cuda-runtime") or []
    header = Path(str(next(file for file in files if file.name == "cuda.h").locate())).read_text()
    for attribute in Attribute:
        assert re.search(rf"\bCU_DEVICE_ATTRIBUTE_{attribute.name}\s*=\s*{attribute.value}\b", header), attribute


def test_a_driver_that_does_not_tell_leaves_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_ordinal: int, _attribute: int) -> int:
        raise NativeError(2, "no CUDA device can be used")

    monkeypatch.setattr(_native, "cuda_attribute", fail)
    assert pci_address(0) is None
