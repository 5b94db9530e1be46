"""Steps kept for the next run: what comes back, what is refused whole, and which training they are of."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from traces import layers

from umadvise._native.abi import Allocation
from umadvise.recording.builder import TraceBuilder
from umadvise.recording.recorded_step import RecordedStep, in_canonical_order
from umadvise.records.enums import Role
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Access, Trace
from umadvise.training.plans import shelf as shelves
from umadvise.training.plans.planned_step import PlannedStep, best_fit
from umadvise.training.plans.shelf import StepShelf, identity_of

MIB = 1 << 20
MADE = Access.WRITE | Access.WHOLE


def plan_of(trace: Trace) -> Plan:
    actions = [Action(ActionKind.SWAP_OUT, 0, 0, after=True), Action(ActionKind.SWAP_IN, 5, 0)]
    return Plan.from_actions(trace, actions, planner="best", budget_bytes=MIB)


def planned(count: int, *, plan: bool = True) -> PlannedStep:
    trace = in_canonical_order(layers(count))[0]
    step = RecordedStep(trace, np.arange(1, 1 + len(trace.storages), dtype=np.uint64), "host")
    return PlannedStep(step, plan_of(trace) if plan else None)


def words(steps: list[PlannedStep]) -> list[object]:
    return [(each.step.trace.digest, each.step.durations, each.plan and list(each.plan)) for each in steps]


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    shelf = StepShelf(tmp_path / "deep")
    assert shelf.load("one") == []
    kept = [planned(4), planned(6, plan=False)]
    shelf.keep("one", kept)
    found = StepShelf(tmp_path / "deep").load("one")
    assert words(found) == words(kept)
    assert all((each.step.serials == 0).all() for each in found)  # no allocation of this run is one of that
    assert shelf.load("other") == []
    shelf.keep("one", [planned(5)])
    assert words(shelf.load("one")) == words([planned(5)])


def test_the_last_steps_are_kept_where_they_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf, steps = StepShelf(tmp_path), [planned(count) for count in range(3, 23)]
    shelf.keep("one", steps)
    assert words(shelf.load("one")) == words(steps[-shelves.MOST_STEPS :])
    whole = next(tmp_path.iterdir()).stat().st_size
    monkeypatch.setattr(shelves, "MOST_FILE_BYTES", whole // 2)
    shelf.keep("one", steps)
    found = shelf.load("one")
    assert 0 < len(found) < shelves.MOST_STEPS
    assert words(found) == words(steps[-len(found) :])
    assert next(tmp_path.iterdir()).stat().st_size <= whole // 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: document[:-7],
        lambda document: document.replace(b"umadvise.steps/2", b"umadvise.steps/3"),
        lambda document: document.replace(b"H4sI", b"H4sJ", 1),
        lambda _: b"",
    ],
)
def test_a_damaged_file_is_none(
    tmp_path: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    shelf = StepShelf(tmp_path)
    shelf.keep("one", [planned(4)])
    [path] = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING, logger="umadvise"):
        assert shelf.load("one") == []
    assert "steps are recorded again" in caplog.text


def test_nothing_is_kept_where_plans_are_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("UMADVISE_PLAN_CACHE", "off")
    StepShelf.of_user().keep("one", [planned(4)])
    assert StepShelf.of_user().load("one") == []
    assert list(tmp_path.iterdir()) == []


# ---- which training ------------------------------------------------------------------------------------------------


def identity(
    model: Callable[[], nn.Module] = lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    budget_bytes: int = MIB,
    **options: object,
) -> str:
    made = model()
    return identity_of([made], [optimizer(made.parameters(), **options)], budget_bytes=budget_bytes)


def test_trainings_of_one_make_are_one() -> None:
    assert identity() == identity()
    assert identity(lr=0.1) == identity(lr=0.2)


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[0].weight.requires_grad_(False)
    return model


def test_trainings_of_another_make_are_others() -> None:
    makes = [
        identity(),
        identity(lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))),
        identity(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False))),
        identity(lambda: nn.Sequential(nn.Linear(4, 4).double(), nn.BatchNorm1d(4))),
        identity(lambda: nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.BatchNorm1d(4)})),
        identity(frozen),
        identity(lambda: nn.Sequential(nn.LazyLinear(4), nn.BatchNorm1d(4))),
        identity(optimizer=torch.optim.Adam),
        identity(amsgrad=True),
        identity(foreach=True),
        identity(weight_decay=0.0),
        identity(budget_bytes=2 * MIB),
    ]
    assert len(set(makes)) == len(makes)


# ---- which step comes next -----------------------------------------------------------------------------------------


def step(*state: tuple[str, Role]) -> PlannedStep:
    builder = TraceBuilder()
    found = [builder.allocate(MIB, role, name) for name, role in state]
    unused = builder.allocate(MIB, Role.GRADIENT, "unused.grad")
    builder.begin_op("aten::op")
    for each in found:
        builder.access(each, Access.READ)
    builder.access(builder.allocate(MIB, Role.OPTIMIZER_STATE, "made"), MADE)
    builder.end_op()
    trace: Trace = builder.finish(target="cpu", source="live")
    assert trace.births[unused] < 0
    return PlannedStep(RecordedStep(trace, np.zeros(len(trace.storages), np.uint64), "host"))


def alive(*state: tuple[str, Role]) -> list[Allocation]:
    values = {"bytes": MIB, "reserved_bytes": MIB, "memory": 0, "advice": 0, "birth_step": 0, "birth_op_index": 0}
    values |= {"birth_op": "", "birth_module": "", "seen": True, "exports": 0, "device": 0, "address": 0, "owned": True}
    return [Allocation(serial=serial, role=role, name=name, **values) for serial, (name, role) in enumerate(state, 1)]


WEIGHT, MOMENT = ("w", Role.PARAMETER), ("w.exp_avg", Role.OPTIMIZER_STATE)


def test_the_first_step_comes_before_the_state_that_it_makes_and_not_after_it() -> None:
    first, steady = step(WEIGHT), step(WEIGHT, MOMENT)
    assert best_fit([steady, first], alive(WEIGHT)) is first
    assert best_fit([steady, first], alive(WEIGHT, MOMENT)) is steady
    assert best_fit([first, steady], alive(MOMENT, WEIGHT)) is steady


def test_of_another_model_none_comes() -> None:
    assert best_fit([step(WEIGHT)], alive(("v", Role.PARAMETER))) is None
    assert best_fit([], alive(WEIGHT)) is None
