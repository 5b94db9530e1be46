"""Files kept between runs: whatever call fails on the way to one, the training goes on, and the log says so."""

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from nth_failure import NthFailure, each_failure
from traces import layers

from umadvise.recording.recorded_step import in_canonical_order
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.training.plans import kept_files
from umadvise.training.plans.cache import PlanCache, PlanKey
from umadvise.training.plans.kept_files import KeptFiles, user_directory

NUMBERS = (errno.EACCES, errno.EIO, errno.ENAMETOOLONG, errno.ENOSPC, errno.ESTALE)
ERRORS = [partial(OSError, number, os.strerror(number)) for number in NUMBERS]


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_files, "_warned", set())


@pytest.mark.parametrize("make_error", [*ERRORS, MemoryError])
def test_any_call_may_fail(
    make_error: Callable[[], Exception],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    trace = in_canonical_order(layers(4))[0]
    plan = Plan.from_actions(trace, [Action(ActionKind.SWAP_OUT, 0, 0, after=True), Action(ActionKind.SWAP_IN, 5, 0)],
                             planner="best", budget_bytes=1 << 20)  # fmt: skip
    key = PlanKey(trace.structure_digest, 1 << 20, 1 << 16, "v100", "best", {}, "host")
    failing = NthFailure(monkeypatch)

    def keep_and_load() -> None:
        monkeypatch.setattr(kept_files, "_warned", set())
        caplog.clear()
        cache = PlanCache(tmp_path / "plans")
        cache.keep(key, plan)
        found = cache.load(key, trace)
        assert found is None or list(found) == list(plan)

    failed = []
    for name in each_failure(failing, make_error, keep_and_load):
        failed.append(name)
        # A temporary file that cannot be made without a name gets one, and a time that cannot be set changes nothing.
        assert caplog.messages or name in {
            "open",
            "utime",
            "stat",
            "mkdir",
            "link",
            "readlink",
            "lstat",
            "scandir",
            "listdir",
        }, name
    assert {"mkdir", "open", "stat", "utime", "fsync", "fdopen", "unlink"} <= set(failed)
    assert [path for path in (tmp_path / "plans").iterdir() if path.suffix != ".plan"] == []


@pytest.mark.parametrize("variables", [{}, {"HOME": ""}, {"HOME": "home"}, {"XDG_CACHE_HOME": "cache"}])
def test_a_user_without_a_home_keeps_nothing(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def nobody(_: int) -> None:
        raise KeyError("no such user")

    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CACHE_HOME", "UMADVISE_PLAN_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert user_directory("plans") is None
    assert "no home directory. Set XDG_CACHE_HOME" in caplog.text
    files = KeptFiles(user_directory("plans"), ".plan", "steps are planned again", 1, 1 << 20)
    files.keep("one", b"1")
    assert files.read("one", Path.read_bytes) is None
    assert list(tmp_path.iterdir()) == []


def test_a_relative_cache_is_that_of_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UMADVISE_PLAN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_directory("plans") == tmp_path / ".cache" / "umadvise" / "plans"


def test_a_directory_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    files = KeptFiles(tmp_path / "file" / "plans", ".plan", "steps are planned again", 9, 1 << 20)
    for name in ("one", "two", "three"):
        assert files.read(name, Path.read_bytes) is None
        files.keep(name, b"1")
    assert len(caplog.messages) == 2
    assert "steps are planned again" in caplog.messages[0]
    assert "cannot be kept" in caplog.messages[1]
