"""A step in time, against times worked out by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import MIB, START_NS, known, moves, seen, trace

from umadvise.records.counters import ROLES
from umadvise.records.step_picture import StepPicture
from umadvise.reports.counters import step_picture
from umadvise.reports.counters.step_picture import bounded, pictured


@pytest.fixture
def picture(make: Any) -> StepPicture:
    return pictured(seen(make), known())


def test_ops_go_between_what_was_measured(picture: StepPicture) -> None:
    """The third op stood still from 500 to 600: 300 ns of ops before it take 500, its own 300 the rest."""
    found = [(picture.names[op.name], op.start_ns, op.duration_ns, op.phase) for op in picture.ops]
    assert found == [
        ("aten::mm", 0, 166, "forward"),
        ("aten::relu", 166, 334, "forward"),
        ("aten::mul", 600, 400, "backward"),
    ]
    assert [picture.names[op.module] for op in picture.ops] == ["net", "net", ""]


def test_swaps_know_their_order_and_their_use(picture: StepPicture) -> None:
    """2 MiB take 119 ns at 16 TiB/s."""
    out, into, wait = picture.spans
    assert (out.kind, out.start_ns, out.ordered_ns, out.used_ns) == ("swap_out", 150, 150, None)
    assert (into.kind, into.start_ns, into.duration_ns, into.bytes) == ("swap_in", 350, 119, 2 * MIB)
    assert (into.ordered_ns, into.used_ns) == (350, 600)
    assert (wait.kind, wait.start_ns, wait.duration_ns, picture.names[wait.op]) == ("wait_copy", 500, 100, "aten::mul")
    assert picture.names[into.subject] == "aten::mm in net"


def test_copies_wait_for_each_other(make: Any) -> None:
    one = moves(make)[1]
    picture = pictured(seen(make, moves=[one, one, one]), known())
    assert [(span.start_ns, span.ordered_ns) for span in picture.spans] == [(350, 350), (469, 350), (588, 350)]


def test_memory_and_lifetimes(picture: StepPicture) -> None:
    assert picture.times_ns == (0, 1000)
    assert picture.live_bytes["parameter"] == (4 * MIB, 4 * MIB)
    assert picture.live_bytes["intermediate"] == (2 * MIB, 0)
    found = [(picture.names[each.name], each.role, each.start_ns, each.end_ns) for each in picture.tensors]
    assert found == [("weight", "parameter", 0, 1000), ("aten::mm in net", "intermediate", 0, 1000)]


def test_another_step_gives_events_alone(make: Any) -> None:
    others = [make.event("wait_room", start_ns=START_NS, duration_ns=9, op="aten::conv", op_index=1, allocation=22)]
    for step, like in ((seen(make, moves=others), known()), (seen(make), None)):
        picture = pictured(step, like)
        assert (picture.ops, picture.tensors, picture.times_ns, picture.live_bytes) == ((), (), (), {})
        assert len(picture.spans) == len(step.moves)


def test_the_longest_ops_stay(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_picture, "MOST_OPS", 2)
    picture = pictured(seen(make, moves=[]), known())
    assert [picture.names[op.name] for op in picture.ops] == ["aten::relu", "aten::mul"]
    assert picture.ops_left_out == 1


def test_the_peak_survives_thinning(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_picture, "MOST_POINTS", 2)
    picture = pictured(seen(make), known())
    totals = [sum(picture.live_bytes[role][row] for role in ROLES) for row in range(len(picture.times_ns))]
    assert max(totals) == trace().peak_bytes
    assert len(totals) <= 2


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**4), st.integers(0, 10**6)), min_size=1),
    st.integers(1, 9),
)
def test_bounding_changes_no_sum(rows: list[tuple[int, int, int]], most: int) -> None:
    spans = [step_picture._Span(None, start, length, bytes_) for start, length, bytes_ in sorted(rows)]  # type: ignore[arg-type]
    found = bounded(spans, most)
    assert len(found) == min(most, len(spans))
    for field in ("duration_ns", "bytes", "count"):
        assert sum(getattr(span, field) for span in found) == sum(getattr(span, field) for span in spans)
    starts = [span.start_ns for span in found]
    assert starts == sorted(starts)
    assert starts[0] == spans[0].start_ns


def test_neighbours_become_one() -> None:
    spans = [step_picture._Span(None, start, 10, 1) for start in (0, 12, 500, 511, 900)]  # type: ignore[arg-type]
    assert [(span.start_ns, span.duration_ns, span.count) for span in bounded(spans, 3)] == [
        (0, 20, 2),
        (500, 20, 2),
        (900, 10, 1),
    ]


def test_durations_may_be_unknown(make: Any) -> None:
    unknown = trace()
    object.__setattr__(unknown.ops, "duration_ns", np.full(3, -1))
    picture = pictured(seen(make, moves=[]), known(trace=unknown))
    assert [op.start_ns for op in picture.ops] == [0, 333, 666]
