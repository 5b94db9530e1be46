"""`umadvise fit` on a chain of layers whose memory can be worked out."""

import json
from pathlib import Path

import pytest

from umadvise.__main__ import main
from umadvise.commands.fit import _batches
from umadvise.errors import UsageError
from umadvise.training.plans.fit import Batches

MODULE = """
import torch
from torch import nn
from umadvise.recording.workload import training_step

def chain(batch, width=512, layers=4):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = torch.ones(batch, width)
    return training_step(model, optimizer, lambda net, x: net(x).square().mean(), samples, name="chain")

def empty(batch):
    return None
"""
MIB = 1 << 20


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A factory in the current directory: four layers of 1 MiB each, and 2 KiB a sample for each activation."""
    (tmp_path / "fit_chain.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "fit_chain:chain"


def fit(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["fit", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_what_is_asked_for() -> None:
    assert _batches("1..64") == Batches((1, 2, 4, 8, 16, 32, 64), searched=True)
    assert _batches("3..20") == Batches((3, 4, 8, 16, 20), searched=True)
    assert _batches("5..5") == Batches((5,), searched=True)
    assert _batches("8, 1,2") == Batches((1, 2, 8))
    for wrong in ("", "0", "0..4", "9..3", "1..", "a,b", "1..64,2", "-1", f"1..{1 << 30}"):
        with pytest.raises(UsageError, match="expected numbers from 1 to"):
            _batches(wrong)


def test_the_largest_is_found(chain: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Everything: weights and gradients, 8 MiB, and activations; in chunks a layer at a time does."""
    drawn = tmp_path / "fit.svg"
    card = ("--target", "rtx-4090", "--budget", "32MiB", "--rungs", "resident,swap", "--emulated")
    code, out, err = fit(capsys, chain, *card, "--batch", "256..8192", "--json", "--plot", str(drawn))
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["schema"] == "umadvise.fit/1"
    assert (report["workload"], report["device"], report["budget_bytes"]) == ("chain", "rtx-4090", 32 * MIB)
    resident, swap = (each["batch"] for each in report["largest"])
    shown = [each["batch"] for each in report["batches"]]
    assert shown == sorted({256, 512, 1024, 2048, 4096, 8192, resident, swap})
    for row in report["batches"]:
        on = {each["rung"]: each for each in row["rungs"]}
        assert (on["resident"]["problem"] is None) == (row["batch"] <= resident)
        assert (on["swap"]["problem"] is None) == (row["batch"] <= swap)
        assert row["peak_bytes"] <= 32 * MIB or row["batch"] > resident
        if on["resident"]["problem"] is None:
            assert on["resident"]["step_ns"] == row["unlimited_ns"] <= on["swap"]["step_ns"]
    assert resident < swap < 8192
    # An op with two activations in chunks of 2 MiB and its weight, beside what is small: 2 KiB a sample each.
    assert 2 * swap * 2048 <= 32 * MIB
    assert drawn.read_text().startswith("<svg ")
    few = fit(capsys, chain, *card, "--batch", f"{swap},{swap + swap // 10}", "--json")[1]
    assert [each["rungs"][1]["problem"] is None for each in json.loads(few)["batches"]] == [True, False]


def test_in_words(chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = fit(capsys, chain, "--target", "rtx-4090", "--budget", "64MiB", "--batch", "64,65536")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "chain in 64.00 MiB of rtx-4090, predicted"
    assert lines[1] == "Largest batch: 64 on resident, 65536 or more on advise, 65536 or more on window, 64 on swap"
    assert any(line.startswith("Batch 65536 on swap: aten::addmm of 0.0: no room") for line in lines)


def test_a_card_has_what_the_driver_leaves(chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    from umadvise.devices.catalogue import load_device

    profile = load_device("rtx-4090")
    out = fit(capsys, chain, "--target", "rtx-4090", "--batch", "1", "--rungs", "resident", "--json")[1]
    assert json.loads(out)["budget_bytes"] == profile.memory_bytes - profile.memory.reserved_bytes.value


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--target", "voodoo-2"], "voodoo-2"),
        (["--target", "rtx-4090", "--budget", "99GiB"], "more than rtx-4090 leaves to programs"),
        (["--target", "rtx-4090", "--batch", "many"], "expected numbers from 1 to"),
        (["--target", "rtx-4090", "--rungs", "swap,ladder"], "no rung 'ladder': expected some of resident,"),
        (["--target", "rtx-4090", "--option", "batch=3"], "the batch is given by --batch"),
        (["--target", "rtx-4090", "--option", "depth=3"], "does not take these arguments"),
        (["--target", "rtx-4090", "--plot", "fit.png"], "expected a name that ends in .svg"),
    ],
)
def test_bad_input(chain: str, capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    code, out, err = fit(capsys, chain, *words)
    assert (code, out) == (2, "")
    assert says in err


def test_a_factory_that_makes_no_workload(chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = fit(capsys, chain.replace(":chain", ":empty"), "--target", "rtx-4090")
    assert code == 2
    assert "expected a function that returns a Workload" in err
