"""A session in a script under `umadvise run`, or after `patch()`, keeps its budget whatever earlier code has placed.

All budgets are watched, also in the processes that run the scripts: see budget_watch.py.
"""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from pairwise import by_turns
from small_networks import same_bits
from torch import nn

import umadvise
from umadvise.errors import BudgetError

SCRIPT = """
import sys, torch, umadvise
from contextlib import nullcontext
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
def train(rows, steps, step):
    for _ in range(steps):
        with step():
            loss = model(torch.randn(rows, 1024, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print("loss", loss.item())
policy, *budgets = sys.argv[1:]
train(16, 5, nullcontext)
kept = [model(torch.randn(64, 1024, device="cuda")) for _ in range(4)]
for budget in budgets:
    with umadvise.session(model, optimizer, policy=policy, budget=budget) as um:
        train(512, 4, um.step)
    train(16, 3, nullcontext)
print("loss", sum(kept).square().mean().item())
"""
RUN = "import sys; from umadvise.__main__ import main; sys.exit(main(sys.argv[1:]))"


def losses(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("loss")]


@pytest.fixture(scope="module")
def plain(python: Callable[..., Any]) -> Callable[[int], list[str]]:
    """Losses of plain PyTorch with so many sessions."""
    session = "umadvise.session(model, optimizer, policy=policy, budget=budget) as um"
    script = SCRIPT.replace(', device="cuda"', "").replace('.to("cuda")', "").replace(session, "nullcontext()")
    script = script.replace("um.step", "nullcontext").replace("import sys, torch, umadvise", "import sys, torch")

    @functools.cache
    def run(sessions: int) -> list[str]:
        ended = python(script, "plain", *["none"] * sessions)
        assert ended.returncode == 0, ended.stderr
        return losses(ended.stdout)

    return run


@pytest.fixture
def drive(python: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs the script by `umadvise run`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(outer: list[str], *words: str) -> Any:
        return python(RUN, "run", "--device", "emulated", "--capacity", "256MiB", *outer, "script.py", *words)

    return run


@pytest.mark.parametrize(
    ("outer", "inner"), by_turns(["auto", "resident", "advise", "swap"], ["swap", "auto", "advise"])
)
def test_two_sessions_in_a_script_keep_their_budgets(
    drive: Callable[..., Any], plain: Callable[[int], list[str]], outer: str, inner: str
) -> None:
    """The script's own steps take 68 MiB."""
    ended = drive(["--policy", outer], inner, "40MiB", "48MiB")
    assert ended.returncode == 0, ended.stderr
    assert losses(ended.stdout) == plain(2)


@pytest.mark.parametrize(
    ("policies", "budgets"),
    by_turns([("auto", "swap"), ("swap", "auto"), ("advise", "advise")], [("96MiB", "40MiB"), ("40MiB", "96MiB")]),
)
def test_a_sessions_budget_may_be_smaller_or_larger_than_the_scripts(
    drive: Callable[..., Any], plain: Callable[[int], list[str]], policies: tuple[str, str], budgets: tuple[str, str]
) -> None:
    (outer, inner), (budget, other) = policies, budgets
    ended = drive(["--policy", outer, "--budget", budget], inner, other)
    assert ended.returncode == 0, ended.stderr
    assert losses(ended.stdout) == plain(1)


@pytest.mark.parametrize("outer", ["auto", "advise", "resident", "swap"])
def test_a_resident_session_refuses_a_script_that_its_budget_does_not_hold(
    drive: Callable[..., Any], outer: str
) -> None:
    ended = drive(["--policy", outer], "resident", "40MiB")
    assert ended.returncode == 1
    assert "policy resident evicts nothing: use another policy or a larger budget" in ended.stderr
    assert "over budget" not in ended.stderr


class Patched:
    """A model after `patch()` whose first session keeps tensors; in plain torch without a device."""

    def __init__(self, device: umadvise.EmulatedDevice | None) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.patched = device is not None
        if device is not None:
            umadvise.patch(device=device)

    def train(self, policy: str, budget: str, rows: int, *, known: bool = False) -> list[torch.Tensor]:
        where: Any = nullcontext()
        if self.patched:
            where = umadvise.session(self.model, self.optimizer, policy=policy, budget=budget)
        kept = []
        with where as um:
            for _ in range(4):
                with um.step() if self.patched else nullcontext():
                    kept.append(self.model(torch.randn(rows, 512)))
                    kept[-1].square().mean().backward()
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                if known:
                    kept[-1].data_ptr()
        return [each.detach() for each in kept]


@pytest.mark.usefixtures("unpatched")
@pytest.mark.parametrize("second", ["auto", "advise", "swap"])
@pytest.mark.parametrize("first", ["auto", "resident", "swap"])
def test_tensors_that_outlive_a_session_count_for_the_next_ones_budget(first: str, second: str) -> None:
    """The first session keeps 32 MiB; all of them are right after the second one."""
    found = []
    for device in (None, umadvise.EmulatedDevice("256MiB")):
        run = Patched(device)
        kept = run.train(first, "160MiB", 4096)
        kept += run.train(second, "20MiB", 512)
        found.append([each.cpu() for each in kept])
    assert all(map(same_bits, *found))


@pytest.mark.usefixtures("unpatched")
def test_tensors_with_known_addresses_are_unpinned_for_the_next_sessions_budget() -> None:
    found = []
    for device in (None, umadvise.EmulatedDevice("256MiB")):
        run = Patched(device)
        kept = run.train("advise", "160MiB", 4096, known=True)
        addresses = [each.data_ptr() for each in kept]
        kept += run.train("advise", "20MiB", 512, known=True)
        assert addresses == [each.data_ptr() for each in kept[:4]]
        found.append([each.cpu() for each in kept])
    assert all(map(same_bits, *found))


@pytest.mark.usefixtures("unpatched")
def test_a_budget_that_does_not_hold_tensors_with_known_addresses_is_refused() -> None:
    run = Patched(umadvise.EmulatedDevice("256MiB"))
    kept = run.train("resident", "160MiB", 4096, known=True)
    addresses = [each.data_ptr() for each in kept]
    with pytest.raises(BudgetError, match=r"keeps 32\.00 MiB on the device that cannot be evicted"):
        run.train("advise", "20MiB", 512)
    assert addresses == [each.data_ptr() for each in kept]
