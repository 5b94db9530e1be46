"""`umadvise devices`: the catalogue as text and as data."""

import json

import pytest

from umadvise.__main__ import main
from umadvise.devices.catalogue import device_names, load_device


def test_the_list_has_a_line_for_every_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(device_names())]] == list(device_names())
    (k40,) = (line for line in lines if line.startswith("k40"))
    assert k40.split() == ["k40", "12", "288?", "4.29", "-", "-", "-", "pcie3-x16", "12", "/", "12.8", "no"]
    assert max(map(len, lines)) <= 110


def test_one_device_shows_every_number_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "v100-16gb"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert words.startswith("v100-pcie-16gb: NVIDIA Tesla V100 PCIe 16 GB also called v100-16gb,")
    assert "memory.bytes 16.00 GiB NVIDIA data sheet" in words
    assert "peak_flops.tf32 - tensor cores before Ampere take fp16 alone" in words
    assert "link.h2d.fixed_ns 2.90 us ? fitted to transfer records" in words


def test_json_has_a_schema_and_null_for_what_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["schema"] == "umadvise.devices/1"
    assert [each["name"] for each in listed["devices"]] == list(device_names())
    assert main(["devices", "k40", "--json"]) == 0
    device = json.loads(capsys.readouterr().out)
    assert device["schema"] == "umadvise.device/1"
    assert device["peak_flops"]["bf16"]["value"] is None
    assert device["link"]["h2d"]["bytes_per_s"]["value"] == load_device("k40").bandwidth_h2d


def test_a_device_that_is_not_there_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "v100-12gb"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "v100-16gb" in output.err
