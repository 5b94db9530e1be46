"""`umadvise record`: what it prints and writes, and what it says of bad input."""

from collections.abc import Callable
from pathlib import Path

import pytest

from umadvise.__main__ import main
from umadvise.records import trace_file as io

FACTORIES = """
import torch
from torch import nn
from umadvise.recording.workload import training_step

def loss(model, inputs):
    return model(inputs).sum()

def tiny(batch: int = 2, *, width: int = 8, bias: bool = True):
    model = nn.Linear(width, width, bias=bias)
    return training_step(model, torch.optim.SGD(model.parameters()), loss, torch.randn(batch, width), name="tiny")

def wrong(batch: int = 1):
    return batch

number = 3
"""
Record = Callable[..., int]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Runs the command in a directory that holds `factories.py` and `broken.py`."""
    (tmp_path / "factories.py").write_text(FACTORIES)
    (tmp_path / "broken.py").write_text("raise KeyError('oops')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda *words: main(["record", *words, "-o", "step.trace"])


def test_the_trace_and_its_summary(record: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record("factories:tiny", "--batch", "4", "--option", "width=16", "--option", "bias=false") == 0
    trace = io.read(tmp_path / "step.trace")
    assert trace.workload == "tiny"
    assert (trace.target, trace.device) == ("cuda", "")
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0] == "workload      tiny"
    assert "parameters    1.00 KiB in 1" in lines
    assert f"ops           {len(trace.ops):,} (" in shown.out
    assert "compute time  unknown: no device was named" in lines
    assert "step.trace" in shown.err


def test_a_device_of_the_catalogue_gives_durations(record: Record, tmp_path: Path) -> None:
    assert record("factories:tiny", "--target", "v100-sxm2-power9-16gb") == 0
    trace = io.read(tmp_path / "step.trace")
    assert trace.device == "v100-sxm2-power9-16gb"
    assert trace.duration_ns > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["factories"], "expected MODULE:FACTORY"),
        (["nowhere:tiny"], "no module 'nowhere' here"),
        (["broken:tiny"], "cannot be imported: KeyError: 'oops'"),
        (["factories:absent"], "has no function 'absent': it has loss, tiny, training_step, wrong"),
        (["factories:number"], "has no function 'number'"),
        (["factories:wrong"], "returned a int"),
        (["factories:tiny", "--batch", "0"], "expected at least 1"),
        (["factories:tiny", "--batch", "2", "--option", "batch=2"], "given twice"),
        (["factories:tiny", "--option", "width"], "expected KEY=VALUE"),
        (["factories:tiny", "--option", "width=1", "--option", "width=2"], "given twice"),
        (["factories:tiny", "--option", "depth=2"], "does not take these arguments"),
        (["factories:tiny", "--target", "v1000"], "no device 'v1000' in the catalogue"),
    ],
)
def test_bad_input(
    record: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert record(*words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "step.trace").exists()
