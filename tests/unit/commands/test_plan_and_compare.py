"""`umadvise plan` and `compare`, and the `advice` planner, on steps whose times can be worked out."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import structs
from timed_steps import GIB, OP_NS, V100, command, maps
from traces import traces

from umadvise import planners
from umadvise.__main__ import main
from umadvise.devices.catalogue import load_device
from umadvise.devices.rungs import ADVISE
from umadvise.errors import PolicyError
from umadvise.planners.judging import comparison as comparisons
from umadvise.planners.judging.score import pages, score
from umadvise.planners.paging.advice import all_combinations, by_role
from umadvise.records import trace_file as io
from umadvise.records.advice import PAPER_WORDS
from umadvise.records.enums import Role
from umadvise.records.plan import Action, ActionKind, Plan
from umadvise.records.trace import Trace
from umadvise.reports.reporters import comparison as reporter
from umadvise.reports.reporters import svg
from umadvise.simulator.unified import simulate_unified


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    io.write(maps(4), tmp_path / "maps.trace")
    return tmp_path / "maps.trace"


# ---- advice --------------------------------------------------------------------------------------------------------


def test_advice_by_hand() -> None:
    plan = planners.run("advice", maps(2), V100, GIB)
    assert list(plan) == [
        Action(ActionKind.ADVISE, 0, 0, bytes=GIB, argument=ADVISE.advice[Role.PARAMETER]),
        Action(ActionKind.PREFETCH, 0, 1, after=True, bytes=GIB),
        Action(ActionKind.PREFETCH, 1, 2, after=True, bytes=GIB),
    ]
    assert by_role(plan) == ADVISE.advice


def test_there_are_125_combinations() -> None:
    combinations = [tuple(sorted(options.items())) for options in all_combinations()]
    assert len(set(combinations)) == len(combinations) == 125
    for options in all_combinations():
        assert set(options.values()) <= set(PAPER_WORDS)
        assert dict(planners.run("advice", maps(1), V100, GIB, **options).options) == options


@given(trace=traces(), options=st.sampled_from(list(all_combinations())))
@settings(max_examples=40, deadline=None)
def test_advice_is_executed(trace: Trace, options: dict[str, str]) -> None:
    assume(len(trace.ops))
    plan = planners.run("advice", trace, V100, GIB, **options)
    assert pages(plan)
    simulate_unified(trace, V100, capacity_bytes=GIB, plan=plan, iterations=2)
    assert score(trace, V100, plan, iterations=2).problem is None


def test_advice_needs_a_device_that_pages() -> None:
    with pytest.raises(PolicyError, match="cannot page unified memory"):
        planners.run("advice", maps(1), load_device("k40"), GIB)


# ---- scores --------------------------------------------------------------------------------------------------------


def test_a_plan_of_swaps_in_numbers() -> None:
    """One map leaves while another is made, and comes back before its turn: all in the shade of arithmetic."""
    trace = maps(4)
    out, back = Action(ActionKind.SWAP_OUT, 1, 1, after=True), Action(ActionKind.SWAP_IN, 5, 1, after=True)
    plan = Plan.from_actions(trace, [out, back], planner="hand", budget_bytes=4 * GIB)
    result = score(trace, V100, plan)
    assert (result.step_ns, result.unlimited_ns, result.overhead) == (8 * OP_NS, 8 * OP_NS, 0.0)
    assert (result.bytes_h2d, result.bytes_d2h, result.recompute_ns, result.evictions) == (GIB, GIB, 0, 0)
    assert result.peak_bytes == 4 * GIB  # of 5
    assert result.fragmentation_bytes == 0


def test_a_map_made_again_takes_its_op_once_more() -> None:
    trace = maps(2)
    drop, again = Action(ActionKind.DROP, 1, 1), Action(ActionKind.RECOMPUTE, 3, 1, argument=0)
    result = score(trace, V100, Plan.from_actions(trace, [drop, again], planner="hand", budget_bytes=3 * GIB))
    assert (result.step_ns, result.recompute_ns, result.overhead) == (5 * OP_NS, OP_NS, 0.25)


TABLE = """\
maps on v100-pcie-16gb, simulated: in unlimited memory 8.00 s and 5.00 GiB

In 5.00 GiB, 100% of that
                                                                      frag-
planner      peak    step  overhead  to device  to host  recomputed  mented  stalled  regret  planning
belady   5.00 GiB  8.00 s      0.0%        0 B      0 B        0 ns     0 B     0.0%    0.0%   1.00 ms
advice   5.00 GiB  8.01 s      0.1%        0 B      0 B        0 ns     0 B     0.1%       -   1.00 ms
Regret is over the bound of 8.00 s (compute).

In 1.00 GiB, 20% of that
                                                                frag-
planner  peak  step  overhead  to device  to host  recomputed  mented  stalled  regret  planning
belady      x     x         x          x        x           x       x        x       x         x
belady: op 0 (aten::mm) uses 2.00 GiB at once: no plan of swaps keeps a budget of 1.00 GiB; give at least that, make the
batch smaller, or page: um-window, advice and best plan for unified memory, where an op may use more
"""


# ---- commands ------------------------------------------------------------------------------------------------------


def test_a_plan_is_what_its_file_says(trace_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_file = tmp_path / "maps.plan"
    words = (trace_file, "--target", "v100-16gb")
    code, out, err = command(
        capsys, "plan", *words, "--planner", "belady", "--budget", "3GiB", "-o", plan_file, "--json"
    )
    assert (code, err) == (0, f"umadvise: plan in {plan_file}\n")
    planned = json.loads(out)
    assert planned["schema"] == "umadvise.comparison/1"
    code, out, err = command(capsys, "simulate", *words, "--plan", plan_file, "--json")
    assert (code, err) == (0, "")
    simulated = json.loads(out)
    assert simulated["budget_bytes"] == 3 * GIB
    way = next(way for way in simulated["ways"] if way["name"] == "plan")
    for field in ("step_ns", "stalls", "bytes_h2d", "bytes_d2h"):
        assert way[field] == planned["scores"][0][field]
    assert "your plan" in command(capsys, "simulate", *words, "--plan", plan_file)[1]


def test_best_begins_with_what_the_others_plan() -> None:
    trace = maps(12)
    quick = (("episodes", 2), ("rounds", 1))
    names = [
        comparisons.Competitor("dqn", "dqn", quick),
        comparisons.Competitor("one", "best", (("trials", 0),)),
        comparisons.Competitor("two", "best", (("trials", 2),)),
    ]
    budgets = [trace.peak_bytes * percent // 100 for percent in (80, 60)]
    calls: list[tuple[int, int]] = []
    found = comparisons.compare(
        trace, load_device("v100-16gb"), names, budgets, workers=1, progress=lambda *done: calls.append(done)
    )
    steps_ns = {(each.planner, each.budget_bytes): each.step_ns for each in found.scores}
    assert (len(steps_ns), found.missing) == (6, 0)
    assert calls[-1][0] == calls[-1][1]  # nobody planned twice
    for size in budgets:
        assert max(steps_ns["one", size], steps_ns["two", size]) <= steps_ns["dqn", size]


def test_best_begins_with_a_plan_from_a_file(
    trace_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, found = tmp_path / "given.plan", tmp_path / "found.plan"
    step = ["plan", str(trace_file), "--budget", "60%", "--no-regret", "--json"]
    steps_ns = []
    for words in (
        ["--planner", "window", "--option", "refined=true", "-o", str(given)],
        ["--planner", "best", "--option", "trials=1", "--begin-with", str(given), "-o", str(found)],
    ):
        assert main([*step, *words]) == 0
        steps_ns.append(json.loads(capsys.readouterr().out)["scores"][0]["step_ns"])
    assert steps_ns[1] <= steps_ns[0]
    assert main([*step, "--planner", "lms", "--begin-with", str(given), "-o", str(found)]) != 0
    assert "begins with no other plan" in capsys.readouterr().err


def test_a_plan_is_simulated_on_another_device_too(
    trace_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_file = tmp_path / "maps.plan"
    command(capsys, "plan", trace_file, "--planner", "lru", "--budget", "60%", "-o", plan_file)
    steps_ns = []
    for target in ((), ("--target", "k40")):
        assert main([*map(str, ("simulate", trace_file, *target, "--plan", plan_file)), "--json"]) == 0
        ways = json.loads(capsys.readouterr().out)["ways"]
        steps_ns.append(next(each["step_ns"] for each in ways if each["name"] == "plan"))
    assert None not in steps_ns
    assert steps_ns[0] != steps_ns[1]


def test_a_small_comparison_in_words() -> None:
    compared = comparisons.compare(maps(4), V100, ["belady", "advice"], [5 * GIB, GIB], workers=1)
    scores = tuple(
        structs.replace(each, planning_ns=None if each.problem else 10**6)
        for each in compared.scores
        if each.planner == "belady" or each.budget_bytes > GIB  # what thrashing takes is the simulator's to say
    )
    assert reporter.render(structs.replace(compared, scores=scores)) == TABLE


def test_processes_agree_with_one(trace_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "maps.svg"
    code, out, err = command(
        capsys, "compare", trace_file, "--planner", "lru,belady", "--budget", "3GiB,80%", "--plot", picture, "--json"
    )
    assert (code, err) == (0, "")
    assert all(score["regret"] >= 0 and score["bound_ns"] >= 8 * OP_NS * 0.99 for score in json.loads(out)["scores"])
    here = comparisons.compare(io.read(trace_file), V100, ["lru", "belady"], [3 * GIB, 4 * GIB], workers=1)
    compared = json.loads(out)
    assert compared["missing"] == 0
    assert [(score["planner"], score["budget_bytes"], score["step_ns"]) for score in compared["scores"]] == [
        (score.planner, score.budget_bytes, score.step_ns) for score in here.scores
    ]
    unjudged = command(capsys, "compare", trace_file, "--planner", "lru", "--budget", "3GiB", "--no-regret", "--json")[
        1
    ]
    assert json.loads(unjudged)["scores"][0]["regret"] is None
    drawing = ElementTree.fromstring(picture.read_text())
    lines = drawing.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 4  # two planners, in two drawings, each in one colour
    assert len({line.attrib["stroke"] for line in lines}) == 2


def test_an_interrupt_gives_what_is_ready() -> None:
    def interrupt(done: int, _all: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    compared = comparisons.compare(maps(3), V100, ["belady", "lru"], [3 * GIB, 2 * GIB], workers=1, progress=interrupt)
    assert [(score.planner, score.budget_bytes) for score in compared.scores] == [("belady", 3 * GIB)]
    assert compared.missing == 3
    assert "Interrupted: 3 more were not ready." in reporter.render(compared)


def test_planners_with_options_and_plans_take_part(
    trace_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan for 3 GiB is worth in 4 what it is in 3, and cannot in 2; options give what `umadvise plan` gives."""
    mine = tmp_path / "mine.plan"
    words = ("--planner", "window", "--option", "refined=true", "--option", f"schedule_window={GIB}")
    planned = json.loads(
        command(capsys, "plan", trace_file, *words, "--budget", "3GiB", "-o", mine, "--no-regret", "--json")[1]
    )["scores"][0]
    taking_part = f"window:refined=true,schedule_window={GIB},lru,{mine},window"
    code, out, err = command(
        capsys, "compare", trace_file, "--planner", taking_part, "--budget", "4GiB,3GiB,2GiB", "--no-regret", "--json"
    )
    assert (code, err) == (0, "")
    scores = {(score["planner"], score["budget_bytes"] // GIB): score for score in json.loads(out)["scores"]}
    assert [name for name, gib in scores if gib == 3] == [
        f"window:refined=true,schedule_window={GIB}",
        "lru",
        "mine.plan",
        "window",
    ]
    same = ("step_ns", "peak_bytes", "bytes_h2d", "bytes_d2h")
    for name in ("mine.plan", f"window:refined=true,schedule_window={GIB}"):
        assert [scores[name, 3][field] for field in same] == [planned[field] for field in same]
    assert scores["mine.plan", 4]["step_ns"] == planned["step_ns"]
    assert "no room" in scores["mine.plan", 2]["problem"] or planned["peak_bytes"] <= 2 * GIB
    assert scores["mine.plan", 3]["planning_ns"] is None


def test_options_of_a_name_stand_below_it() -> None:
    compared = comparisons.compare(
        maps(2), V100, [comparisons.Competitor("lms:sync_mode=3,swapin_ahead=1", "lms", (("sync_mode", 3),))], [4 * GIB]
    )
    lines = [line[:18].rstrip() for line in reporter.render(compared).splitlines()]
    row = lines.index("lms:")
    assert lines[row + 1 : row + 3] == ["  sync_mode=3,", "  swapin_ahead=1"]


def test_an_interrupt_before_there_is_anything(
    trace_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_path: str) -> Trace:
        raise KeyboardInterrupt

    monkeypatch.setattr(io, "read", interrupt)
    assert command(capsys, "compare", trace_file) == (1, "", "umadvise compare: interrupted\n")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["compare", "--planner", "magic"], 2, "unknown planner 'magic'"),
        (["compare", "--planner", "lru,"], 2, "expected words with commas"),
        (["compare", "--planner", "refined=true"], 2, "unknown planner 'refined=true'"),
        (["compare", "--planner", "lru:speed=1"], 2, "has no option 'speed'"),
        (["compare", "--planner", "lms:sync_mode=fast"], 2, "sync_mode=fast: expected int | none"),
        (["compare", "--planner", "window:refined=1"], 2, "refined=1: expected bool"),
        (["compare", "--planner", "superneurons:strategy=fast"], 2, "expected cost-aware or speed-centric"),
        (["compare", "--planner", "lru,lms,lru"], 2, "two are called lru"),
        (["compare", "--planner", "maps.trace"], 1, "is no plan of this trace"),
        (["compare", "--budget", "99GiB"], 2, "more than v100-pcie-16gb leaves"),
        (["compare", "--budget", "x%"], 2, "cannot read 'x%' as a budget"),
        (["compare", "--budget", "0%"], 2, "cannot read '0%' as a budget"),
        (["compare", "--budget", "lots"], 2, "cannot read 'lots'"),
        (["compare", "--plot", "a.png"], 2, "ends in .svg"),
        (["plan", "--planner", "magic", "-o", "a.plan"], 2, "unknown planner 'magic'"),
        (["plan", "--planner", "lru", "--option", "speed=1", "-o", "a.plan"], 2, "has no option 'speed'"),
        (["plan", "--planner", "advice", "--option", "input=3", "-o", "a.plan"], 2, "expected str"),
        (["plan", "--planner", "advice", "--option", "input=hurry", "-o", "a.plan"], 2, "unknown advice 'hurry'"),
        (["plan", "--planner", "lru", "--budget", "1GiB", "-o", "a.plan"], 1, "uses 2.00 GiB at once"),
        (["plan", "--planner", "lru", "-o", "maps.trace"], 2, "is the trace itself"),
        (["simulate", "--plan", "maps.trace"], 1, "is no plan of this trace"),
    ],
)
def test_bad_input(
    trace_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    says: str,
) -> None:
    monkeypatch.chdir(trace_file.parent)
    before = trace_file.read_bytes()
    given_ = command(capsys, words[0], "maps.trace", *words[1:])
    assert given_[:2] == (code, "")
    assert says in given_[2]
    assert trace_file.read_bytes() == before
    assert [path.name for path in trace_file.parent.iterdir()] == ["maps.trace"]


# ---- drawings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("least", "most", "expected"),
    [
        (0, 8, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (0, 0.9, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 130, [0, 20, 40, 60, 80, 100, 120, 140]),
        (11.6, 18.1, [11, 12, 13, 14, 15, 16, 17, 18, 19]),
        (12, 18, [12, 13, 14, 15, 16, 17, 18]),
        (5, 5, [0, 1, 2, 3, 4, 5]),
        (0, 0, [0, 1]),
    ],
)
def test_ticks_are_round(least: float, most: float, expected: list[float]) -> None:
    assert svg.ticks(most, least) == pytest.approx(expected)


def test_one_planner_that_thrashes_does_not_press_the_others_down() -> None:
    """Four times the median of 10, 20, 40 and 5000 % is 120 %."""
    compared = comparisons.compare(maps(2), V100, ["lru"], [4 * GIB], regrets=False)
    (one,) = compared.scores
    several = [structs.replace(one, planner=f"p{part}", overhead=part) for part in (0.1, 0.2, 0.4, 50.0)]
    drawing = ElementTree.fromstring(reporter.draw(structs.replace(compared, scores=tuple(several))))
    words = ["".join(text.itertext()) for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert "overhead, % (some have more)" in words and "120" in words and "140" not in words
    assert {f"p{part}" for part in (0.1, 0.2, 0.4, 50.0)} <= set(words)
    heights = [float(mark.attrib["cy"]) for mark in drawing.iter("{http://www.w3.org/2000/svg}circle")]
    assert heights[0] - heights[1] == pytest.approx(280 / 12, abs=0.2)  # 10 of 120
    assert heights[3] < 0  # beyond the clipped part


@given(
    names=st.lists(st.text("abc:=,", min_size=1, max_size=40), min_size=1, max_size=30),
    title=st.text("t", max_size=200),
)
@settings(max_examples=30, deadline=None)
def test_words_of_a_drawing_have_their_place(names: list[str], title: str) -> None:
    """Letters of no more than 0.6 of the font's size: all words end before the edge, and no line of the legend meets
    the next drawing's title."""
    series = [svg.Series(name, [(5.0, 1.0), (6.0, 2.0)], row) for row, name in enumerate(names)]
    drawing = ElementTree.fromstring(svg.render([svg.Panel(title, "x", "y", series, limit=(2.0, "budget"))] * 2))
    width, height = float(drawing.attrib["width"]), float(drawing.attrib["height"])
    for text in drawing.iter("{http://www.w3.org/2000/svg}text"):
        letters = len("".join(text.itertext())) * 0.6 * float(text.attrib.get("font-size", 12))
        assert text.attrib.get("text-anchor") or float(text.attrib["x"]) + letters <= width
        assert float(text.attrib["y"]) <= height / 2


def test_a_drawing_says_what_it_draws() -> None:
    line = svg.Series("a <b>", [(0.0, 1.0), (2.0, 3.0)], 0, steps=True)
    drawing = ElementTree.fromstring(svg.render([svg.Panel("t", "x & y", "z", [line], limit=(4.0, "most"))]))
    words = ["".join(text.itertext()) for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert {"t", "x & y", "z", "a <b>", "most"} <= set(words)
    (path,) = drawing.iter("{http://www.w3.org/2000/svg}polyline")
    places = [tuple(map(float, pair.split(","))) for pair in path.attrib["points"].split()]
    assert places[1] == (places[2][0], places[0][1])  # the value holds until the next point


def test_a_budget_that_the_device_does_not_have_costs_only_its_own_column(
    trace_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("compare", trace_file, "--target", "v100-16gb", "--budget", "400%,60%", "--planner", "belady")
    code, printed, _ = command(capsys, *words, "--no-regret", "--json")
    scores = json.loads(printed)["scores"]
    assert code == 0
    assert [each["budget_bytes"] for each in scores] == [20 * GIB, 3 * GIB]
    assert "a budget of 20.00 GiB is more than" in scores[0]["problem"]
    assert scores[1].get("problem") is None
    assert scores[1]["step_ns"] > 0
    code, printed, _ = command(capsys, *words, "--no-regret")
    assert code == 0
    assert "belady: a budget of 20.00 GiB is more than" in printed
