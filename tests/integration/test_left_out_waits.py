"""UMADVISE_LEAVE_OUT_WAIT is for tests alone: nobody has it set and does not notice."""

import os
import subprocess

import pytest
import warm_processes

OPEN = "from umadvise.devices.open_device import EmulatedDevice; EmulatedDevice(capacity='64MiB').open().close()"


def opened(value: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if name != "UMADVISE_LEAVE_OUT_WAIT"}
    if value is not None:
        environment["UMADVISE_LEAVE_OUT_WAIT"] = value
    command = [warm_processes.python(), "-c", OPEN]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_a_device_says_that_a_wait_is_left_out() -> None:
    run = opened("chunk_taken")
    assert (run.returncode, run.stdout) == (0, "")
    expected = "umadvise: UMADVISE_LEAVE_OUT_WAIT is set, so results are wrong: it is for tests of umadvise; unset it\n"
    assert run.stderr == expected


def test_a_name_that_is_no_wait_opens_no_device() -> None:
    run = opened("chunk_taken_twice")
    assert run.returncode == 1
    last = run.stderr.splitlines()[-1]
    assert last.startswith("umadvise.errors.")
    expected = "UMADVISE_LEAVE_OUT_WAIT names no wait of umadvise_waits.h: it is for tests of umadvise; unset it"
    assert last.endswith(expected)


@pytest.mark.parametrize("value", [None, ""])
def test_without_it_nothing_is_said(value: str | None) -> None:
    run = opened(value)
    assert (run.returncode, run.stderr) == (0, "")
