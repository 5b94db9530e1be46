"""The host's memory is divided among the processes of a training."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from umadvise import _native
from umadvise.devices.open_device import EmulatedDevice, open_device
from umadvise.errors import NativeError


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    yield
    _native.share_host(1)


def available_bytes() -> int:
    with Path("/proc/meminfo").open() as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))


def test_each_rank_counts_on_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    half = EmulatedDevice(available_bytes() // 2)
    half.open().close()
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    with pytest.raises(NativeError, match="available; choose a smaller capacity"):
        open_device(half)
    open_device(EmulatedDevice("64MiB")).close()
