import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
import warm_processes

from umadvise.records.fault_profile import read

EXAMPLE = Path(__file__).parents[2] / "examples" / "bert_large.py"
SMALL = ("--size", "small", "--seq-length", "64", "--steps", "3")
# At least the weights, their gradients and AdamW's two moments, at four bytes a number.
NEEDED_BYTES = 4 * 4 * 28_000_000


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([warm_processes.python(), str(EXAMPLE), *words], capture_output=True, text=True, check=False)


def train(folder: Path, *words: str) -> dict[str, Any]:
    """The row of a run that ended well."""
    result = run(*words, *SMALL, "--json", str(folder / "row.json"))
    assert result.returncode == 0, result.stderr
    row: dict[str, Any] = json.loads((folder / "row.json").read_text())
    assert [line.split()[4] for line in result.stdout.splitlines()] == [f"({loss})" for loss in row["losses_hex"]]
    return row


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return train(tmp_path_factory.mktemp("plain"), "--no-unified", "--device", "cpu")


def test_plain_training_learns(plain: dict[str, Any]) -> None:
    losses = [float.fromhex(loss) for loss in plain["losses_hex"]]
    # Random weights know nothing: every one of the 30522 words is about equally likely.
    assert losses[0] == pytest.approx(math.log(30522), abs=0.5)
    assert losses[2] < losses[0]
    assert plain["peak_bytes"] > NEEDED_BYTES
    assert plain["counters"] is None


@pytest.mark.long
def test_another_process_gets_the_same_losses(plain: dict[str, Any], tmp_path: Path) -> None:
    assert train(tmp_path, "--no-unified", "--device", "cpu")["losses_hex"] == plain["losses_hex"]


def test_unified_memory_trains_in_a_third_with_the_same_losses(plain: dict[str, Any], tmp_path: Path) -> None:
    capacity_bytes = NEEDED_BYTES // 3
    profile = tmp_path / "profile.json"
    row = train(
        tmp_path,
        *("--device", "emulated", "--capacity", str(capacity_bytes), "--report", str(profile)),
        *("--parameter-advice=preferredlocation", "--input-advice=readmostly", "--intermediate-advice=prefetch"),
    )
    assert row["losses_hex"] == plain["losses_hex"]
    assert 0 < row["peak_bytes"] <= capacity_bytes
    # What does not fit comes back at least once a step.
    missing_bytes = NEEDED_BYTES - capacity_bytes
    assert sum(row["counters"]["bytes_h2d"].values()) > missing_bytes
    assert sum(row["counters"]["bytes_d2h"].values()) > missing_bytes
    assert read(profile).step_count == 3


def test_swapping_trains_in_two_thirds_with_the_same_losses(plain: dict[str, Any], tmp_path: Path) -> None:
    capacity_bytes = NEEDED_BYTES * 2 // 3  # its largest op takes three times its largest layer
    profile = tmp_path / "profile.json"
    row = train(
        tmp_path,
        *("--policy", "swap", "--device", "emulated", "--capacity", str(capacity_bytes)),
        *("--clock", "v100-16gb", "--report", str(profile)),
    )
    assert row["losses_hex"] == plain["losses_hex"]
    assert 0 < row["peak_bytes"] <= capacity_bytes
    _, second, third = (step.times for step in read(profile).steps)
    assert second is not None and third is not None
    assert 0 < second.compute_ns == third.compute_ns  # by the card's clock: this machine's never repeats
    assert [rung["rung"] for rung in row["rungs"]] == ["swap"]
    missing_bytes = NEEDED_BYTES - capacity_bytes
    assert row["swaps"]["bytes_h2d"] > missing_bytes
    assert row["swaps"]["bytes_d2h"] > missing_bytes


@pytest.mark.long
def test_without_unified_memory_a_third_is_too_little_and_the_message_says_so(tmp_path: Path) -> None:
    row = tmp_path / "row.json"
    words = ("--no-unified", "--device", "emulated", "--capacity", str(NEEDED_BYTES // 3))
    result = run(*words, *SMALL, "--json", str(row))
    assert result.returncode == 1
    error = json.loads(row.read_text())["error"]
    assert result.stderr == f"out of memory: {error}\n"
    assert "Traceback" not in result.stderr
    assert "Use unified memory" in error


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--device", "cpu"], "unified memory needs a device of its own"),
        (["--policy", "swap", "--device", "cpu"], "unified memory needs a device of its own"),
        (["--no-unified", "--device", "cpu", "--seq-length", "513"], "--seq-length must be 3 to 512"),
        (["--matrix", "--steps", "1", "--device", "emulated"], "--matrix compares unified memory over two steps"),
        (["--report", "x.json", "--no-unified"], "--report needs unified memory"),
        (["--clock", "v100-16gb", "--device", "cpu", "--no-unified"], "--clock needs --device emulated"),
        (["--parameter-advice", "fast"], "invalid choice: 'fast'"),
    ],
)
def test_bad_options_are_refused(words: list[str], complaint: str) -> None:
    result = run(*words)
    assert result.returncode == 2
    assert complaint in result.stderr
