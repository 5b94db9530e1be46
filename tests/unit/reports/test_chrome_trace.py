"""The trace, field by field against "Trace Event Format", and what its readers need beyond: nesting, ends of arrows."""

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from pictures import MIB, START_NS, known, moves, seen

from umadvise.errors import UsageError
from umadvise.reports.counters.step_picture import pictured
from umadvise.reports.reporters import chrome_trace

FIELDS: dict[str, dict[str, Any]] = {
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
    "X": {"name": str, "cat": str, "ts": float, "dur": float, "pid": int, "tid": int, "args": dict},
    "C": {"name": str, "ts": float, "pid": int, "args": dict},
    "s": {"name": str, "cat": str, "id": int, "ts": float, "pid": int, "tid": int},
    "f": {"name": str, "cat": str, "id": int, "ts": float, "pid": int, "tid": int, "bp": str},
}
METADATA = {"process_name": ("name", str), "thread_name": ("name", str), "thread_sort_index": ("sort_index", int)}


def document(make: Any, *more: Any) -> dict[str, Any]:
    picture = pictured(seen(make, moves=[*moves(make), *more]), known())
    parsed: dict[str, Any] = json.loads(chrome_trace.render(make.profile(picture=picture)))
    return parsed


@pytest.fixture
def overlapping(make: Any) -> list[dict[str, Any]]:
    """With three transfers of paging, two of which overlap, and a wait for room."""
    copies = [
        make.event("transfer_d2h", start_ns=START_NS + start, duration_ns=40, bytes=MIB, allocation=7)
        for start in (10, 30, 60)
    ]
    room = make.event("wait_room", start_ns=START_NS + 700, duration_ns=5, allocation=7)
    events: list[dict[str, Any]] = document(make, *copies, room)["traceEvents"]
    return events


def test_the_exact_events(make: Any) -> None:
    trace = document(make)
    assert trace["displayTimeUnit"] == "ms"
    assert trace["otherData"] == {"umadvise": "0.1.0", "device": "emulated device"}
    events = [event for event in trace["traceEvents"] if event["ph"] != "M"]
    compute, to_device, to_host, waits = ({"pid": 1, "tid": tid} for tid in (1, 400, 500, 200))
    op = {"cat": "op", "ph": "X", **compute}
    made = {"tensor": "aten::mm in net", "count": 1, "cause": "planned"}
    assert events == [
        {"name": "aten::mm", "ts": 0, "dur": 0.166, "args": {"module": "net", "phase": "forward"}, **op},
        {"name": "aten::relu", "ts": 0.166, "dur": 0.334, "args": {"module": "net", "phase": "forward"}, **op},
        {"name": "aten::mul", "ts": 0.6, "dur": 0.4, "args": {"module": "", "phase": "backward"}, **op},
        {
            "name": "aten::mm in net",
            "cat": "wait_copy",
            "ph": "X",
            "ts": 0.5,
            "dur": 0.1,
            **waits,
            "args": {**made, "bytes": 0, "op": "aten::mul"},
        },
        {
            "name": "aten::mm in net",
            "cat": "swap_in",
            "ph": "X",
            "ts": 0.35,
            "dur": 0.119,
            **to_device,
            "args": {**made, "bytes": 2 * MIB, "op": "aten::relu"},
        },
        {"name": "order", "cat": "swap", "ph": "s", "id": 1, "ts": 0.35, **compute},
        {"name": "order", "cat": "swap", "ph": "f", "id": 1, "ts": 0.35, **to_device, "bp": "e"},
        {"name": "use", "cat": "swap", "ph": "s", "id": 2, "ts": 0.35, **to_device},
        {"name": "use", "cat": "swap", "ph": "f", "id": 2, "ts": 0.6, **compute, "bp": "e"},
        {
            "name": "aten::mm in net",
            "cat": "swap_out",
            "ph": "X",
            "ts": 0.15,
            "dur": 0.119,
            **to_host,
            "args": {**made, "bytes": 2 * MIB, "op": "aten::relu"},
        },
        *(
            {
                "name": "live bytes",
                "ph": "C",
                "ts": at,
                "pid": 1,
                "args": by_role(parameter=4 * MIB, intermediate=bytes_),
            }
            for at, bytes_ in ((0, 2 * MIB), (1, 0))
        ),
    ]


def by_role(**bytes_: int) -> dict[str, int]:
    roles = ("parameter", "input", "intermediate", "gradient", "optimizer state", "workspace")
    return {**dict.fromkeys(roles, 0), **bytes_}


def test_every_event_has_its_fields_and_no_others(overlapping: list[dict[str, Any]]) -> None:
    assert {event["ph"] for event in overlapping} == FIELDS.keys()
    for event in overlapping:
        fields = FIELDS[event["ph"]]
        assert event.keys() == {"ph", *fields}
        for name, kind in fields.items():
            assert isinstance(event[name], (int, float) if kind is float else kind)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 1) > 0
        if event["ph"] == "M":
            argument, kind = METADATA[event["name"]]
            assert isinstance(event["args"][argument], kind)
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())


def test_every_thread_has_a_name_and_a_place(overlapping: list[dict[str, Any]]) -> None:
    threads = {event["tid"] for event in overlapping if "tid" in event} - {0}
    for what in ("thread_name", "thread_sort_index"):
        assert {event["tid"] for event in overlapping if event["name"] == what} == threads
    names = [event["args"]["name"] for event in overlapping if event["name"] == "thread_name"]
    assert names == [
        "compute",
        "stalls: faults",
        "stalls: waits for copies",
        "stalls: waits for room",
        "link: to the device",
        "link: to the host",
        "link: to the host (2)",
    ]


def slices(events: list[dict[str, Any]]) -> dict[int, list[tuple[int, int]]]:
    """Beginnings and ends in nanoseconds, by thread."""
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            found[event["tid"]].append((start, start + round(event["dur"] * 1000)))
    return found


def test_no_two_slices_of_a_thread_overlap(overlapping: list[dict[str, Any]]) -> None:
    found = slices(overlapping)
    assert sum(map(len, found.values())) == 3 + 7
    for spans in found.values():
        ordered = sorted(spans)
        assert all(end <= start for (_, end), (start, _) in pairwise(ordered))


def test_arrows_begin_and_end_within_slices(overlapping: list[dict[str, Any]]) -> None:
    found = slices(overlapping)
    ends = {(event["ph"], event["id"]): event for event in overlapping if event["ph"] in "sf"}
    assert len(ends) == 4
    for (phase, number), event in ends.items():
        at = round(event["ts"] * 1000)
        assert any(start <= at <= end for start, end in found[event["tid"]])
        assert ends["s", number]["ts"] <= ends["f", number]["ts"], phase


def test_a_profile_without_a_step_has_no_trace(make: Any) -> None:
    with pytest.raises(UsageError, match="nothing to trace"):
        chrome_trace.render(make.profile())
