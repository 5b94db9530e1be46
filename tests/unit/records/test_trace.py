"""Traces: what follows from their columns, against brute force; files and contradictions that are refused."""

import base64
import gzip
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import traces

from umadvise.errors import FormatError, UmadviseError
from umadvise.recording.builder import TraceBuilder
from umadvise.recording.difference import differences
from umadvise.records import files, trace_check
from umadvise.records import trace_file as io
from umadvise.records.enums import Role
from umadvise.records.files import deflate, inflate, read_bounded
from umadvise.records.trace import TABLES, Access, EventKind, Trace
from umadvise.records.trace_check import check


def mlp_step() -> TraceBuilder:
    """x @ w, relu in place, and the product's scratch."""
    builder = TraceBuilder()
    weight = builder.allocate(400, Role.PARAMETER, "fc.weight")
    data = builder.allocate(200, Role.INPUT, "x")
    builder.begin_op("aten::mm", module="fc", flops=1000, duration_ns=10)
    scratch = builder.allocate(64, Role.WORKSPACE)
    product = builder.allocate(100, Role.INTERMEDIATE)
    builder.access(data, Access.READ)
    builder.access(weight, Access.READ)
    builder.access(product, Access.WRITE | Access.WHOLE)
    builder.free(scratch)
    builder.end_op()
    builder.free(data)
    builder.begin_op("aten::relu_", duration_ns=5)
    builder.access(product, Access.READ | Access.WRITE | Access.IN_PLACE, 0, 60)
    builder.end_op()
    builder.free(product)
    return builder


def finished(builder: TraceBuilder) -> Trace:
    return builder.finish(target="cpu", source="synthetic", workload="mlp")


def test_what_follows_from_the_columns() -> None:
    trace = finished(mlp_step())
    assert trace.peak_bytes == 400 + 200 + 64 + 100
    assert trace.duration_ns == 15
    assert trace.working_set_bytes().tolist() == [400 + 200 + 64 + 100, 100]
    assert trace.births.tolist() == [-1, -1, 0, 0]
    assert trace.deaths.tolist() == [2, 0, 0, 1]
    op = trace.op(1)
    assert (op.name, op.flops, op.duration_ns) == ("aten::relu_", None, 5)
    assert [(access.storage, access.bytes) for access in op.accesses] == [(3, 60)]
    assert trace.storage(0).name == "fc.weight"


@given(traces())
def test_live_bytes_against_brute_force(trace: Trace) -> None:
    live: set[int] = set()
    expected = []
    for kind, storage in zip(trace.events.kind, trace.events.storage, strict=True):
        if kind == EventKind.ALLOCATE:
            live.add(int(storage))
        elif kind == EventKind.FREE:
            live.remove(int(storage))
        expected.append(sum(int(trace.storages.bytes[index]) for index in live))
    assert trace.live_bytes.tolist() == expected
    assert trace.peak_bytes == max(expected, default=0)


@given(traces())
def test_a_file_gives_back_what_was_written(trace: Trace) -> None:
    document = io.encode(trace)
    again = io.decode(document)
    assert again.digest == trace.digest
    assert io.encode(again) == document
    assert differences(trace, again) == []


@given(traces(), st.data())
@settings(max_examples=50)
def test_damaged_files_are_refused_or_equal(trace: Trace, data: st.DataObject) -> None:
    document = bytearray(io.encode(trace))
    if data.draw(st.booleans()):
        del document[data.draw(st.integers(0, len(document) - 1)) :]
    else:
        document[data.draw(st.integers(0, len(document) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        again = io.decode(bytes(document))
    except FormatError:
        return
    assert again.digest == trace.digest  # gzip's header holds a few bytes that mean nothing


@given(traces(), st.data())
@settings(max_examples=100)
def test_changed_columns_are_refused_or_possible(trace: Trace, data: st.DataObject) -> None:
    """A column with arbitrary numbers is refused, or it is a trace that all sums work on."""
    table_name = data.draw(st.sampled_from(sorted(TABLES)))
    table = getattr(trace, table_name)
    column = data.draw(st.sampled_from(sorted(table.DTYPES)))
    values = getattr(table, column).copy()
    if not len(values):
        return
    limits = np.iinfo(values.dtype)
    values[data.draw(st.integers(0, len(values) - 1))] = data.draw(st.integers(int(limits.min), int(limits.max)))
    changed = replace(trace, **{table_name: replace(table, **{column: values})})
    try:
        check(changed)
    except ValueError:
        return
    assert changed.peak_bytes >= 0
    assert (changed.working_set_bytes() >= 0).all()
    assert io.decode(io.encode(changed)).digest == changed.digest


def test_every_column_has_bounds() -> None:
    bounded = " ".join(columns for _, _, columns in trace_check._bounds(finished(mlp_step()))).split()
    assert sorted(bounded) == sorted(f"{table}.{column}" for table, kind in TABLES.items() for column in kind.DTYPES)


def edited(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The bytes of a file after a change to its document."""
    document = json.loads(gzip.decompress(io.encode(finished(mlp_step()))))
    change(document)
    return gzip.compress(json.dumps(document).encode())


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another version": (lambda d: d.update(schema="umadvise.trace/99"), "umadvise.trace/99"),
    "unknown field": (lambda d: d.update(extra=1), "extra"),
    "missing column": (lambda d: d["ops"].pop("flops"), "flops"),
    "unknown column": (lambda d: d["ops"].update(colour=""), "colour"),
    "half a number": (lambda d: d["ops"].update(flops="AAAA"), "whole number"),
    "shorter column": (lambda d: d["ops"].update(flops=base64.b64encode(bytes(8)).decode()), "different lengths"),
    "control character": (lambda d: d["strings"].__setitem__(1, "a\x1b[2J"), "strings"),
    "unknown target": (lambda d: d.update(target="tpu"), "target"),
    "gigantic storage": (
        lambda d: d["storages"].update(bytes=base64.b64encode(np.full(4, 2**60, "<i8").tobytes()).decode()),
        "storages.bytes",
    ),
    "storage that is its own heir": (
        lambda d: d["storages"].update(successor=base64.b64encode(np.array([-1, 1, -1, -1], "<i4").tobytes()).decode()),
        "successor",
    ),
    "access to a later storage": (
        lambda d: d["accesses"].update(storage=base64.b64encode(np.full(4, 99, "<i4").tobytes()).decode()),
        "accesses.storage",
    ),
}


@pytest.mark.parametrize(("change", "says"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_files_are_refused_with_the_reason(
    change: Callable[[dict[str, Any]], object], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.trace"
    path.write_bytes(edited(change))
    with pytest.raises(FormatError, match=says) as caught:
        io.read(path)
    assert str(path) in str(caught.value)


def test_a_file_that_unpacks_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io, "MOST_DOCUMENT_BYTES", 1 << 16)
    with pytest.raises(FormatError, match="unpacks to more than 65536 bytes"):
        io.decode(gzip.compress(bytes(1 << 20)))


MANY = 4_000_000
SMALL_FILES: dict[str, Callable[[dict[str, Any]], object]] = {
    "empty strings": lambda d: d.update(strings=[""] * MANY),
    "one long string": lambda d: d.update(workload="a" * 3 * MANY),
    "a column of nothing": lambda d: d["ops"].update(flops="A" * 4 * MANY),
    "spaces": lambda d: d.update(strings=["", " " * 3 * MANY]),
}


@pytest.mark.parametrize("grow", SMALL_FILES.values(), ids=SMALL_FILES.keys())
def test_a_small_file_takes_little_memory(grow: Callable[[dict[str, Any]], object]) -> None:
    packed = edited(grow)
    assert len(packed) < 64 << 10
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="the most for"):
            io.decode(packed)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_step_of_equal_ops_is_read_again_though_it_packs_well() -> None:
    document = bytes(32 << 20)
    packed = deflate(document)
    assert len(packed) * 64 >= len(document) - (1 << 20) > 64 * len(gzip.compress(document, 6))
    assert packed == deflate(document)
    assert inflate(packed, len(document)) == document


def test_files_are_written_where_proc_is_not_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_OPEN_FILES", tmp_path / "no" / "such" / "place")
    for trace in (finished(mlp_step()), finished(mlp_step())):
        io.write(trace, tmp_path / "step.trace")
        assert io.read(tmp_path / "step.trace").digest == trace.digest
    assert [path.name for path in tmp_path.iterdir()] == ["step.trace"]


def test_reading_a_file_takes_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "small.trace"
    path.write_bytes(bytes(1000))
    tracemalloc.start()
    try:
        assert read_bounded(path, 1 << 40, "trace") == bytes(1000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_nothing_is_written_where_nothing_can_be(tmp_path: Path) -> None:
    with pytest.raises(UmadviseError, match="cannot write"):
        io.write(finished(mlp_step()), tmp_path / "no" / "such" / "place")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda b: b.access(2, Access.READ), "not alive"),  # the scratch of an earlier op
        (lambda b: b.access(0, Access.READ, 0, 401), "beyond its storage"),
        (lambda b: b.free(1), "two events of kind FREE"),
        (lambda b: b.set_successor(0, 1), "successor"),
    ],
)
def test_contradictions_are_refused(spoil: Callable[[TraceBuilder], None], says: str) -> None:
    builder = mlp_step()
    builder.begin_op("aten::add")
    spoil(builder)
    builder.end_op()
    with pytest.raises(ValueError, match=says):
        finished(builder)


def test_a_successor_of_another_size_is_refused() -> None:
    builder = TraceBuilder()
    before = builder.allocate(100, Role.GRADIENT, "w.grad")
    builder.begin_op("aten::mul")
    after = builder.allocate(200, Role.GRADIENT, "w.grad")
    builder.end_op()
    builder.free(before)
    builder.set_successor(before, after)
    with pytest.raises(ValueError, match="of the same size"):
        finished(builder)


def variant(change: Callable[[TraceBuilder], None]) -> Trace:
    builder = mlp_step()
    change(builder)
    return finished(builder)


def extra_op(builder: TraceBuilder) -> None:
    builder.begin_op("aten::sum", module="loss")
    builder.access(0, Access.READ)
    builder.end_op()


def test_differences_in_words() -> None:
    here = finished(mlp_step())
    assert differences(here, variant(extra_op)) == [
        "The steps agree for 2 ops; there 1 more follow, the first is aten::sum in loss (none).",
        "aten::sum runs 0 times here, 1 there.",
    ]
    larger = TraceBuilder()
    larger.allocate(800, Role.PARAMETER, "fc.weight")
    small = TraceBuilder()
    small.allocate(400, Role.PARAMETER, "fc.weight")
    for builder in (larger, small):
        builder.begin_op("aten::relu_")
        builder.access(0, Access.READ | Access.WRITE, 0, 400)
        builder.end_op()
    assert differences(finished(small), finished(larger)) == [
        "The steps agree for 0 ops. Op 0 differs: aten::relu_ (none), range 0: "
        "a storage of 400 bytes here, of 800 there.",
        "The peak is 400 B here, 800 B there.",
        "Parameter: 1 storages of 400 B here, 1 of 800 B there.",
    ]
