"""Two ranks, of which one is killed, starved or raises at a named moment: both end, in words, and nothing is left."""

import os
import subprocess
import uuid
from pathlib import Path

import pytest
import warm_processes
from rank_faults import FAULTS, MOMENTS
from test_ranks import left_with, torchrun

from umadvise._hooks.loader import compiled_library
from umadvise.training.plans.shelf import decode

FULL = os.environ.get("UMADVISE_FULL") == "1"
SAMPLE = ("ddp swap kill backward", "fsdp swap starve forward", "fsdp advise raise collective")
ALL = [
    f"{strategy} {policy} {fault} {moment}"
    for strategy in ("ddp", "fsdp")
    for policy in ("swap", "advise")
    for fault in FAULTS
    if fault != "none"
    for moment in MOMENTS
    if fault != "starve" or (policy == "swap" and moment not in ("opening", "exit"))  # a budget holds in a session
]
SAID = {
    "kill": "exitcode  : -9",
    "raise": "ValueError: planted in a rank",
    "starve": "OutOfMemoryError: CUDA out of memory. umadvise: no room for",
}
PROGRAM = Path(__file__).with_name("rank_faults.py")


def ranks(case: str, cache: Path, mark: str = "") -> "subprocess.CompletedProcess[str]":
    """Ends within its timeout, or the test fails."""
    return torchrun(
        PROGRAM,
        *case.split(),
        timeout=240,
        python=warm_processes.python(),
        XDG_CACHE_HOME=str(cache),
        UMADVISE_HOOKS_LIBRARY=str(compiled_library()),
        UMADVISE_PLAN_SEARCH="off",
        UMADVISE_TEST_MARK=mark,
    )


@pytest.mark.parametrize("case", ALL if FULL else SAMPLE)
def test_a_rank_that_ends_early_ends_the_other_one(case: str, tmp_path: Path) -> None:
    _, _, fault, moment = case.split()
    mark = uuid.uuid4().hex
    ended = ranks(case, tmp_path, mark)
    if moment == "exit" and fault != "kill":  # Python goes on where a function of atexit raises
        assert ended.stdout.count("ended") == 2
    else:
        assert ended.returncode != 0
        assert "rank 1 ended" not in ended.stdout or moment == "exit"
    assert SAID[fault] in ended.stderr, ended.stderr[-4000:]
    for crash in ("terminate called", "exitcode  : -6", "exitcode  : -11", "Fatal Python error"):
        assert crash not in ended.stderr, ended.stderr[-4000:]
    assert left_with(mark) == []
    for path in tmp_path.rglob("*.steps"):
        assert decode(path.read_bytes())


def test_the_next_run_finds_what_a_killed_one_has_kept(tmp_path: Path) -> None:
    """And runs to its end; so does one without a fault."""
    for case in ("fsdp swap kill closing", "fsdp swap none exit"):
        ended = ranks(case, tmp_path)
    assert (ended.returncode, ended.stdout.count("ended")) == (0, 2), ended.stderr[-4000:]
