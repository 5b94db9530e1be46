"""`auto` keeps the budget whatever ran before the training, and computes what plain PyTorch does.

The fixture `budget_watch` checks the peaks of every loop in these tests, see budget_watch.py.
"""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from budget_watch import FAILED, BudgetWatch
from torch import nn

import umadvise
from umadvise.torch_seam import runtime

pytestmark = pytest.mark.usefixtures("unpatched")

MIB = 1 << 20


class Run:
    """One training, in plain torch where `budget` is None: its losses, and the rungs that its sessions ended on."""

    def __init__(self, budget: str | None) -> None:
        self.budget = budget
        self.losses: list[float] = []
        self.rungs: list[str] = []
        torch.manual_seed(0)
        wide = [layer for _ in range(4) for layer in (nn.Linear(640, 640), nn.GELU())]
        self.model = nn.Sequential(nn.Linear(64, 640), *wide, nn.Linear(640, 8))
        self.um: Any = None

    def session(self, *optimizers: torch.optim.Optimizer, **others: Any) -> AbstractContextManager[Any]:
        if self.budget is None:
            return nullcontext()
        where = {} if runtime.is_patched() else {"device": "emulated", "capacity": "1GiB"}
        return umadvise.session(self.model, optimizers, policy="auto", **{"budget": self.budget, **where, **others})

    def rows(self, count: int, seed: int) -> torch.Tensor:
        rows = torch.randn(count, 64, generator=torch.Generator().manual_seed(seed))
        return rows if self.um is None else self.um.to_device(rows)

    def step(self) -> AbstractContextManager[None]:
        return nullcontext() if self.um is None else self.um.step()

    def evaluate(self, steps: int, rows: int = 8, *, grad: bool = False, marked: bool = False) -> None:
        for seed in range(steps):
            with self.step() if marked else nullcontext(), torch.set_grad_enabled(grad):
                self.losses.append(self.model(self.rows(rows, seed)).square().mean().item())

    def train(
        self, optimizer: torch.optim.Optimizer | None, steps: int, rows: int = 512, *, marked: bool = False
    ) -> None:
        for seed in range(steps):
            with self.step() if marked else nullcontext():
                loss = self.model(self.rows(rows, seed)).square().mean()
                loss.backward()
                if optimizer is None:
                    with torch.no_grad():
                        for parameter in self.model.parameters():
                            parameter -= 0.01 * parameter.grad
                            parameter.grad = None
                else:
                    optimizer.step()
                    optimizer.zero_grad()
                self.losses.append(loss.item())

    def adamw(self, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), **options)


def evaluation_first(run: Run, *, grad: bool = False, marked: bool = False, **options: Any) -> None:
    with run.session() as run.um:
        run.evaluate(6, grad=grad, marked=marked)
        run.train(run.adamw(**options), 4, marked=marked)


def sanity_check_first(run: Run) -> None:
    """As a trainer that knows the optimizer and validates two batches before it trains."""
    optimizer = run.adamw()
    with run.session(optimizer) as run.um:
        run.evaluate(4, marked=True)
        run.train(optimizer, 4, marked=True)


def validation_between(run: Run) -> None:
    optimizer = run.adamw()
    with run.session(optimizer) as run.um:
        for _ in range(3):
            run.train(optimizer, 3, rows=64, marked=True)
            run.evaluate(2, rows=3072, marked=True)


def generation_first(run: Run) -> None:
    with run.session() as run.um:
        with torch.no_grad():
            kept = run.rows(1, 1)
            for _ in range(24):
                kept = torch.cat([kept, run.model(kept).repeat(1, 8)[-1:]])
        run.train(torch.optim.SGD(run.model.parameters(), 0.01, momentum=0.9), 4)


def preparation_first(run: Run) -> None:
    with run.session() as run.um:
        batches = [run.rows(64, seed) for seed in range(32)]
        rows = torch.cat([(each - each.mean()) / each.std() for each in batches])
        optimizer = run.adamw()
        for _ in range(4):
            loss = run.model(rows).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.losses.append(loss.item())


def start_that_touches_all(run: Run) -> None:
    with run.session() as run.um:
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.mul_(0.9).add_(parameter.std() * 0.01)
            averages = [parameter.clone() for parameter in run.model.parameters()]
        run.train(run.adamw(), 3)
        with torch.no_grad():
            for average, parameter in zip(averages, run.model.parameters(), strict=True):
                average.lerp_(parameter, 0.1)
        run.train(run.adamw(), 3)
        run.losses += [average.sum().item() for average in averages]


def learning_rate_finder(run: Run) -> None:
    optimizer = run.adamw()
    before = copy.deepcopy((run.model.state_dict(), optimizer.state_dict()))
    with run.session(optimizer) as run.um:
        for exponent in range(6):
            optimizer.param_groups[0]["lr"] = 1e-6 * 2**exponent
            run.train(optimizer, 1, rows=16)
        run.model.load_state_dict(before[0])
        optimizer.load_state_dict(before[1])
        run.train(optimizer, 4, rows=2048)


def updates_by_hand(run: Run) -> None:
    with run.session() as run.um:
        run.evaluate(8)
        run.train(None, 5, rows=1024)


def one_session_after_another(run: Run) -> None:
    """In one patch, the second one with less than the first one's chunks and plain memory have taken."""
    optimizer = run.adamw()
    if run.budget is not None:
        umadvise.patch(device=umadvise.EmulatedDevice("1GiB"))
    with run.session(optimizer, budget="64MiB") as run.um:
        run.train(optimizer, 5, rows=16, marked=True)
    with run.session(optimizer) as run.um:
        run.train(optimizer, 4, rows=1024, marked=True)
    run.um = None
    if run.budget is not None:
        umadvise.unpatch()


PROGRAMS: list[Callable[[Run], None]] = [
    evaluation_first,
    lambda run: evaluation_first(run, fused=True),
    lambda run: evaluation_first(run, foreach=False),
    lambda run: evaluation_first(run, grad=True),
    lambda run: evaluation_first(run, marked=True),
    sanity_check_first,
    validation_between,
    generation_first,
    preparation_first,
    start_that_touches_all,
    learning_rate_finder,
    updates_by_hand,
    one_session_after_another,
]
NAMES = ["evaluation", "fused", "by tensor", "warm-up", "marked", *(each.__name__ for each in PROGRAMS[5:])]


@pytest.mark.parametrize("program", PROGRAMS, ids=NAMES)
def test_the_budget_is_kept_whatever_ran_before(program: Callable[[Run], None]) -> None:
    """The model has 6.5 MiB; its training needs 31 MiB and more."""
    expected = Run(None)
    program(expected)
    for budget in ("48MiB", "20MiB"):
        found = Run(budget)
        program(found)
        assert found.losses == expected.losses, budget


def test_a_rung_that_an_evaluation_has_chosen_ends_when_an_optimizer_steps() -> None:
    run = Run("20MiB")
    optimizer = run.adamw()
    with run.session(optimizer) as run.um:
        run.evaluate(6, marked=True)
        assert run.um.rung == "resident"
        run.train(optimizer, 1, rows=4, marked=True)
        run.train(optimizer, 1, rows=4, marked=True)
        changes = run.um.profile().rungs
    assert (changes[-1].step, changes[-1].rung) == (8, "advise")


def test_an_evaluation_does_not_change_the_rung_of_a_training() -> None:
    run = Run("20MiB")
    optimizer = run.adamw()
    with run.session(optimizer) as run.um:
        run.train(optimizer, 6, marked=True)
        before = run.um.rung
        run.evaluate(4, marked=True)
        assert run.um.rung == before != "resident"


def test_a_planted_breach_is_caught(budget_watch: BudgetWatch) -> None:
    """The budget of unified memory is lifted behind the session's back."""
    run = Run("20MiB")
    optimizer = run.adamw()
    with umadvise.session(
        run.model, optimizer, device="emulated", capacity="256MiB", budget="20MiB", policy="advise"
    ) as run.um:
        run.train(optimizer, 2, marked=True)
        assert budget_watch.breaches == []
        runtime.current().device.set_budget(0)
        run.train(optimizer, 2, marked=True)
    found, budget_watch.breaches = budget_watch.breaches, []
    assert found
    assert all("bytes resident at most, of 20971520" in each for each in found)


@pytest.mark.parametrize("policy", ["advise", "window", "auto"])
def test_addresses_are_pinned_within_the_budget(policy: str) -> None:
    """Tensors of 48 MiB whose addresses are asked for, each again in each step, and ops beside them."""
    kept = [torch.full((1024, 512), float(number)) for number in range(24)]
    found = []
    for budget in (None, 20 * MIB):
        total = 0.0
        where = umadvise.session(nn.Linear(4, 4), device="emulated", budget=budget, policy=policy) if budget else None
        with where or nullcontext() as um:
            tensors = [um.to_device(each) if um else each.clone() for each in kept]
            for _ in range(4):
                with um.step() if um else nullcontext():
                    assert len({each.data_ptr() for each in tensors}) == len(tensors)
                    tensors[0] = tensors[0] + tensors[-1].sin()
                    total += sum(float(each.sum()) for each in tensors)
        found.append(total)
    assert found[0] == found[1]


@pytest.mark.parametrize("planted", [True, False])
def test_a_breach_in_a_process_of_its_own_is_caught(python: Callable[..., Any], *, planted: bool) -> None:
    words = ["emulated", *(["planted"] if planted else [])]
    ended = python("import over_budget", *words)
    assert ended.returncode == (FAILED if planted else 0), ended.stderr
    assert ("over budget: " in ended.stderr) is planted


def test_a_report_measures_nothing_beside_a_full_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """On `advise` nothing is planned, so the report is what first needs to know the link."""
    monkeypatch.setattr("umadvise.training.plans.device._measured", {})
    with umadvise.session([], device=umadvise.EmulatedDevice("256MiB"), policy="advise", budget="24MiB") as um:
        tensors = [torch.ones(2 * MIB) for _ in range(4)]
        for _ in range(6):
            with um.step():
                for each in tensors:
                    each.add_(1)
        assert um.profile(predict=True).predictions
