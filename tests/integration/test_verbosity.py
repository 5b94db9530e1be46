"""`-v`, `-vv` and `-q`: the lines that the docs promise are seen on the command line, and library use stays silent."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import warm_processes

TRAIN = """
import torch
from torch import nn

torch.manual_seed(1)
model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(6)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(6):
    x = torch.ones(64, 1024)
    y = model(x)
    if step == 4:
        y = torch.mm(y, torch.ones(1024, 1024))
    y.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step)
"""
ACTIVATIONS = """
import torch
from torch import nn

torch.manual_seed(3)
model = nn.Sequential(*(each for _ in range(4) for each in (nn.Linear(1024, 1024), nn.GELU())))
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for step in range(4):
    model(torch.randn(2048, 1024)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs `umadvise run OPTIONS train.py`."""

    def started(*options: str, script: str = TRAIN) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "train.py").write_text(textwrap.dedent(script))
        words = [warm_processes.python(), "-m", "umadvise", "run", "--device", "emulated", *options, "train.py"]
        finished = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert finished.returncode == 0, finished.stderr
        return finished

    return started


def lines_with(text: str, *words: str) -> list[str]:
    return [line for line in text.splitlines() if all(word in line for word in words)]


def test_a_step_that_leaves_its_plan_is_a_line_and_data_stays_on_stdout(run: Run) -> None:
    finished = run("--capacity", "48MiB", "--policy", "swap", "-v")
    assert finished.stdout.split() == list("012345")
    assert lines_with(finished.stderr, "umadvise: a plan of best with ", " actions for ", " ops: ")
    assert lines_with(finished.stderr, "umadvise: step 5 left its plan at op ", "expected ", ", found ")
    assert not lines_with(finished.stderr, "umadvise: step 1 took ")


def test_every_switch_of_auto_is_a_line_with_its_numbers(run: Run) -> None:
    finished = run("--capacity", "1GiB", "--policy", "auto", "-vv")
    first, *others = lines_with(finished.stderr, "umadvise: policy auto: ", " from step ")
    assert first == ("umadvise: policy auto: advise from step 1 on: what a step needs is not known before it has run")
    assert lines_with("\n".join(others), "policy auto: resident from step ", " of 1.00 GiB")
    assert lines_with(finished.stderr, "umadvise: step 6 took ", " fault groups (")


def test_ops_in_no_marked_region_are_a_warning(run: Run) -> None:
    finished = run("--capacity", "256MiB", "--budget", "112MiB", "--policy", "sqrt-recompute", script=ACTIVATIONS)
    assert lines_with(finished.stderr, "umadvise: warning: ", "ops again that lie in no marked region")
    assert not lines_with(finished.stderr, "umadvise: a plan of ")  # that is for -v


COMPILED = """
import torch
torch.compile(torch.nn.Linear(8, 8))
"""


def test_warnings_are_seen_without_being_asked_for(run: Run) -> None:
    finished = run("--capacity", "16MiB", script=COMPILED)
    assert lines_with(finished.stderr, "umadvise: warning: torch.compile is passed through")


def test_quiet_says_nothing_but_errors(run: Run) -> None:
    assert run("--capacity", "16MiB", "-q", script=COMPILED).stderr == ""
    refused = subprocess.run(
        [sys.executable, "-m", "umadvise", "report", "-q", "nowhere.json"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert refused.stderr.startswith("umadvise report: ")


def test_a_script_that_logs_to_the_terminal_itself_shows_each_line_once(run: Run) -> None:
    logs = "import logging\nlogging.basicConfig(level=logging.INFO, format='script: %(message)s')\n"
    finished = run("--capacity", "48MiB", "--policy", "swap", "-v", script=logs + TRAIN)
    told = lines_with(finished.stderr, "step 5 left its plan")
    assert len(told) == 1
    assert told[0].startswith("script: ")


def test_library_use_says_nothing_but_warnings(tmp_path: Path) -> None:
    script = """
    import torch, umadvise
    model = torch.nn.Linear(1024, 1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with umadvise.session(model, optimizer, device="emulated", capacity="64MiB", policy="auto") as um:
        for _ in range(4):
            with um.step():
                model(torch.ones(4, 1024)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    """
    (tmp_path / "library.py").write_text(textwrap.dedent(script))
    finished = subprocess.run(
        [warm_processes.python(), "library.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")
