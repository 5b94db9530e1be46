"""The device catalogue against the sources' table, and against files that are not what they should be."""

import itertools
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umadvise.devices import catalogue
from umadvise.devices.catalogue import device_names, load_device
from umadvise.errors import FormatError, PolicyError, UmadviseError, UsageError
from umadvise.records.device import DeviceProfile

# name, GiB, GB/s, fp32, tf32, bf16, fp16 in TFLOP/s, GB/s to the device and back: NVIDIA's data sheets, and the middle
# of published copy speeds.
TABLE = [
    ("k40", 12, 288, 4.29, None, None, None, 12.0, 12.8),
    ("p100-pcie-16gb", 16, 732, 9.3, None, None, 18.7, 11.4, 12.8),
    ("p100-sxm2-16gb", 16, 732, 10.6, None, None, 21.2, 12.0, 12.8),
    ("v100-pcie-16gb", 16, 900, 14, None, None, 112, 12.4, 12.8),
    ("v100-sxm2-power9-16gb", 16, 900, 15.7, None, None, 125, 68, 68),
    ("v100-sxm2-power9-32gb", 32, 900, 15.7, None, None, 125, 68, 68),
    ("gtx-1080-ti", 11, 484, 11.3, None, None, None, 12.0, 12.8),
    ("rtx-6000-24gb", 24, 672, 16.3, None, None, 130.5, 12.0, 12.8),
    ("a100-40gb", 40, 1555, 19.5, 156, 312, 312, 25.4, 25.5),
    ("a100-pcie-80gb", 80, 1935, 19.5, 156, 312, 312, 25.4, 25.5),
    ("a100-sxm-80gb", 80, 2039, 19.5, 156, 312, 312, 25.4, 25.5),
    ("rtx-3090", 24, 936, 35.6, 35.6, 71, 71, 25.2, 26.7),
    ("rtx-4090", 24, 1008, 82.6, 82.6, 165.2, 165.2, 25.2, 26.7),
    ("rtx-5090", 32, 1792, 104.8, 104.8, 209.5, 209.5, 55.3, 55.0),
    ("l4", 24, 300, 30.3, 60, 121, 121, 25.4, 25.5),
    ("h100-pcie-80gb", 80, 2000, 51, 378, 756, 756, 55.3, 55.0),
    ("h100-sxm-80gb", 80, 3350, 67, 494.5, 989, 989, 55.7, 55.3),
    ("h200-sxm-141gb", 141, 4800, 67, 494.5, 989, 989, 55.3, 55.0),
    ("gh200-96gb", 96, 4000, 67, 494.5, 989, 989, 360, 297),
    ("gh200-144gb", 144, 4800, 67, 494.5, 989, 989, 360, 297),
    ("b200", 180, 8000, 80, 1125, 2250, 2250, 55.3, 55.0),
]
V100 = catalogue.directory() / "v100-pcie-16gb.toml"
GTX = catalogue.directory() / "gtx-1080-ti.toml"


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_the_numbers_are_those_of_the_sources(row: tuple[Any, ...]) -> None:
    name, gib, gb_per_s, fp32, tf32, bf16, fp16, h2d, d2h = row
    device = load_device(name)
    assert device.name == name
    assert device.memory_bytes == gib << 30
    assert device.memory_bytes_per_s == pytest.approx(gb_per_s * 1e9)
    for dtype, expected in (("fp32", fp32), ("tf32", tf32), ("bf16", bf16), ("fp16", fp16)):
        assert device.peak(dtype) == (None if expected is None else pytest.approx(expected * 1e12))
    assert (device.bandwidth_h2d, device.bandwidth_d2h) == pytest.approx((h2d * 1e9, d2h * 1e9))
    assert device.coherent == ("power9" in name or name.startswith("gh200"))
    assert device.system_page_bytes == (65536 if device.coherent else 4096)
    assert device.pages_managed_memory == (name != "k40")


def test_the_catalogue_has_these_devices_and_no_others() -> None:
    assert set(device_names()) == {row[0] for row in TABLE}


def test_every_name_and_alias_means_one_device() -> None:
    names = [word for name in device_names() for word in (name, *load_device(name).aliases)]
    assert len(names) == len(set(names))
    assert load_device("v100-16gb") is load_device("v100-pcie-16gb")
    assert load_device(str(V100)) == load_device("v100-pcie-16gb")


@pytest.mark.parametrize("name", device_names())
def test_every_device_comes_back_from_a_file_of_its_own(name: str) -> None:
    device = load_device(name)
    document = catalogue.encode(device)
    assert catalogue.decode(document) == device
    assert tomllib.loads(document.decode())["memory"]["bytes"]["source"] == device.memory.bytes.source


@pytest.mark.parametrize("name", device_names())
@pytest.mark.parametrize("written", [False, True], ids=["by hand", "by encode"])
def test_a_truncated_file_is_refused(name: str, written: bool) -> None:
    whole = (catalogue.directory() / f"{name}.toml").read_bytes()
    if written:
        whole = catalogue.encode(load_device(name))
    lines = list(itertools.accumulate(len(line) + 1 for line in whole.splitlines()))
    assert lines[-1] == len(whole)
    for end in {0, *range(1, len(whole) - 1, 97), *lines[:-1], *(line - 1 for line in lines[:-1]), len(whole) - 2}:
        with pytest.raises(FormatError):
            catalogue.decode(whole[:end])


_VALUES = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(), st.booleans(), st.text(max_size=8), st.lists(st.integers(), max_size=3)
)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_other_value_is_refused_or_makes_a_possible_device(data: st.DataObject) -> None:
    lines = V100.read_text().splitlines()
    index = data.draw(st.sampled_from([index for index, line in enumerate(lines) if " = " in line]))
    key, old = lines[index].split(" = ", 1)
    new = toml(data.draw(_VALUES))
    lines[index] = f"{key} = " + (
        old.replace(old.split("value = ")[1].split(",")[0], new)
        if "value = " in old and data.draw(st.booleans())
        else new
    )
    _refused_or_possible("\n".join(lines).encode())


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_or_make_a_possible_device(data: st.DataObject) -> None:
    document = bytearray(V100.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(document)))
        end = min(len(document), start + data.draw(st.integers(0, 40)))
        document[start:end] = data.draw(st.binary(max_size=40))
    _refused_or_possible(bytes(document))


def _refused_or_possible(document: bytes) -> None:
    try:
        device = catalogue.decode(document)
    except FormatError:
        return
    assert 0 < device.usable_bytes <= device.memory_bytes
    assert device.transfer_ns("h2d", 1 << 30) <= device.transfer_ns("h2d", 1 << 31)
    assert device.transfer_ns("d2h", 1 << 30) <= device.transfer_ns("d2h", 1 << 30, both=True)
    for bandwidth in (device.bandwidth_h2d, device.bandwidth_d2h, device.peak("fp32") or 1.0):
        assert 0 < bandwidth < math.inf


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, str):
        return '"' + "".join(c if c.isalnum() and c.isascii() else f"\\U{ord(c):08x}" for c in value) + '"'
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        (b"", "schema"),
        (b"\xff\xfe", "utf-8"),
        (b'schema = "umadvise.device/2"', "umadvise.device/1"),
        (b"schema = 1", "schema"),
        (b"x = " + b"9" * 1900, "no device file"),
        (b"x = " + b"[" * 1900, "no device file"),
        (b"\n".join([b"x = ", *[b"[" * 1900] * 20]), "no device file"),
        (b".".join([b"a"] * 20_000) + b" = 1", "2000 characters"),
        (b"a = 1\na = 2", "no device file"),
    ],
)
def test_hostile_files_are_refused(document: bytes, complaint: str) -> None:
    with pytest.raises(FormatError, match=complaint):
        catalogue.decode(document)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("value = 17179869184", "value = 1e10"),  # bytes are whole
        ("value = 17179869184", "value = 1000000"),  # less than what the driver keeps
        ("value = 17179869184", "value = 9223372036854775807"),
        ("value = 900.0e9", "value = nan"),
        ("value = 900.0e9", "value = inf"),
        ("value = 900.0e9", "value = -900e9"),
        ("value = 900.0e9", 'value = "900e9"'),
        ("value = 4096", "value = 5000"),
        ('kind = "pcie3-x16"', 'kind = "usb"'),  # no defaults, so the speeds are missing
        ('kind = "pcie3-x16"', "kind = []"),
        ('name = "v100-pcie-16gb"', 'name = "../../etc/passwd"'),
        ('label = "NVIDIA', 'label = "\\u001b[2JNVIDIA'),
        ("[link]", "[link.h2d]\nbytes_per_s = { value = 1e9, source = 's' }\n[link]"),  # slower than its share of both
        ("[link]", "[link.h2d]\nbytes_per_s = { value = 20e9 }\n[link]"),  # half a fact
        ("[link]", "[link.h2d]\nspeed = { value = 20e9, source = 's' }\n[link]"),
    ],
)
def test_an_impossible_value_is_refused(tmp_path: Path, old: str, new: str) -> None:
    text = V100.read_text()
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(FormatError, match=r"mine\.toml"):
        load_device(path)


def test_a_file_overrides_what_its_link_has(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        GTX.read_text().replace("[link]", "[link.h2d]\nbytes_per_s = { value = 20e9, source = 'mine' }\n[link]")
    )
    mine, theirs = load_device(path), load_device("gtx-1080-ti")
    assert mine.bandwidth_h2d == 20e9
    assert mine.link.h2d.fixed_ns == theirs.link.h2d.fixed_ns
    assert mine.link.d2h == theirs.link.d2h


def test_files_that_are_none_are_not_read(tmp_path: Path) -> None:
    huge = tmp_path / "huge.toml"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match="larger than any device file"):
        load_device(huge)
    with pytest.raises(UmadviseError, match="cannot read"):
        load_device(tmp_path / "missing.toml")
    with pytest.raises(UmadviseError, match="cannot read"):
        load_device("../k40")


@pytest.mark.parametrize(
    ("word", "hint"),
    [("v100-16", "v100-16gb"), ("h1000", "h100"), ("V100-16GB", "v100-16gb"), ("4090", "rtx-4090"), ("toaster", "k40")],
)
def test_an_unknown_name_lists_what_is_close(word: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        load_device(word)


def test_a_copy_takes_its_fixed_cost_and_its_bytes() -> None:
    device = load_device("v100-16gb")
    assert device.transfer_ns("h2d", 0) == 0
    assert device.transfer_ns("h2d", 12_400_000) == 2900 + 1_000_000
    assert device.transfer_ns("d2h", 12_800_000) == 2900 + 1_000_000
    assert device.transfer_ns("d2h", 11_300_000, both=True) == 2900 + 1_000_000
    power9 = load_device("v100-sxm2-power9-16gb")  # nobody measured both directions at once
    assert power9.transfer_ns("h2d", 1 << 30, both=True) == power9.transfer_ns("h2d", 1 << 30)


def test_a_device_without_page_faults_says_so() -> None:
    load_device("p100-16gb").require_unified_memory()
    with pytest.raises(PolicyError, match="Kepler"):
        load_device("k40").require_unified_memory()


def test_what_the_driver_keeps_does_not_fit() -> None:
    device = load_device("v100-16gb")
    assert device.fits(device.usable_bytes)
    assert not device.fits(16 << 30)


def test_uncertain_numbers_are_marked() -> None:
    k40: DeviceProfile = load_device("k40")
    assert k40.memory.bytes_per_s.uncertain
    assert not k40.memory.bytes.uncertain
    assert k40.unified_memory.costs.batch_ns.uncertain
    assert not k40.unified_memory.costs.fault_batch_max.uncertain
