"""The link of a device is measured within the memory that a loop may use."""

from collections.abc import Callable

import pytest

from umadvise import _native
from umadvise._native.abi import Memory, Placement
from umadvise.training.plans import device as plans_device
from umadvise.training.plans.device import planning_device

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """No device of this process has been measured."""
    monkeypatch.setattr(plans_device, "_measured", {})


def test_copies_stay_within_the_loops_memory(open_device: Callable[..., _native.Device]) -> None:
    device = open_device(256 * MIB)
    device.reset_memory_peaks()
    planned = planning_device(device, 16 * MIB)
    assert planned.profile.label.endswith("measured")
    peak_bytes = device.memory().resident_peak_bytes or 0
    assert 0 < peak_bytes <= 16 * MIB


def test_a_full_device_is_measured_once_a_loop_has_more_memory(open_device: Callable[..., _native.Device]) -> None:
    device = open_device(256 * MIB)
    device.allocate(15 * MIB, Placement(memory=Memory.DEVICE))
    assert not planning_device(device, 16 * MIB).profile.label.endswith("measured")
    assert (device.memory().resident_peak_bytes or 0) <= 16 * MIB
    assert planning_device(device, 32 * MIB).profile.label.endswith("measured")
