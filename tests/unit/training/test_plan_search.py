"""Searches in a process of its own: what it finds, when that comes, and that nothing of it is left."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces import layers

from umadvise import planners
from umadvise.devices.catalogue import load_device
from umadvise.planners.capacity import Capacity
from umadvise.records import plan_file
from umadvise.records.trace import Trace
from umadvise.training.plans import search, search_task
from umadvise.training.plans.device import PlanningDevice
from umadvise.training.plans.prediction import predict_swaps
from umadvise.training.plans.search import PlanSearch

MIB = 1 << 20
BUDGET = 60 * MIB
SECONDS = 60
CHUNK = 2 * MIB
DEVICE = load_device("v100-16gb")
PLANNED = PlanningDevice(DEVICE, "v100", synchronous=True)

OTHERS: set[int] = set()
"""Processes that tests before this one have left."""


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(search.SWITCH, "")


@pytest.fixture
def opened() -> Iterator[Callable[..., PlanSearch[str]]]:
    searches: list[PlanSearch[str]] = []
    OTHERS.clear()
    OTHERS.update(children())

    def open_search(**options: Any) -> PlanSearch[str]:
        searches.append(PlanSearch(**options))
        return searches[-1]

    yield open_search
    for each in searches:
        each.close()
    assert children() == set()


def children() -> set[int]:
    """Processes that this one has started in this test and that have not been waited for."""
    found = {int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}
    return found - OTHERS


def quick(trace: Trace | None = None) -> Callable[[], bytes]:
    return lambda: search_task.encode("belady", trace or layers(6), PLANNED, Capacity(BUDGET), {})


def endless() -> bytes:
    """In half of the budget there is something to search for."""
    return search_task.encode(
        "dqn", layers(6), PLANNED, Capacity(BUDGET // 2), {"time_limit_s": 3600.0, "episodes": 10**6}
    )


def until(condition: Callable[[], Any]) -> Any:
    """What the condition says when it first holds; a minute is for machines that are busy."""
    end = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def test_what_it_finds_is_what_the_planner_makes_here(opened: Callable[..., PlanSearch[str]]) -> None:
    trace, found = layers(6), opened()
    found.ask("key", quick(trace), "about")
    [(about, packed)] = until(found.ended)
    assert about == "about"
    plan = plan_file.decode(packed, trace)
    assert list(plan) == list(planners.run("belady", trace, DEVICE, BUDGET))
    assert found.ended() == []


def test_its_options_and_what_may_run_again_come_along() -> None:
    trace = layers(6)
    never, options = np.zeros(len(trace.ops), bool), {"trials": 2, "paging": False}
    packed = search_task.made(search_task.encode("best", trace, PLANNED, Capacity(BUDGET), options, repeatable=never))
    plan = plan_file.decode(packed, trace)
    here = planners.run("best", trace, DEVICE, BUDGET, None, (), never, **options)
    assert list(plan) == list(here)
    assert dict(plan.options) == dict(here.options)


@pytest.mark.parametrize(("present", "planner"), [("window", "belady"), ("belady", "window")])
def test_the_plan_that_drives_stays_where_the_engine_is_faster_with_it(present: str, planner: str) -> None:
    trace, tight = layers(6), BUDGET // 2
    plans = {each: planners.run(each, trace, DEVICE, tight) for each in (present, planner)}
    times = {
        each: predict_swaps(trace, plan, PLANNED, budget_bytes=tight, chunk_bytes=CHUNK).mean_step_ns
        for each, plan in plans.items()
    }
    assert times["window"] < times["belady"]
    trial = search_task.PlanTrial(np.ones(len(trace.storages), bool), tight, CHUNK, plans[present])
    packed = search_task.made(search_task.encode(planner, trace, PLANNED, Capacity(tight), {}, trial=trial))
    assert list(plan_file.decode(packed, trace)) == list(plans["window"])


def test_what_cannot_be_written_down_is_not_searched_for(
    opened: Callable[..., PlanSearch[str]], caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> bytes:
        raise ValueError("no step")

    found = opened()
    found.ask("broken", broken, "about")
    assert "no better plan is searched for: no step" in caplog.text
    found.ask("key", quick(), "about")
    assert len(until(found.ended)) == 1


def test_edges_do_not_wait_for_it(opened: Callable[..., PlanSearch[str]]) -> None:
    running = opened()
    running.ask("key", endless, "about")
    for _ in range(5):
        assert running.ended() == []
    assert len(children()) == 1


def test_in_virtual_time_it_comes_two_edges_later(opened: Callable[..., PlanSearch[str]]) -> None:
    found = opened(waits=True)
    found.ended()
    found.ask("one", quick(), "one")
    found.ask("other", quick(), "other")
    came = [[about for about, _ in found.ended()] for _ in range(6)]
    assert came == [[], ["one"], [], ["other"], [], []]


def test_the_process_is_humble(opened: Callable[..., PlanSearch[str]]) -> None:
    running = opened()
    running.ask("key", endless, "about")
    [pid] = children()
    assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    assert resource.prlimit(pid, resource.RLIMIT_DATA)[0] == search.MOST_MEMORY_BYTES
    until(lambda: len(list(Path(f"/proc/{pid}/task").iterdir())) > 1)  # it has come to its own thread
    mapped = Path(f"/proc/{pid}/maps").read_text()
    assert "libtorch" not in mapped
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert b"OMP_NUM_THREADS=1" in variables
    assert os.getpgid(pid) != os.getpgid(0)  # Ctrl-C is not for it


@pytest.mark.parametrize("waits", [False, True])
def test_a_process_that_is_killed_ends_its_search_alone(
    waits: bool, opened: Callable[..., PlanSearch[str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="umadvise")
    found = opened(waits=waits)
    found.ask("killed", endless, "killed")
    found.ask("next", quick(), "next")
    [pid] = children()
    os.kill(pid, signal.SIGKILL)
    assert [about for about, _ in until(found.ended)] == ["next"]
    assert "signal 9 ended its process" in caplog.text


def test_a_planner_without_a_plan_says_why(
    opened: Callable[..., PlanSearch[str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="umadvise")
    found = opened(waits=True)
    found.ask("key", lambda: search_task.encode("belady", layers(6), PLANNED, Capacity(MIB), {}), "about")
    assert [found.ended() for _ in range(3)] == [[]] * 3
    assert "uses 10.00 MiB at once" in caplog.text


def test_the_memory_of_its_process_is_bounded(
    opened: Callable[..., PlanSearch[str]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", logger="umadvise")
    monkeypatch.setattr(search, "MOST_MEMORY_BYTES", 24 * MIB)
    found = opened(waits=True)
    found.ask("key", quick(), "about")
    assert [found.ended() for _ in range(3)] == [[]] * 3
    assert "found none" in caplog.text


def test_what_is_asked_for_most_comes_first_and_then_the_last(opened: Callable[..., PlanSearch[str]]) -> None:
    found = opened(waits=True)
    found.ask("running", quick(), "running")
    for key in ("a", "b", "c", "a"):
        found.ask(key, quick(), key)
    found.ask("running", quick(), "running")  # it runs already
    came = [about for _ in range(10) for about, _ in found.ended()]
    assert came == ["running", "a", "c", "b"]


def test_few_searches_wait(opened: Callable[..., PlanSearch[str]]) -> None:
    running = opened()
    running.ask("running", endless, "running")
    for number in range(100):
        running.ask(str(number), endless, str(number))
    assert [each.key for each in running._waiting] == [str(number) for number in range(92, 100)]


def test_where_no_process_can_be_started_nothing_is_searched_for(
    opened: Callable[..., PlanSearch[str]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="umadvise")

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(subprocess, "Popen", refused)
    running = opened()
    for key in "ab":
        running.ask(key, quick(), key)
    assert running.ended() == []
    assert caplog.text.count("not here") == 1


def test_it_can_be_switched_off(opened: Callable[..., PlanSearch[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(search.SWITCH, "off")
    running = opened(waits=True)
    running.ask("key", endless, "about")
    assert children() == set()
    assert [running.ended() for _ in range(3)] == [[]] * 3


def test_a_fork_of_the_training_leaves_it_alone(opened: Callable[..., PlanSearch[str]]) -> None:
    running = opened()
    running.ask("key", endless, "about")
    [pid] = children()
    if (child := os.fork()) == 0:
        good = running.ended() == []
        running.ask("other", endless, "about")
        running.close()
        os._exit(0 if good and children() == set() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert children() == {pid}
    assert running.ended() == []


def test_it_ends_with_its_parent() -> None:
    """However that one ends, and although processes that it has forked live on."""
    program = f"""
import os, sys, time
sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
from test_plan_search import children, endless
from umadvise.training.plans.search import PlanSearch
running = PlanSearch()
running.ask("key", endless, "about")
print(*children(), flush=True)
if os.fork() == 0:
    time.sleep(2)
    os._exit(0)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False, timeout=SECONDS
    )
    pid = int(done.stdout)

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except FileNotFoundError:
            return True

    until(gone)
