"""Sessions give back all that they took: a process that opens many of them, or takes many steps, does not grow.

`make test` counts few sessions, within which the tables of Python and torch still grow by some KiB at a time;
UMADVISE_FULL=1 counts as many as a sweep or a test suite has. The processes start anew: one that is forked maps what it
shares with its parent little by little.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from umadvise._hooks.loader import compiled_library

ALL = bool(os.environ.get("UMADVISE_FULL"))
POLICIES = ("resident", "advise", "window", "swap", "swap+recompute", "auto")
FIRST, LAST = (50, 200) if ALL else (8, 24)
MOST_HEAP_BYTES = (LAST - FIRST) * (1 << 10 if ALL else 4 << 10)
MOST_RESIDENT_BYTES = 2 << 20
"""Where few are counted, what else runs on the machine moves more than that."""

SESSIONS = """
import sys
from sessions_heap import grown

kind, first, last, *policies = sys.argv[1:]
for policy in policies:
    print(policy, *grown(kind, policy, int(first), int(last)), flush=True)
"""

Python = Callable[..., "subprocess.CompletedProcess[str]"]


def _use_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of plans and steps that begins empty; torch's extension is not compiled again for it."""
    monkeypatch.setenv("UMADVISE_HOOKS_LIBRARY", str(compiled_library()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.delenv("UMADVISE_WATCH_BUDGETS")  # what watches keeps something of each session
    monkeypatch.setenv("UMADVISE_PLAN_SEARCH", "off")


@pytest.fixture
def grown(python: Python, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, list[int]]]:
    """By policy: by how much what sessions leave behind has grown."""
    _use_cache(tmp_path, monkeypatch)
    monkeypatch.setenv("UMADVISE_PLAN_CACHE", "on")

    def run(kind: str, *policies: str) -> dict[str, list[int]]:
        finished = python(SESSIONS, kind, str(FIRST), str(LAST), *policies, timeout=3600, anew=True)
        assert finished.returncode == 0, finished.stderr
        rows = [line.split() for line in finished.stdout.splitlines()]
        return {policy: [int(each) for each in numbers] for policy, *numbers in rows}

    return run


@pytest.mark.parametrize("policies", [[each] for each in POLICIES] if ALL else [["advise", "swap", "auto"]])
def test_sessions_that_train_leave_nothing_behind(
    policies: list[str], grown: Callable[..., dict[str, list[int]]]
) -> None:
    for policy, (heap_bytes, resident_bytes, *counts) in grown("train", *policies).items():
        assert heap_bytes < MOST_HEAP_BYTES, policy
        assert resident_bytes < MOST_RESIDENT_BYTES or not ALL, policy
        assert counts == [0, 0, 0], policy  # descriptors, threads, kept files


def test_empty_sessions_leave_nothing_behind(grown: Callable[..., dict[str, list[int]]]) -> None:
    for policy, (heap_bytes, _, *counts) in grown("empty", "advise", "swap").items():
        assert heap_bytes < MOST_HEAP_BYTES, policy
        assert counts == [0, 0, 0], policy


CHANGING = """
import sys
from sessions_heap import Footprint, footprint, train

taken = []
first, last = map(int, sys.argv[2:])

def rows(step):
    if step in (first, last - 1):
        taken.append(footprint(device=sys.argv[1] != "auto"))  # its rung, which follows the time, decides that
    return (16, 64, 24, 48, 8, 32, 40)[step * step % 7]

train(sys.argv[1], steps=last, rows=rows)
before, after = taken
grown = [new - old for old, new in zip(before, after)]
print(*grown[:4])
"""


@pytest.mark.parametrize("policy", ["advise", "swap", "auto"] if ALL else ["swap"])
def test_steps_with_changing_shapes_leave_nothing_behind(
    policy: str, python: Python, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_cache(tmp_path, monkeypatch)
    first, last = (1000, 3000) if ALL else (100, 200)
    finished = python(CHANGING, policy, str(first), str(last), timeout=3600, anew=True)
    assert finished.returncode == 0, finished.stderr
    heap_bytes, resident_bytes, *counts = map(int, finished.stdout.split())
    assert heap_bytes < MOST_RESIDENT_BYTES
    assert resident_bytes < MOST_RESIDENT_BYTES or not ALL
    assert counts == [0, 0]
