"""The page's structure: no address, what the tables say, what the pictures are drawn from, its size."""

import json
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from pictures import known, seen

from umadvise.records.counters import Chunks, SpentTime
from umadvise.records.fault_profile import FaultProfile, Finding, RungChange, RungPrediction
from umadvise.reports.counters.step_picture import pictured
from umadvise.reports.html import charts, page
from umadvise.reports.html.markup import MOST_ROWS, Cell, table

MIB = 1 << 20
GIB = 1 << 30
VOID = {"meta", "br", "input", "link", "img"}


class Page(HTMLParser):
    """What a page holds: tags that are open, attributes, tables by caption, and texts of scripts."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.texts: dict[str, str] = {}
        self._rows: list[list[str]] = []
        self._text: list[str] = []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self._rows = []
        if tag == "tr":
            self._rows.append([])
        if tag in ("th", "td", "caption", "script", "title", "style", "h2"):
            self._text = []

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        text = "".join(self._text)
        if tag in ("th", "td"):
            self._rows[-1].append(text)
        elif tag == "caption":
            self.tables[text] = self._rows
        elif tag in ("script", "title", "h2"):
            self.texts[f"{tag} {sum(key.startswith(tag) for key in self.texts)}"] = text


@pytest.fixture(scope="module")
def profile(make: Any) -> FaultProfile:
    counters = make.counters(fault_groups=20, fault_service_ns=500, bytes_h2d=make.by_cause(coherence=40 * MIB))
    swaps = make.swaps(swap_ins=4, swap_in_bytes=8 * MIB, wait_copy_ns=200)
    steps = make.steps(make.counters(fault_groups=12, fault_service_ns=300), make.counters(), duration_ns=1000)
    made: FaultProfile = make.profile(
        duration_ns=2000,
        counters=counters,
        swaps=swaps,
        chunks=Chunks(chunk_bytes=2 * MIB, budget_bytes=GIB, used_peak_bytes=0, host_peak_bytes=0),
        steps=tuple(msgspec.structs.replace(step, swaps=make.swaps(wait_copy_ns=100)) for step in steps),
        tables=make.tables(
            module=(
                make.module(
                    module="encoder", fault_groups=16, service_ns=400, bytes_h2d=make.by_cause(coherence=2 * MIB)
                ),
                make.module(module="</script><b>", fault_groups=4, service_ns=100, wait_copy_ns=200),
            ),
            tensor=(make.tensor(name="encoder.weight", role="parameter", fault_groups=20),),
            op=(make.op(op="aten::mm", phase="forward", fault_groups=20),),
        ),
        findings=(Finding(id="x", severity="warning", subject="s", message="1 < 2", advice="do", evidence={}),),
        rungs=(RungChange(step=1, rung="advise", reason="chosen"),),
        predictions=(RungPrediction(rung="advise", step_ns=1200), RungPrediction(rung="swap", step_ns=700)),
        picture=pictured(seen(make), known()),
    )
    return made


@pytest.fixture(scope="module")
def other(profile: FaultProfile, make: Any) -> FaultProfile:
    tables = make.tables(
        module=(make.module(module="encoder", service_ns=100), make.module(module="head", service_ns=80))
    )
    return msgspec.structs.replace(profile, duration_ns=1000, tables=tables)


@pytest.fixture(scope="module")
def document(profile: FaultProfile) -> str:
    return page.render(profile)


def test_it_holds_all_that_it_needs(document: str) -> None:
    found = Page(document)
    assert found.open == []
    assert "://" not in document
    loading = {"src", "srcset", "action", "data", "poster", "background", "formaction", "ping"}
    assert not [tag for tag, attributes in found.tags if loading & attributes.keys()]
    assert all(attributes["href"].startswith("#") for _, attributes in found.tags if attributes.get("href"))
    assert not {tag for tag, _ in found.tags} & {"link", "img", "iframe", "object", "embed", "base", "form"}
    styles = document.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in styles
    assert "@import" not in styles
    (policy,) = (each["content"] for _, each in found.tags if each.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "http" not in policy
    assert "Copyright (c) 2022 Leon Sorokin" in document


def test_links_go_to_sections(document: str) -> None:
    found = Page(document)
    anchors = {each["id"] for tag, each in found.tags if tag == "section"}
    assert {str(each["href"])[1:] for tag, each in found.tags if tag == "a"} == anchors
    assert anchors >= {"findings", "totals", "steps", "time", "subjects", "predicted", "tensors", "stalls"}


def test_tables_say_it_without_scripts(document: str) -> None:
    tables = Page(document).tables
    assert tables["By module, per step"][0] == [
        "module", "resident peak", "faults", "to device", "to host", "of step", "swapped in", "swapped out", "waits",
        "waits of step",
    ]  # fmt: skip
    assert tables["By module, per step"][1:] == [
        ["encoder", "-", "8", "1.00 MiB", "0 B", "20.0%", "0 B", "0 B", "0 ns", "0.0%"],
        ["</script><b>", "-", "2", "0 B", "0 B", "5.0%", "0 B", "0 B", "100 ns", "10.0%"],
    ]
    assert tables["Each step"][1] == ["1", "1.00 us", "300 ns", "12", "100 ns", "0 ns", "10.0%", "0 B", "0 B"]
    assert tables["A step by rung"][1:] == [
        ["advise", "1.20 us", "1.00 us", "1", "+20.0%"],
        ["swap", "700 ns", "-", "0", "-"],
    ]
    assert tables["Largest tensors and their lifetimes"][1:] == [
        ["weight", "parameter", "4.00 MiB", "0 ns", "1.00 us", "1.00 us"],
        ["aten::mm in net", "intermediate", "2.00 MiB", "0 ns", "1.00 us", "1.00 us"],
    ]
    assert tables["Longest stalls"][1:] == [
        ["aten::mul", "wait for a copy", "aten::mm in net", "planned", "500 ns", "100 ns"]
    ]


def test_the_time_of_each_step_is_divided(profile: FaultProfile) -> None:
    nothing = dict.fromkeys(SpentTime.__struct_fields__, 0)
    times = SpentTime(**{**nothing, "compute_ns": 600, "room_ns": 390})
    steps = (msgspec.structs.replace(profile.steps[0], times=times), profile.steps[1])
    tables = Page(page.render(msgspec.structs.replace(profile, steps=steps))).tables
    assert tables["Where each step's time went"] == [
        ["step", "time", "ops", "room for swap-ins", "unexplained"],
        ["1", "1.00 us", "600 ns", "390 ns", "10 ns"],
    ]


def payload(document: str) -> list[dict[str, Any]]:
    data = re.search(r'<script type="application/json" id="charts">(.*)</script>', document)
    assert data is not None
    found: list[dict[str, Any]] = json.loads(data[1])
    return found


def test_pictures_are_drawn_from_the_same_numbers(document: str) -> None:
    steps, memory, lifetimes, links, stalls = payload(document)
    assert [each["name"] for each in steps["series"]] == ["step time", "stood still"]
    assert [each["values"] for each in steps["series"]] == [[0.001, 0.001], [0.0004, 0.0001]]
    assert {each["name"]: each["values"] for each in memory["series"]} == {"parameter": [4, 4], "intermediate": [2, 0]}
    assert memory["limit"]["value"] == 1024
    assert lifetimes["lives"][1] == [0, 0.001, 2 * MIB, 2, "aten::mm in net"]
    part_s = 1e-6 / charts.BINS
    moved = [sum(each["values"]) * 1e9 * part_s for each in links["series"]]
    assert moved == pytest.approx([2 * MIB, 2 * MIB], rel=1e-4)  # both ways, by swaps
    stalled = {each["name"]: sum(each["values"]) / 100 * 1000 / charts.BINS for each in stalls["series"]}
    assert stalled == pytest.approx({"fault service": 0, "waits for copies": 100, "waits for room": 0}, rel=1e-4)


def test_two_runs_are_compared(profile: FaultProfile, other: FaultProfile) -> None:
    document = page.render(profile, other)
    tables = Page(document).tables
    assert tables["A step of both runs"][1] == ["step time", "1.00 us", "500 ns", "+100.0%"]
    still = [(row[0], row[1], row[2], row[3]) for row in tables["Both runs by module, per step"][1:]]
    assert still == [
        ("encoder", "200 ns", "50 ns", "+150 ns"),
        ("</script><b>", "150 ns", "0 ns", "+150 ns"),
        ("head", "0 ns", "40 ns", "-40 ns"),
    ]
    steps, memory, *_ = payload(document)
    assert [each["name"] for each in steps["series"]][-1] == "step time, other run"
    assert memory["lines"][0]["values"] == [6, 4]
    assert "://" not in document


def test_a_run_without_a_step_says_so(make: Any) -> None:
    found = Page(page.render(make.profile(step_count=0, duration_ns=0)))
    assert list(found.texts.values())[1] == "A step"
    assert found.tables == {}


def test_a_run_without_events_has_its_totals(make: Any) -> None:
    found = Page(page.render(make.profile(tables=None, steps=make.steps(make.counters(), make.counters()))))
    assert set(found.tables) == {"Per step", "Each step"}


def test_a_full_profile_is_small(make: Any, profile: FaultProfile) -> None:
    name = "encoder.layer.23.attention.output.dense"
    tables = make.tables(
        module=tuple(make.module(module=f"{name}.{index}", fault_groups=10**6) for index in range(4096)),
        tensor=tuple(make.tensor(name=f"{name}.{index}", fault_groups=10**6) for index in range(4096)),
        op=tuple(make.op(op=f"aten::operator.{index}", fault_groups=10**6) for index in range(4096)),
    )
    full = msgspec.structs.replace(profile, tables=tables)
    document = page.render(full, full)
    assert len(document.encode()) < 5_000_000
    found = Page(document)
    assert len(found.tables["By module, per step"]) == 1 + MOST_ROWS
    assert f"{4096 - MOST_ROWS:,} more are in the profile only." in document


def test_a_table_exactly() -> None:
    rows = [("x < y", Cell("1 s", 1e9, 0.25)), ("z", Cell("-", None))]
    assert table("A & B", ("what", "much"), rows, "more").splitlines() == [
        '<div class="table">',
        '<div class="scroll" role="region" aria-label="A &amp; B" tabindex="0">',
        "<table>",
        "<caption>A &amp; B</caption>",
        '<thead><tr><th scope="col">what</th><th scope="col" class="n">much</th></tr></thead>',
        "<tbody>",
        '<tr><th scope="row">x &lt; y</th><td class="n bar" style="--part:0.250" data-value="1000000000">1 s</td></tr>',
        '<tr><th scope="row">z</th><td class="n">-</td></tr>',
        "</tbody>",
        "</table>",
        "</div>",
        "<p>more</p></div>",
    ]
    assert table("empty", ("what",), []) == ""
