"""Steps of an earlier run: they drive the next run's first step, and nothing else changes by them."""

import logging
from itertools import pairwise
from pathlib import Path

import pytest
from test_driving import Training, assert_same, session, vanilla

from umadvise import EmulatedDevice, _native
from umadvise.torch_seam import runtime
from umadvise.training.script import ScriptRun

STEPS = 5


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    _native.install_allocator()  # compiles the hooks before their cache is another one
    monkeypatch.setenv("UMADVISE_PLAN_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "umadvise" / "steps"


def run(
    *, policy: str = "swap", budget: str = "40MiB", foreach: bool = False, clock: str | None = "v100-16gb"
) -> tuple[list[int], list[int]]:
    """How many steps programs have driven after each step, and how many swap-ins nobody planned in each of them."""
    training, driven, unplanned = Training(foreach=foreach), [], [0]
    device = EmulatedDevice("128MiB", clock=clock) if clock else EmulatedDevice("128MiB")
    with session(training, policy, device=device, capacity=None, budget=budget) as um:
        for _ in range(STEPS):
            with um.step():
                training.step()
            driven.append(um.swap_counters().programs_followed)
            unplanned.append(um.swap_counters().on_demand_swap_ins)
        assert policy != "swap" or um.predicted_step() is not None
    assert_same(training, vanilla(STEPS, foreach=foreach))
    return driven, [after - before for before, after in pairwise(unplanned)]


@pytest.mark.parametrize("clock", [None, "v100-16gb"])
def test_the_next_run_is_driven_from_its_first_step_on(clock: str | None, cache: Path) -> None:
    first, before = run(clock=clock)
    assert first == [0, 1, 2, 3, 4]
    assert len(list(cache.iterdir())) == 1
    for _ in range(2):
        driven, unplanned = run(clock=clock)
        assert driven == [1, 2, 3, 4, 5]
        assert sum(unplanned) < sum(before) / 4
        if clock is not None:  # where it does not depend on when copies end
            assert unplanned == [0] * STEPS
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("policy", ["window", "lru", "swap+recompute"])
def test_other_policies_are_driven_by_what_was_kept_too(policy: str) -> None:
    assert run(policy=policy)[0] == [0, 1, 2, 3, 4]
    assert run(policy=policy)[0] == [1, 2, 3, 4, 5]


def test_another_budget_is_another_training(cache: Path) -> None:
    run()
    assert run(budget="48MiB")[0] == [0, 1, 2, 3, 4]
    assert len(list(cache.iterdir())) == 2


def test_steps_that_do_not_come_are_given_up(cache: Path) -> None:
    """Another optimizer's steps, under this one's name."""
    run(foreach=True)
    [other] = cache.iterdir()
    kept = other.read_bytes()
    other.unlink()
    run()
    [own] = cache.iterdir()
    own.write_bytes(kept)
    driven, _ = run()
    assert driven[0] == 0
    assert driven[-1] > 0
    assert run()[0] == [1, 2, 3, 4, 5]


def test_without_a_cache_nothing_is_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMADVISE_PLAN_CACHE", "off")
    assert run()[0] == run()[0] == [0, 1, 2, 3, 4]
    assert not cache.exists()


def script_run() -> list[int]:
    """The same for a script that knows nothing of umadvise."""
    driven = []
    device = EmulatedDevice("128MiB", clock="v100-16gb")
    with ScriptRun(device, "40MiB", "swap", "script.py"):
        training = Training()
        for _ in range(STEPS):
            training.step()
            driven.append(runtime.current().device.swap_counters().programs_followed)
    assert_same(training, vanilla(STEPS))
    return driven


def test_a_script_is_driven_from_its_second_step_on(caplog: pytest.LogCaptureFixture) -> None:
    """What trains is known when its first step ends; that steps begin with the last loss's value, a step later."""
    with caplog.at_level(logging.INFO, logger="umadvise"):
        assert script_run() == [0, 0, 1, 2, 3]
    assert "step 2 left its plan at op 1" in caplog.text
    assert "found aten::_local_scalar_dense: 1 of 106 ops were in none" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="umadvise"):
        assert script_run() == [0, 1, 2, 3, 4]
    assert "left its plan" not in caplog.text
