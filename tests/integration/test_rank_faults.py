"""Two ranks, of which one is killed, starved or raises at a named moment: both end, in words, and nothing is left.

Each loss that a rank has told until then is that of PyTorch without a session.
"""

import os
import subprocess
import uuid
from pathlib import Path

import pytest
import warm_processes
from rank_faults import MOMENTS
from test_ranks import left_with, torchrun

from umadvise._hooks.loader import compiled_library
from umadvise.training.plans.shelf import decode

FULL = os.environ.get("UMADVISE_FULL") == "1"
STRATEGIES, POLICIES = ("ddp", "fsdp"), ("advise", "swap", "auto")
SAMPLE = (
    "ddp swap kill backward",
    "ddp auto starve optimizer",
    "fsdp swap starve forward",
    "fsdp advise raise collective",
)
IN_SESSION = [moment for moment in MOMENTS if moment not in ("opening", "exit")]
"""The ten moments at which there is a budget."""
ALL = [
    f"{strategy} {POLICIES[(place + event + group) % 3]} {fault} {moment}"
    for group, strategy in enumerate(STRATEGIES)
    for event, fault in enumerate(("kill", "raise", "starve"))
    for place, moment in enumerate(IN_SESSION if fault == "starve" else MOMENTS)
]
"""The strategies with all faults and moments; the policies take turns, so that each fault meets each of them."""
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


def losses(ended: "subprocess.CompletedProcess[str]") -> set[str]:
    """The lines that say a rank, a step and its loss."""
    return {line for line in ended.stdout.splitlines() if " loss " in line}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """By strategy: the losses without a session and without a fault."""
    found = {each: losses(ranks(f"{each} plain none exit", tmp_path_factory.mktemp(each))) for each in STRATEGIES}
    assert [len(each) for each in found.values()] == [10, 10]
    return found


def test_every_fault_meets_every_policy() -> None:
    for fault in ("kill", "raise", "starve"):
        rows = [case.split() for case in ALL if fault in case]
        assert len(rows) == len({(row[0], row[3]) for row in rows}) >= 20
        assert {(row[0], row[1]) for row in rows} == {(one, other) for one in STRATEGIES for other in POLICIES}


@pytest.mark.parametrize("case", ALL if FULL else SAMPLE)
def test_a_rank_that_ends_early_ends_the_other_one(case: str, tmp_path: Path, plain: dict[str, set[str]]) -> None:
    strategy, policy, fault, moment = case.split()
    mark = uuid.uuid4().hex
    ended = ranks(case, tmp_path, mark)
    assert losses(ended) <= plain[strategy]
    assert left_with(mark) == []
    for path in tmp_path.rglob("*.steps"):
        assert decode(path.read_bytes())
    for crash in ("terminate called", "exitcode  : -6", "exitcode  : -11", "Fatal Python error"):
        assert crash not in ended.stderr, ended.stderr[-4000:]
    if fault == "starve" and policy != "swap":  # unified memory pages what the device has no memory for
        assert (ended.returncode, losses(ended)) == (0, plain[strategy]), ended.stderr[-4000:]
        return
    if moment == "exit" and fault != "kill":  # Python goes on where a function of atexit raises
        assert ended.stdout.count("ended") == 2
    else:
        assert ended.returncode != 0
        assert "rank 1 ended" not in ended.stdout or moment == "exit"
    assert SAID[fault] in ended.stderr, ended.stderr[-4000:]


@pytest.mark.long
def test_the_next_run_finds_what_a_killed_one_has_kept(tmp_path: Path) -> None:
    """And runs to its end; so does one without a fault."""
    for case in ("fsdp swap kill closing", "fsdp swap none exit"):
        ended = ranks(case, tmp_path)
    assert (ended.returncode, ended.stdout.count("ended")) == (0, 2), ended.stderr[-4000:]
