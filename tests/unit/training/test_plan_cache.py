"""Plans kept between runs: what is kept comes back, what is damaged does not, and nothing else changes."""

import dataclasses
import logging
import os
from pathlib import Path

import pytest
from traces import layers

from umadvise.recording.recorded_step import in_canonical_order
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Trace
from umadvise.training.plans import cache as plan_cache
from umadvise.training.plans.cache import PlanCache, PlanKey


def structure(count: int = 4) -> Trace:
    return in_canonical_order(layers(count))[0]


def plan_of(trace: Trace) -> Plan:
    actions = [Action(ActionKind.SWAP_OUT, 0, 0, after=True), Action(ActionKind.SWAP_IN, 5, 0)]
    return Plan.from_actions(trace, actions, planner="best", budget_bytes=1 << 20, options={"trials": 3})


def key_of(trace: Trace, **changes: object) -> PlanKey:
    key = PlanKey(trace.structure_digest, 1 << 20, 1 << 16, "v100", "best", {"seconds": 20.0}, "host")
    return dataclasses.replace(key, **changes)  # type: ignore[arg-type]


def actions(plan: Plan | None) -> list[Action]:
    assert plan is not None
    return list(plan)


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    trace = structure()
    plan, cache = plan_of(trace), PlanCache(tmp_path / "deep" / "plans")
    assert cache.load(key_of(trace), trace) is None
    cache.keep(key_of(trace), plan)
    again = PlanCache(tmp_path / "deep" / "plans").load(key_of(trace), structure())
    assert actions(again) == actions(plan)
    assert again is not None
    assert (again.planner, again.budget_bytes, dict(again.options)) == ("best", 1 << 20, {"trials": 3})


def test_every_part_of_the_key_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = structure()
    cache = PlanCache(tmp_path)
    cache.keep(key_of(trace), plan_of(trace))
    changes: list[dict[str, object]] = [
        {"structure": structure(5).structure_digest},
        {"budget_bytes": 2 << 20},
        {"chunk_bytes": 0},
        {"device": "p100"},
        {"planner": "lms"},
        {"options": {"seconds": 21.0}},
        {"options": {}},
        {"durations": "device"},
        {"movable": "some"},
        {"regions": "one"},
    ]
    assert len({key_of(trace, **change).name for change in changes} | {key_of(trace).name}) == len(changes) + 1
    assert all(cache.load(key_of(trace, **change), trace) is None for change in changes)
    monkeypatch.setattr(plan_cache, "__version__", "99")
    assert cache.load(key_of(trace), trace) is None


@pytest.mark.parametrize("document", [b"", b"junk", b"\x1f\x8b\x08truncated"])
def test_a_damaged_file_is_none(tmp_path: Path, document: bytes, caplog: pytest.LogCaptureFixture) -> None:
    trace = structure()
    cache = PlanCache(tmp_path)
    cache.keep(key_of(trace), plan_of(trace))
    (file,) = tmp_path.glob("*.plan")
    file.write_bytes(document)
    with caplog.at_level(logging.WARNING, logger="umadvise"):
        assert cache.load(key_of(trace), trace) is None
    assert "planned again" in caplog.text
    cache.keep(key_of(trace), plan_of(trace))
    assert cache.load(key_of(trace), trace) is not None


def test_a_plan_of_another_step_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace, other = structure(), structure(6)
    cache = PlanCache(tmp_path)
    cache.keep(key_of(trace), plan_of(other))
    with caplog.at_level(logging.WARNING, logger="umadvise"):
        assert cache.load(key_of(trace), trace) is None
    assert "another trace" in caplog.text


def test_where_nothing_can_be_kept_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = structure()
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    cache = PlanCache(tmp_path / "file" / "plans")
    with caplog.at_level(logging.WARNING, logger="umadvise"):
        cache.keep(key_of(trace), plan_of(trace))
    assert "UMADVISE_PLAN_CACHE=off" in caplog.text
    assert cache.load(key_of(trace), trace) is None


def test_what_nobody_used_for_long_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "MOST_FILES", 3)
    trace = structure()
    cache = PlanCache(tmp_path)
    for number in range(3):
        cache.keep(key_of(trace, budget_bytes=number), plan_of(trace))
        (path,) = tmp_path.glob(f"{key_of(trace, budget_bytes=number).name}.plan")
        os.utime(path, (number, number))
    assert cache.load(key_of(trace, budget_bytes=0), trace) is not None  # and so it is the youngest now
    cache.keep(key_of(trace, budget_bytes=3), plan_of(trace))
    left = [number for number in range(4) if cache.load(key_of(trace, budget_bytes=number), trace) is not None]
    assert left == [0, 2, 3]


def test_the_users_directory_and_the_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UMADVISE_PLAN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert PlanCache.of_user().directory == tmp_path / "umadvise" / "plans"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert PlanCache.of_user().directory == tmp_path / "home" / ".cache" / "umadvise" / "plans"
    monkeypatch.setenv("UMADVISE_PLAN_CACHE", "off")
    trace, cache = structure(), PlanCache.of_user()
    cache.keep(key_of(trace), plan_of(trace))
    assert cache.load(key_of(trace), trace) is None
    assert list(tmp_path.iterdir()) == []
