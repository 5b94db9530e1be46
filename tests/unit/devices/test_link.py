"""The charged link of the emulated device, from the catalogue to the clock; of the clock only lower bounds."""

import ctypes
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from umadvise import _native
from umadvise._native.abi import Memory, Placement
from umadvise._native.library import core_library
from umadvise._native.structures import filled, make
from umadvise.devices import catalogue
from umadvise.devices.link import driver_costs, native_link
from umadvise.devices.open_device import EmulatedDevice
from umadvise.errors import FormatError, NativeError, UsageError

MIB = 1 << 20
V100 = catalogue.load_device("v100-16gb")


@dataclass(frozen=True)
class Charged:
    """um_charged: how long the link and the driver would have been busy."""

    copy_ns: tuple[int, ...]
    driver_ns: int


def charged(device: _native.Device) -> Charged:
    return filled(Charged, lambda out: core_library().um_emulated_charged(device.handle, out))


@pytest.fixture
def device() -> Iterator[_native.Device]:
    opened = EmulatedDevice(capacity="32MiB", link="v100-16gb").open()
    yield opened
    opened.close()


def test_a_copy_takes_what_the_catalogue_says(device: _native.Device) -> None:
    address = device.allocate(8 * MIB, Placement(memory=Memory.DEVICE))
    before = charged(device)
    host = (ctypes.c_char * (8 * MIB))()
    start = time.perf_counter_ns()
    core_library().um_copy_from_host(address, ctypes.addressof(host), 8 * MIB)
    _native.copy_to_host(ctypes.addressof(host), address, 6 * MIB)
    took = time.perf_counter_ns() - start
    after = charged(device)
    expected = V100.transfer_ns("h2d", 8 * MIB), V100.transfer_ns("d2h", 6 * MIB)
    assert tuple(new - old for new, old in zip(after.copy_ns, before.copy_ns, strict=True)) == expected
    assert took >= sum(expected)
    _native.free(address)


def test_a_fault_is_charged_to_the_driver_and_the_link(device: _native.Device) -> None:
    address = device.allocate(2 * MIB, Placement())
    ctypes.memset(address, 1, 1)
    _native.prefetch(address, 2 * MIB, to_host=True)
    before = charged(device)
    assert ctypes.string_at(address, 1) == b"\1"  # a read by the device: the block comes back
    after = charged(device)
    costs = driver_costs(V100)
    assert after.copy_ns[0] - before.copy_ns[0] == V100.transfer_ns("h2d", 2 * MIB)
    assert after.driver_ns - before.driver_ns == costs.fault_ns + costs.migrate_ns
    assert device.counters().fault_service_ns >= costs.fault_ns
    _native.free(address)


def test_costs_of_a_block_are_made_of_the_catalogues() -> None:
    # 2.8 services of 15 + 5 us and 64 entries of 50 ns each; 30 us a service and 36 more records of 2.9 us to migrate.
    costs = driver_costs(V100)
    assert costs.fault_ns == pytest.approx(2.8 * (20_000 + 64 * 50), abs=1)
    assert costs.migrate_ns == pytest.approx(2.8 * 30_000 + 36 * 2_900, abs=1)
    assert costs.zero_ns == pytest.approx(2 * MIB / (0.7 * 900), abs=1)
    # A block that replaces another one: a measured 900 us on a V100 with PCIe3, uncertain by a factor of 2.
    both_ways = V100.transfer_ns("h2d", 2 * MIB) + V100.transfer_ns("d2h", 2 * MIB)
    assert 450_000 <= costs.fault_ns + costs.migrate_ns + costs.evict_ns + both_ways <= 1_800_000


def test_unknown_speed_of_both_directions_is_that_of_one() -> None:
    link = native_link(catalogue.load_device("v100-sxm2-power9-16gb"))
    assert tuple(link.both_bytes_per_s) == tuple(link.bytes_per_s) == (68e9, 68e9)


def test_nothing_is_charged_without_a_link() -> None:
    device = EmulatedDevice(capacity="16MiB").open()
    address = device.allocate(4 * MIB, Placement())
    ctypes.memset(address, 1, 4 * MIB)
    _native.prefetch(address, 4 * MIB, to_host=True)
    assert charged(device) == Charged(copy_ns=(0, 0), driver_ns=0)
    _native.free(address)
    device.close()


def test_a_link_that_is_not_there_is_refused_before_anything_opens(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="v100-16gb"):
        EmulatedDevice(link="v100-17gb").open()
    (tmp_path / "mine.toml").write_text("schema = 'umadvise.device/9'")
    with pytest.raises(FormatError, match=r"umadvise\.device/1"):
        EmulatedDevice(link=tmp_path / "mine.toml").open()


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan")])
def test_the_core_refuses_links_that_cannot_be(device: _native.Device, wrong: float) -> None:
    link = {"fixed_ns": (0, 0), "both_bytes_per_s": (1e9, 1e9), "engines": (1, 1)}
    costs = driver_costs(V100)
    with pytest.raises(NativeError, match="speeds"):
        device.set_link(make("um_link", **link, bytes_per_s=(1e9, wrong)), costs)
    costs.fault_ns = -1
    with pytest.raises(NativeError, match="costs"):
        device.set_link(make("um_link", **link, bytes_per_s=(1e9, 1e9)), costs)


def test_time_is_real_or_virtual(tmp_path: Path) -> None:
    device = EmulatedDevice(capacity="16MiB", clock="v100-16gb").open()
    assert device.keeps_time and device.link_profile == V100
    with pytest.raises(NativeError, match="its clock is set once"):
        device.set_clock(native_link(V100), driver_costs(V100))
    device.close()
    assert not EmulatedDevice(capacity="16MiB", link="v100-16gb").open().keeps_time
    with pytest.raises(UsageError, match="expected one of them"):
        EmulatedDevice(clock="v100-16gb", link="v100-16gb").open()
    unknown = tmp_path / "mine.toml"
    memory = replace(V100.memory, bytes_per_s=replace(V100.memory.bytes_per_s, value=None))
    unknown.write_bytes(catalogue.encode(replace(V100, memory=memory)))
    with pytest.raises(UsageError, match="memory bandwidth"):
        EmulatedDevice(clock=unknown).open()


def test_devices_of_a_host_divide_a_link() -> None:
    one = V100
    assert one.among(1) is one
    several = one.among(8)
    for way, shared in ((one.link.h2d, several.link.h2d), (one.link.d2h, several.link.d2h)):
        assert shared.bytes_per_s.value == way.bytes_per_s.value / 8
        assert shared.both_bytes_per_s.value == (way.both_bytes_per_s.value or 0) / 8
        assert shared.fixed_ns == way.fixed_ns
        assert "divided among 8 devices" in shared.bytes_per_s.source
    assert several.transfer_ns("h2d", 1 << 30) > 7 * one.transfer_ns("h2d", 1 << 30)
    assert catalogue.decode(catalogue.encode(several)) == several


def test_a_device_file_says_how_many_divide_it(tmp_path: Path) -> None:
    words = catalogue.encode(V100).decode()
    said = words.replace("shared_by = {", 'shared_by = { value = 2, source = "one switch for two" } #')
    (tmp_path / "pair.toml").write_text(said)
    pair = catalogue.load_device(tmp_path / "pair.toml")
    assert pair.among(8) == pair.among(2) != pair
    assert pair.among(8).bandwidth_h2d == pair.bandwidth_h2d / 2


def test_an_emulated_device_of_several_ranks_has_its_part_of_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    device = EmulatedDevice("16MiB", link="v100-16gb")
    whole = device.link_profile()
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    part = device.link_profile()
    assert whole is not None
    assert part == whole.among(4)
