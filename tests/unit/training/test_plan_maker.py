"""Plans that are made at once and those that a search finds: which of them a step gets, and when."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from traces import layers

from umadvise.devices.catalogue import load_device
from umadvise.recording.recorded_step import RecordedStep, in_canonical_order
from umadvise.records.plan import Action, Plan
from umadvise.training.plans import search_task
from umadvise.training.plans.cache import PlanCache
from umadvise.training.plans.device import PlanningDevice
from umadvise.training.plans.maker import PlanMaker
from umadvise.training.plans.plan_memory import PlanMemory
from umadvise.training.policy.parsing import parse_policy

MIB = 1 << 20
MEMORY = PlanMemory(budget_bytes=64 * MIB, chunk_bytes=2 * MIB)
DEVICE = PlanningDevice(load_device("v100-16gb"), "v100", synchronous=True)
SWAP = parse_policy("swap")


class Asked:
    """A search that runs when it is told to."""

    def __init__(self) -> None:
        self.tasks: dict[str, tuple[Callable[[], bytes], object]] = {}
        self.found: list[tuple[object, bytes]] = []
        self.closed = False

    def ask(self, key: str, task: Callable[[], bytes], about: object) -> None:
        self.tasks[key] = task, about

    def run(self, result: bytes | None = None) -> None:
        for task, about in self.tasks.values():
            self.found.append((about, result or search_task.made(task())))
        self.tasks.clear()

    def ended(self) -> list[tuple[object, bytes]]:
        found, self.found = self.found, []
        return found

    def close(self) -> None:
        self.closed = True


def step(bytes_: int = 10 * MIB, *, held: bool = False) -> RecordedStep:
    trace = in_canonical_order(layers(12, bytes_=bytes_, held=held))[0]
    return RecordedStep(trace, np.arange(1, 1 + len(trace.storages), dtype=np.uint64), "host")


def actions(plan: Plan | None) -> list[Action]:
    assert plan is not None
    assert len(plan) > 0
    return list(plan)


@pytest.fixture
def search() -> Asked:
    return Asked()


@pytest.fixture
def maker(search: Asked, tmp_path: Path) -> PlanMaker:
    return PlanMaker(DEVICE, PlanCache(tmp_path), search)  # type: ignore[arg-type]


def test_what_a_search_finds_takes_the_place_of_what_was_made_at_once(
    maker: PlanMaker, search: Asked, tmp_path: Path
) -> None:
    planned = step()
    at_once = maker.plan(planned, SWAP, MEMORY)
    assert actions(at_once)
    assert maker.improved() == []
    assert list(tmp_path.iterdir()) == []
    search.run()
    [(policy, improved)] = maker.improved()
    assert (improved.step, policy) == (planned, SWAP)
    assert improved.plan is not None
    assert "trials" in improved.plan.options
    assert improved.plan.trace_digest == planned.digest
    assert actions(maker.plan(step(), SWAP, MEMORY)) == actions(improved.plan)
    assert search.tasks == {}  # it is known
    again = PlanMaker(DEVICE, PlanCache(tmp_path), search)  # type: ignore[arg-type]
    assert actions(again.plan(step(), SWAP, MEMORY)) == actions(improved.plan)
    assert search.tasks == {}


def test_without_a_search_the_plan_that_was_made_at_once_stays(tmp_path: Path, maker: PlanMaker) -> None:
    alone = PlanMaker(DEVICE, PlanCache(tmp_path))
    assert actions(alone.plan(step(), SWAP, MEMORY)) == actions(maker.plan(step(), SWAP, MEMORY))
    assert alone.improved() == []


def whens(plan: Plan | None) -> list[tuple[int, ...]]:
    return [(each.kind, each.storage, each.op) for each in actions(plan)]


def test_steps_of_other_sizes_have_one_plan_where_it_is_as_good(maker: PlanMaker, search: Asked) -> None:
    maker.plan(step(), SWAP, MEMORY)
    search.run()
    [(_, improved)] = maker.improved()
    smaller = step(19 * MIB // 2)
    assert smaller.ops_digest == step().ops_digest
    assert smaller.digest != step().digest
    alike = maker.plan(smaller, SWAP, MEMORY)
    assert whens(alike) == whens(improved.plan)
    assert {each.bytes for each in actions(alike)} == {19 * MIB // 2}
    search.run()  # what it finds for the smaller one alone is no better
    assert whens(maker.improved()[0][1].plan) == whens(improved.plan)


def test_steps_of_other_sizes_have_plans_of_their_own_where_one_is_worse(maker: PlanMaker) -> None:
    alone = PlanMaker(DEVICE, PlanCache(None))
    maker.plan(step(), SWAP, MEMORY)
    for bytes_ in (6 * MIB, 12 * MIB):  # needs less, and does not fit with it
        assert whens(maker.plan(step(bytes_), SWAP, MEMORY)) == whens(alone.plan(step(bytes_), SWAP, MEMORY))


@pytest.mark.parametrize("bytes_", [19 * MIB // 2, 9 * MIB])
def test_steps_of_other_sizes_that_free_earlier_have_plans(bytes_: int, maker: PlanMaker, search: Asked) -> None:
    """A batch of another size may free what its ops use before or after others do, as where autograd keeps it."""
    maker.plan(step(held=True), SWAP, MEMORY)
    search.run()
    assert maker.improved()
    assert step(bytes_).ops_digest == step(held=True).ops_digest
    assert actions(maker.plan(step(bytes_), SWAP, MEMORY))


def test_a_result_that_is_no_plan_changes_nothing(maker: PlanMaker, search: Asked) -> None:
    at_once = maker.plan(step(), SWAP, MEMORY)
    search.run(b"nothing")
    assert maker.improved() == []
    assert actions(maker.plan(step(), SWAP, MEMORY)) == actions(at_once)


@pytest.mark.parametrize(("policy", "tried"), [("swap", True), ("dqn", False)])
def test_the_plan_of_a_planner_that_was_named_is_not_tried_beside_another(
    policy: str, tried: bool, maker: PlanMaker, search: Asked
) -> None:
    maker.plan(step(), parse_policy(policy), MEMORY)
    [(task, _)] = search.tasks.values()
    assert (json.loads(task())["trial"] is not None) == tried


@pytest.mark.parametrize("policy", ["lru", "swap:window", "belady"])
def test_planners_that_do_not_search_plan_now(policy: str, maker: PlanMaker, search: Asked) -> None:
    plan = maker.plan(step(), parse_policy(policy), MEMORY)
    assert actions(plan)
    assert plan is not None
    assert plan.planner == policy.rpartition(":")[2]
    assert search.tasks == {}


def test_rungs_are_predicted_without_a_search(maker: PlanMaker, search: Asked) -> None:
    predicted = maker.predict(step(), {"swap": MEMORY, "advise": PlanMemory(64 * MIB)})
    assert set(predicted) == {"swap", "advise"}
    assert search.tasks == {}


def test_a_budget_that_no_op_fits_has_no_plan_and_no_search(maker: PlanMaker, search: Asked) -> None:
    assert maker.plan(step(), SWAP, PlanMemory(10 * MIB, 2 * MIB)) is None
    assert search.tasks == {}


def test_a_planner_without_plans_is_warned_of_once(maker: PlanMaker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "umadvise")
    for bytes_ in (10 * MIB, 12 * MIB, 10 * MIB):
        assert maker.plan(step(bytes_), SWAP, PlanMemory(10 * MIB, 2 * MIB)) is None
    levels = [record.levelname for record in caplog.records if "has no plan" in record.message]
    assert levels == ["WARNING", "INFO", "INFO"]


def test_it_closes_its_search(maker: PlanMaker, search: Asked) -> None:
    maker.close()
    assert search.closed
