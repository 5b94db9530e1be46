import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "bert_large.py"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(EXAMPLE), *words], capture_output=True, text=True, check=False)


def test_plain_training_repeats_to_the_last_bit_and_learns(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for name in ("first.json", "again.json"):
        result = run(
            *("--no-unified", "--device", "cpu", "--size", "small", "--seq-length", "64", "--steps", "3"),
            *("--json", str(tmp_path / name)),
        )
        assert result.returncode == 0, result.stderr
        rows.append(json.loads((tmp_path / name).read_text()))
        assert result.stdout.count("\n") == 3
        assert all(hexadecimal in result.stdout for hexadecimal in rows[-1]["losses_hex"])
    assert rows[0]["losses_hex"] == rows[1]["losses_hex"]
    losses = [float.fromhex(loss) for loss in rows[0]["losses_hex"]]
    # Random weights know nothing: every one of the 30522 words is about equally likely.
    assert losses[0] == pytest.approx(math.log(30522), abs=0.5)
    assert losses[2] < losses[0]
    # At least the weights, their gradients and AdamW's two moments, at four bytes a number.
    assert rows[0]["peak_bytes"] > 4 * 4 * 28_000_000
    assert rows[0]["counters"] is None


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--device", "cpu"], "unified memory needs a device of its own"),
        (["--no-unified", "--device", "cpu", "--seq-length", "513"], "--seq-length must be 3 to 512"),
        (["--matrix", "--steps", "1", "--device", "emulated"], "--matrix compares unified memory over two steps"),
        (["--report", "x.json", "--no-unified"], "--report needs unified memory"),
        (["--parameter-advice", "fast"], "invalid choice: 'fast'"),
    ],
)
def test_bad_options_are_refused(words: list[str], complaint: str) -> None:
    result = run(*words)
    assert result.returncode == 2
    assert complaint in result.stderr
